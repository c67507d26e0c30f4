//! The compiler says the same of a body with the attribute and without it: each file in `wrong_bodies/` is compiled both
//! ways in the editions 2021 and 2024, and what is reported has the same level, the same code and the same place.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use serde_json::Value;

const EDITIONS: [&str; 2] = ["2021", "2024"];

/// Where what is reported differs, and why that cannot be helped, or is meant. A difference that goes away fails the
/// test, so that it goes from here too.
const KNOWN_DIFFERENCES: &[(&str, &str)] = &[
    (
        "boxed_future",
        "a function that returns a boxed future by hand does not tell its async block what it gives, and the expansion \
         does: the compiler points at the value, no longer at the whole box",
    ),
    (
        "lifetime_in_arm",
        "a lifetime that is too short is noticed where the value leaves the function: all of the tail, and not one arm",
    ),
    (
        "lifetime_in_early_return",
        "a lifetime that is too short is noticed where the value leaves the function: all of the body, if it has a `return`",
    ),
    (
        "output_is_not_send",
        "the one exception to exact `Send`-ness: with `release = wait` the output is held while the release is awaited",
    ),
    (
        "mut_parameter_overwritten",
        "a `mut` parameter is bound by a `let`, where this lint points at the name, and not at `mut` and the name",
    ),
];

/// One error or warning, without its words.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Diagnostic {
    level: String,
    code: String,
    /// First and last, as line and column.
    places: Vec<[u64; 4]>,
}

impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} at", self.level, self.code)?;
        self.places
            .iter()
            .try_for_each(|[line, column, last, end]| write!(f, " {line}:{column}-{last}:{end}"))
    }
}

/// The compiler, and the runtime crate as cargo has built it for this test.
struct Compiler {
    rustc: OsString,
    runtime: PathBuf,
    out: tests::TempDir,
}

impl Compiler {
    fn find() -> Self {
        let this = std::env::current_exe().unwrap();
        let deps = this.parent().unwrap();
        let is_runtime = |path: &PathBuf| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            name.starts_with("liblock_runtime-") && name.ends_with(".rlib")
        };
        let found = deps.read_dir().unwrap().map(|entry| entry.unwrap().path()).filter(is_runtime);
        // There is one for each set of features. Cargo has brought that of this test up to date, so whichever was built
        // last is.
        let runtime = found.max_by_key(|path| path.metadata().unwrap().modified().unwrap());
        let runtime = runtime
            .unwrap_or_else(|| panic!("no lock_runtime beside {}: run this with cargo", this.display()));
        let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
        Self { rustc, runtime, out: tests::temp_dir() }
    }

    fn compile(&self, file: &Path, edition: &str, is_locked: bool) -> BTreeSet<Diagnostic> {
        let mut command = Command::new(&self.rustc);
        command.args(["--crate-type=lib", "--emit=metadata", "--error-format=json", "--edition", edition]);
        let name = file.file_stem().unwrap().to_string_lossy();
        let out = self.out.path().join(format!("{name}-{edition}-{is_locked}"));
        command.arg("--check-cfg=cfg(locked)").arg(file).arg("-o").arg(out);
        command.arg("-L").arg(self.runtime.parent().unwrap());
        let mut runtime = OsString::from("lock_runtime=");
        runtime.push(&self.runtime);
        command.arg("--extern").arg(runtime);
        if is_locked {
            command.args(["--cfg", "locked"]);
        }
        let output = command.output().unwrap_or_else(|error| panic!("{}: {error}", self.rustc.display()));
        let text = String::from_utf8(output.stderr).unwrap();
        let reports =
            text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|_| panic!("{line}")));
        reports.filter_map(|report| diagnostic(&report)).collect()
    }
}

/// What the compiler reports; not the summaries at its end, which are at no place.
fn diagnostic(report: &Value) -> Option<Diagnostic> {
    let spans = report["spans"].as_array()?.iter().filter(|span| span["is_primary"] == true);
    let ends = ["line_start", "column_start", "line_end", "column_end"];
    let mut places: Vec<_> = spans.map(|span| ends.map(|name| span[name].as_u64().unwrap())).collect();
    places.sort_unstable();
    let level = report["level"].as_str()?.to_owned();
    let code = report["code"]["code"].as_str().unwrap_or("without a code").to_owned();
    (!places.is_empty()).then_some(Diagnostic { level, code, places })
}

fn list(all: &BTreeSet<Diagnostic>) -> String {
    all.iter().fold(String::new(), |list, one| list + "\n        " + &one.to_string())
}

#[test]
fn are_those_of_the_function_without_the_attribute() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("wrong_bodies");
    let mut files: Vec<PathBuf> = folder.read_dir().unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    let jobs: Vec<(&Path, &str)> =
        files.iter().flat_map(|file| EDITIONS.map(|edition| (&**file, edition))).collect();

    let compiler = Compiler::find();
    let (next, results) = (AtomicUsize::new(0), Mutex::new(BTreeMap::new()));
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(2, usize::from) {
            scope.spawn(|| {
                while let Some(&(file, edition)) = jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let both = [false, true].map(|is_locked| compiler.compile(file, edition, is_locked));
                    results
                        .lock()
                        .unwrap()
                        .insert((file.file_stem().unwrap().to_string_lossy(), edition), both);
                }
            });
        }
    });

    let results = results.into_inner().unwrap();
    let mut wrong = Vec::new();
    for (name, _) in KNOWN_DIFFERENCES {
        let is_there = EDITIONS.iter().all(|edition| results.contains_key(&(Cow::Borrowed(name), edition)));
        assert!(is_there, "there is no {name}.rs any more");
    }
    for ((name, edition), [native, locked]) in results {
        let known = KNOWN_DIFFERENCES.iter().any(|(known, _)| *known == name);
        let complaint = match (native == locked, known) {
            _ if native.is_empty() => "nothing is wrong with it",
            (true, true) => "is a known difference that is none any more",
            (false, false) => "differs",
            (true, false) | (false, true) => continue,
        };
        let (native, locked) = (list(&native), list(&locked));
        wrong.push(format!(
            "{name} in {edition} {complaint}\n    without the attribute{native}\n    with it{locked}"
        ));
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}
