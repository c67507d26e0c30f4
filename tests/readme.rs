//! What the README shows is what a crate outside of this workspace gets. That its examples compile at all is seen by
//! the doctests of the harness.

use std::fs;
use std::path::Path;
use std::process::Command;

use tests::monitor::{Executed, Monitor};
use tests::server::RedisServer;
use tests::{TempDir, temp_dir};

const ENGLISH: &str = include_str!("../README.md");
const CHINESE: &str = include_str!("../README.zh-CN.md");

/// A fenced block: its language and its text.
type Block = (&'static str, &'static str);

fn blocks(readme: &'static str) -> Vec<Block> {
    // Text and blocks in turn.
    let fenced = readme.split("\n```").skip(1).step_by(2);
    fenced.map(|block| block.split_once('\n').expect("a fence ends its line")).collect()
}

/// The blocks of one language that have this text in them.
fn find(language: &str, text: &str) -> Vec<&'static str> {
    let blocks = blocks(ENGLISH).into_iter();
    let found = blocks.filter(|(of, block)| *of == language && block.contains(text)).map(|(_, block)| block);
    let found: Vec<_> = found.collect();
    assert!(!found.is_empty(), "the README has no {language} with {text:?}");
    found
}

#[test]
fn both_readmes_have_the_same_code() {
    let (english, chinese) = (blocks(ENGLISH), blocks(CHINESE));
    assert!(english.iter().any(|(language, _)| *language == "rust"));
    for (english, chinese) in english.iter().zip(&chinese) {
        assert_eq!(english, chinese);
    }
    assert_eq!(english.len(), chinese.len());
}

/// A crate in a folder of its own, with the dependencies that the README tells to write.
struct Outside {
    dir: TempDir,
    name: String,
}

impl Outside {
    const TARGET: &str = concat!(env!("CARGO_TARGET_TMPDIR"), "/outside");

    /// `adapt` makes other dependencies of those in the README.
    fn new(name: &str, edition: &str, adapt: impl FnOnce(String) -> String) -> Self {
        let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("tests/ is in the workspace");
        let runtime = workspace.join("lock-runtime");
        let [dependencies] = find("toml", "lock-runtime")[..] else { panic!("dependencies are shown twice") };
        let local =
            dependencies.replace("\"../lock-runtime\"", &format!("{:?}", runtime.display().to_string()));
        assert_ne!(local, dependencies);
        // Side by side with another run of this test, both are built into one folder.
        let name = format!("{name}-{edition}-{}", std::process::id());
        let package =
            format!("[package]\nname = \"{name}\"\nversion = \"0.0.0\"\nedition = \"{edition}\"\n\n");
        let outside = Self { dir: temp_dir(), name };
        outside.write("Cargo.toml", &(package + &adapt(local)));
        // The versions that are here already: nothing is downloaded.
        outside.write("Cargo.lock", &fs::read_to_string(workspace.join("Cargo.lock")).unwrap());
        outside
    }

    fn write(&self, file: &str, text: &str) {
        let path = self.dir.path().join(file);
        fs::create_dir_all(path.parent().expect("a folder")).unwrap();
        fs::write(path, text).unwrap();
    }

    /// What a `cargo` command, which must succeed, prints.
    async fn cargo(&self, command: &str) -> String {
        let mut cargo = self.command(command);
        let output = tokio::task::spawn_blocking(move || cargo.output()).await.unwrap().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
        assert!(output.status.success(), "cargo {command}: {}\n{stdout}\n{stderr}", output.status);
        assert_eq!(stderr, "", "cargo {command} has something to say");
        stdout
    }

    fn command(&self, command: &str) -> Command {
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args([command, "--quiet", "--offline", "--target-dir", Self::TARGET]);
        // Less to build and to keep.
        cargo.args(["--config", "profile.dev.debug=false", "--config", "profile.dev.incremental=false"]);
        cargo.current_dir(self.dir.path());
        cargo
    }
}

impl Drop for Outside {
    fn drop(&mut self) {
        // The dependencies stay for the next run; what has this name will never be built again.
        self.command("clean").args(["--package", &self.name]).output().ok();
    }
}

/// The three lines that annotate a function, as they stand in the README.
#[tokio::test]
async fn the_first_example_is_a_program() {
    let server = RedisServer::start().await;
    let [example] = find("rust,no_run", "set_global_manager(")[..] else { panic!("more than one") };
    let example = example.replace("redis://127.0.0.1:6379", &server.url());
    for edition in ["2021", "2024"] {
        let shop = Outside::new("readme", edition, |dependencies| dependencies);
        shop.write("src/main.rs", &example);
        let monitor = Monitor::attach(&server);
        assert_eq!(shop.cargo("run").await, "paid order 123\n");
        let about_the_key = |command: &&Executed| command.args.contains(&"lock:order:123".to_owned());
        let wire = monitor.wire().await;
        let names: Vec<_> = wire.iter().filter(about_the_key).map(|command| &*command.args[0]).collect();
        assert_eq!(names, ["SET", "EVALSHA"]);
    }
}

/// The README's own tests of annotated functions, run as a reader would.
#[tokio::test]
async fn the_tests_pass() {
    let blocks = find("rust", "#[tokio::test");
    let [for_tests] = find("toml", "[dev-dependencies]")[..] else { panic!("more than one") };
    let shop = Outside::new("tests", "2024", |dependencies| {
        format!("{dependencies}\nasync-trait = \"*\"\n\n{for_tests}\n")
    });
    let mut lib = vec!["#![allow(dead_code, unused_imports, reason = \"excerpts\")]".to_owned()];
    for (number, block) in blocks.iter().enumerate() {
        lib.push(format!("pub mod block{number};"));
        shop.write(&format!("src/block{number}.rs"), block);
    }
    shop.write("src/lib.rs", &lib.join("\n"));
    let tests: usize = blocks.iter().map(|block| block.matches("#[tokio::test").count()).sum();
    let told = shop.cargo("test").await;
    assert!(told.contains(&format!("test result: ok. {tests} passed")), "{told}");
}

/// An application that hands the runtime on to its parts, under names of its own.
#[tokio::test]
async fn the_runtime_may_have_another_name() {
    for edition in ["2021", "2024"] {
        let shop = Outside::new("renamed", edition, |dependencies| {
            let renamed = dependencies.replace("lock-runtime = {", "locks = { package = \"lock-runtime\",");
            assert_ne!(renamed, dependencies);
            renamed
        });
        shop.write("src/main.rs", RENAMED);
        assert_eq!(shop.cargo("run").await, "1 under lock:a:1, 2 under lock:b:2, 3 under lock:c:3\n");
    }
}

const RENAMED: &str = r#"
pub mod infra {
    pub use locks as runtime;

    pub mod locking {
        pub use locks::*;
    }
}

use infra::locking::{LockError, LockManager, redis_lock, set_global_manager};

#[redis_lock(crate = crate::infra::runtime, key = "a:<id>", ttl = "30s", guard = lock)]
async fn by_module(id: u64) -> Result<String, LockError> {
    Ok(format!("{id} under {}", lock.key()))
}

#[redis_lock(key = "b:<id>", ttl = "30s", wait = "1s", guard = lock, crate = crate::infra::locking)]
async fn by_glob(id: u64) -> Result<String, infra::runtime::LockError> {
    Ok(format!("{id} under {}", lock.key()))
}

mod other {
    use locks::redis_lock;

    #[redis_lock(key = "c:<id>", ttl = "30s", guard = lock, or_else = |error| error.to_string(), crate = ::locks)]
    pub async fn by_dependency(id: u64) -> String {
        format!("{id} under {}", lock.key())
    }
}

#[tokio::main]
async fn main() -> Result<(), LockError> {
    set_global_manager(LockManager::in_memory())?;
    println!("{}, {}, {}", by_module(1).await?, by_glob(2).await?, other::by_dependency(3).await);
    Ok(())
}
"#;
