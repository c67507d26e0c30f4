//! What annotating costs the compiler: the time for many functions, the size of futures, how deep calls may nest, and
//! the crates that come along.
//!
//! ```console
//! $ cargo bench -p tests --bench compile             # everything, about ten minutes on two cores
//! $ cargo bench -p tests --bench compile -- sizes    # some parts: check, sizes, nesting, build
//! ```
//!
//! All parts compile crates that they generate in a temporary directory, with the versions of this workspace's lock
//! file. What is compared with each other is taken in turns in one run, so that a busy machine slows all of it down
//! alike: look at the ratios, which are the medians of those of each round, with the least and the greatest.

mod annotated;
mod cargo;
mod check;
mod clean;
mod nesting;
mod sizes;

use std::path::Path;
use std::process::{Command, ExitCode};
use std::thread;

type Part = fn(&Path);

const PARTS: [(&str, Part); 4] =
    [("check", check::run), ("sizes", sizes::run), ("nesting", nesting::run), ("build", clean::run)];

fn main() -> ExitCode {
    // Cargo passes `--bench` to every benchmark.
    let wanted: Vec<String> = std::env::args().skip(1).filter(|word| word != "--bench").collect();
    if let Some(word) = wanted.iter().find(|word| PARTS.iter().all(|(name, _)| name != word)) {
        eprintln!("There is no part {word:?}. The parts are: {}.", PARTS.map(|(name, _)| name).join(", "));
        return ExitCode::FAILURE;
    }
    println!("{}, {} cores\n", compiler(), thread::available_parallelism().map_or(1, usize::from));
    let root = tests::temp_dir();
    for (name, part) in PARTS {
        if wanted.is_empty() || wanted.iter().any(|word| word == name) {
            part(root.path());
        }
    }
    ExitCode::SUCCESS
}

fn compiler() -> String {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let output = Command::new(&rustc).arg("--version").output();
    let output = output.unwrap_or_else(|error| panic!("{} cannot be run: {error}", rustc.display()));
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}
