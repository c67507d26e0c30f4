//! How many annotated functions may call each other at the default recursion limit.

use std::path::Path;

use tests::measure::Table;

use crate::annotated::{self, Kind, nest};
use crate::cargo::Package;

/// Where the search ends. Nothing nests deeper but what the compiler does not look into.
const ENOUGH: usize = 64;

pub(crate) fn run(root: &Path) {
    let package = annotated::package(root, "nesting");
    let mut table = Table::new(
        ["calls that nest, at most"].into_iter().chain(Kind::ALL.map(Kind::title)).chain(["target"]),
    );
    let depths = Kind::ALL.map(|kind| deepest(&package, kind, "check", is_send));
    table.row(["`Send` is proved"].map(str::to_owned).into_iter().chain(depths).chain(["≥ 24".to_owned()]));
    // Only what is polled has to have a layout, and `cargo check` does not ask for it.
    let depths = Kind::ALL.map(|kind| deepest(&package, kind, "build", poll));
    table.row(["the call is compiled"].map(str::to_owned).into_iter().chain(depths));
    println!("{}", table.markdown());
}

fn is_send(call: &str) -> String {
    format!("fn is_send<T: Send>(_: T) {{}} pub fn outermost() {{ is_send({call}); }}")
}

fn poll(call: &str) -> String {
    format!(
        "pub fn outermost(context: &mut std::task::Context<'_>) {{
             let _ = std::future::Future::poll(std::pin::pin!({call}).as_mut(), context);
         }}"
    )
}

/// The greatest depth at which a crate compiles that does this with the outermost call.
fn deepest(package: &Package, kind: Kind, command: &str, outermost: fn(&str) -> String) -> String {
    let (mut compiles, mut fails) = (0, ENOUGH + 1);
    while fails - compiles > 1 {
        let depth = usize::midpoint(compiles, fails);
        package.write("src/lib.rs", &(nest(kind, depth) + &outermost(&format!("level_{depth}(1)"))));
        let run = package.cargo(command);
        if run.is_success {
            compiles = depth;
        } else if run.stderr.contains("overflow") {
            fails = depth;
        } else {
            run.expect_success();
        }
    }
    if compiles == ENOUGH { format!("≥ {ENOUGH}") } else { compiles.to_string() }
}
