//! Crates that are generated, and what it takes cargo to compile them.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use tests::measure::Sample;

/// A crate of its own, which belongs to no workspace.
pub(crate) struct Package {
    folder: PathBuf,
    target: PathBuf,
    crates: BTreeSet<String>,
}

impl Package {
    /// An empty crate with these lines in its `[dependencies]`, which are resolved and downloaded.
    ///
    /// All crates of one root share a target directory.
    pub(crate) fn new(root: &Path, name: &str, dependencies: &str) -> Self {
        let folder = root.join(name);
        fs::create_dir_all(folder.join("src"))
            .unwrap_or_else(|error| panic!("{} cannot be made: {error}", folder.display()));
        let mut package = Self { folder, target: root.join("target"), crates: BTreeSet::new() };
        package.write(
            "Cargo.toml",
            &format!(
                "[package]\nname = \"{name}\"\nversion = \"0.0.0\"\nedition = \"2024\"\n\n\
                 [dependencies]\n{dependencies}\n\n[workspace]\n"
            ),
        );
        package.write("src/lib.rs", "");
        let lock = workspace().join("Cargo.lock");
        let lock = fs::read_to_string(&lock)
            .unwrap_or_else(|error| panic!("{} cannot be read: {error}", lock.display()));
        package.write("Cargo.lock", &lock);
        package.crates = package.resolve(name);
        package
    }

    /// Writes one of its files, which makes the crate one that has to be compiled anew.
    pub(crate) fn write(&self, file: &str, text: &str) {
        let path = self.folder.join(file);
        fs::write(&path, text)
            .unwrap_or_else(|error| panic!("{} cannot be written: {error}", path.display()));
    }

    /// Makes it a program instead of a library.
    pub(crate) fn write_program(&self, text: &str) {
        fs::remove_file(self.folder.join("src/lib.rs")).ok();
        self.write("src/main.rs", text);
    }

    /// The crates that are compiled before it on this machine, those of macros and build scripts too.
    pub(crate) fn crates(&self) -> &BTreeSet<String> {
        &self.crates
    }

    /// Runs cargo, without the network and with the versions that were resolved.
    pub(crate) fn cargo(&self, command: &str) -> Run {
        self.run(&[command, "--frozen"])
    }

    /// Deletes all that was compiled.
    pub(crate) fn clean(&self) {
        if self.target.exists() {
            fs::remove_dir_all(&self.target)
                .unwrap_or_else(|error| panic!("{} cannot be deleted: {error}", self.target.display()));
        }
    }

    /// Writes its lock file and downloads what it needs on this machine.
    fn resolve(&self, name: &str) -> BTreeSet<String> {
        let tree = self.run(&["tree", "--edges", "normal,build", "--prefix", "none"]).expect_success();
        let crates = tree.stdout.lines().filter_map(|line| {
            let mut words = line.split_whitespace();
            Some((words.next()?, words.next()?))
        });
        crates.filter(|(of, _)| *of != name).map(|(of, version)| format!("{of} {version}")).collect()
    }

    fn run(&self, arguments: &[&str]) -> Run {
        // Set for what cargo starts.
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo"));
        let mut command = Command::new(cargo);
        command.current_dir(&self.folder).args(arguments);
        command.env("CARGO_TARGET_DIR", &self.target);
        // Every crate is compiled as a whole, which does not depend on what was compiled before.
        command.env("CARGO_INCREMENTAL", "0");
        // A cache of compilations would answer in the compiler's place; empty means none.
        command.env("RUSTC_WRAPPER", "").env("RUSTC_WORKSPACE_WRAPPER", "");
        let (cpu, start) = (cpu_of_children(), Instant::now());
        let output = command.output().unwrap_or_else(|error| panic!("{command:?} cannot be run: {error}"));
        Run {
            wall: start.elapsed().as_secs_f64(),
            cpu: cpu_of_children() - cpu,
            is_success: output.status.success(),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
            command: format!("{command:?}"),
        }
    }
}

/// A line that depends on a crate of this workspace.
pub(crate) fn member(name: &str) -> String {
    format!("{name} = {{ path = '{}' }}", workspace().join(name).display())
}

fn workspace() -> &'static Path {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR"));
    tests.parent().expect("the package of the tests lies in the workspace")
}

/// One run of cargo.
pub(crate) struct Run {
    /// In seconds.
    pub(crate) wall: f64,
    /// In seconds, of cargo, the compilers, the linkers and the build scripts.
    pub(crate) cpu: f64,
    pub(crate) is_success: bool,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
    command: String,
}

impl Run {
    pub(crate) fn expect_success(self) -> Self {
        assert!(self.is_success, "{} failed:\n{}", self.command, self.stderr);
        self
    }

    /// How many crates were compiled.
    pub(crate) fn compiled(&self) -> usize {
        let is_one = |line: &str| ["Checking ", "Compiling "].iter().any(|verb| line.starts_with(verb));
        self.stderr.lines().filter(|line| is_one(line.trim_start())).count()
    }
}

/// The times of several runs.
#[derive(Default)]
pub(crate) struct Times {
    pub(crate) cpu: Sample,
    pub(crate) wall: Sample,
}

impl Times {
    pub(crate) fn push(&mut self, run: &Run) {
        self.cpu.push(run.cpu);
        self.wall.push(run.wall);
    }
}

/// How one sample compares with another of the same rounds, or with itself.
pub(crate) fn ratio(sample: &Sample, other: &Sample) -> String {
    if std::ptr::eq(sample, other) { "1".to_owned() } else { sample.over(other).spread(2) }
}

/// The seconds of CPU time that went to child processes which have ended, and to theirs.
///
/// Linux only: `cutime` and `cstime` in `/proc/self/stat` grow by a child's times, and by those of its own children,
/// when it has been waited for. They count in hundredths of a second, which is `USER_HZ` on every machine of today.
/// What asks the system itself (`getrusage` of children, `wait4`) is to be had through unsafe code or one more crate.
fn cpu_of_children() -> f64 {
    const STAT: &str = "/proc/self/stat";

    let stat = fs::read_to_string(STAT)
        .unwrap_or_else(|error| panic!("{STAT} cannot be read, which only Linux has: {error}"));
    // The name of the program comes before, in parentheses, and may contain anything.
    let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields).split_whitespace();
    let ticks: Option<[f64; 2]> = fields
        .skip(13)
        .take(2)
        .map(|field| field.parse().ok())
        .collect::<Option<Vec<f64>>>()
        .and_then(|ticks| ticks.try_into().ok());
    ticks.unwrap_or_else(|| panic!("{STAT} has no times of children: {stat}")).iter().sum::<f64>() / 100.0
}
