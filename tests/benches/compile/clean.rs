//! What a crate that has nothing else waits for when it begins to use locks: a build from nothing.

use std::path::Path;

use tests::measure::Table;

use crate::cargo::{Package, Times, member, ratio};

const ROUNDS: usize = 3;

/// Something to depend on.
struct Candidate {
    title: &'static str,
    package: Package,
    times: Times,
}

impl Candidate {
    /// A directory of its own for each: none may find what another has compiled.
    fn new(root: &Path, title: &'static str, dependency: &str) -> Self {
        let name: String = title.chars().filter(char::is_ascii_alphanumeric).collect();
        let package = Package::new(&root.join(format!("clean-{name}")), "empty", dependency);
        Self { title, package, times: Times::default() }
    }

    fn measure(&mut self) {
        self.package.clean();
        let run = self.package.cargo("build").expect_success();
        // The empty crate counts too.
        assert_eq!(
            run.compiled(),
            self.package.crates().len() + 1,
            "cargo built something else:\n{}",
            run.stderr
        );
        self.times.push(&run);
        self.package.clean();
    }
}

pub(crate) fn run(root: &Path) {
    // No peer has an attribute; this is the one that the other parts compare with.
    compare(
        "attribute",
        vec![
            Candidate::new(root, "tracing-attributes 0.1", r#"tracing-attributes = "0.1""#),
            Candidate::new(root, "lock-macros", &member("lock-macros")),
        ],
    );
    compare(
        "locks",
        vec![
            Candidate::new(root, "rlock 0.2", r#"rlock = "0.2""#),
            // Without a feature it is an empty crate.
            Candidate::new(
                root,
                "rslock 0.10 with tokio-comp",
                r#"rslock = { version = "0.10", features = ["tokio-comp"] }"#,
            ),
            Candidate::new(root, "lock-runtime", &member("lock-runtime")),
        ],
    );
}

/// Builds all in turns, and prints them beside the leanest of those that are not ours, which is the last.
fn compare(what: &str, mut candidates: Vec<Candidate>) {
    for _ in 0..ROUNDS {
        candidates.iter_mut().for_each(Candidate::measure);
    }
    let peers = &candidates[..candidates.len() - 1];
    let cpu = |candidate: &&Candidate| candidate.times.cpu.median();
    let leanest = peers.iter().min_by(|a, b| cpu(a).total_cmp(&cpu(b))).expect("there is a peer");

    let mut table = Table::new([
        format!("clean build: {what}").as_str(),
        "crates",
        "CPU s",
        format!("over {}", leanest.title).as_str(),
        "wall s",
        format!("over {}", leanest.title).as_str(),
    ]);
    for Candidate { title, package, times } in &candidates {
        table.row([
            (*title).to_owned(),
            package.crates().len().to_string(),
            times.cpu.spread(2),
            ratio(&times.cpu, &leanest.times.cpu),
            times.wall.spread(2),
            ratio(&times.wall, &leanest.times.wall),
        ]);
    }
    println!("{}", table.markdown());
}
