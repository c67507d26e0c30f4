//! The size of the futures of annotated functions.

use std::fmt::Write as _;
use std::path::Path;

use tests::measure::Table;

use crate::annotated::{self, Kind, nest};

/// A name of what is measured, and an expression that is the future.
const FUTURES: [(&str, &str); 2] =
    [("with a 1 KiB local", "big(1)"), ("of eight nested calls", "level_8(1)")];

pub(crate) fn run(root: &Path) {
    let package = annotated::package(root, "sizes");
    package.write_program(&program());
    let sizes = package.cargo("run").expect_success().stdout;
    let mut sizes = sizes.lines();

    let mut table = Table::new(
        ["bytes of a future"].into_iter().chain(Kind::ALL.map(Kind::title)).chain(["over plain", "target"]),
    );
    for ((what, _), target) in FUTURES.into_iter().zip([1250, 1000]) {
        let sizes = Kind::ALL.map(|_| size(sizes.next()));
        let [plain, _, locked] = sizes;
        table.row(
            [what.to_owned()]
                .into_iter()
                .chain(sizes.map(|size| size.to_string()))
                .chain([format!("+{}", locked - plain), format!("≤ {target}")]),
        );
    }
    println!("{}", table.markdown());
}

fn size(line: Option<&str>) -> usize {
    line.and_then(|line| line.parse().ok()).unwrap_or_else(|| panic!("the program printed no size: {line:?}"))
}

/// Prints a size on each line: for each future those of all kinds.
fn program() -> String {
    let mut program = String::new();
    for kind in Kind::ALL {
        let _ = write!(
            program,
            "mod {} {{
                 {}
                 pub async fn big(id: u64) -> Result<u8, lock_runtime::LockError> {{
                     let big = [1u8; 1024];
                     tokio::task::yield_now().await;
                     Ok(big[usize::from(id == 1)])
                 }}
                 {}
             }}\n",
            kind.name(),
            kind.attribute(),
            // Only the outermost is called from outside.
            nest(kind, 8).replace("async fn level_8", "pub async fn level_8"),
        );
    }
    program += "fn main() {\n";
    for (_, future) in FUTURES {
        for kind in Kind::ALL {
            let _ = writeln!(program, "println!(\"{{}}\", size_of_val(&{}::{future}));", kind.name());
        }
    }
    program + "}\n"
}
