//! Locks of other languages on the same key: redis-py's and node-redlock's exclude ours, and ours theirs.

use std::cell::Cell;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use lock_runtime::{LockError, LockManager, redis_lock};
use tests::monitor::{Executed, Monitor};
use tests::process::Process;
use tests::server::RedisServer;
use tests::{PATIENCE, eventually};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;

/// What both sides agree on: our key with our prefix, their key in full.
const KEY: &str = "lock:order:1";
/// A lease that outlives a test's steps.
const LONG: Duration = Duration::from_secs(60);
/// A lease that does not.
const SHORT: Duration = Duration::from_millis(120);
/// What a busy machine may add to a wake-up.
const SLACK: Duration = Duration::from_millis(150);

/// The body tells its token and when it began, then works until it is told to end.
#[redis_lock(key = "order:<id>", ttl = ttl, wait = wait, manager = locks, guard = lock)]
async fn pay(
    locks: &LockManager,
    id: u64,
    ttl: Duration,
    wait: Duration,
    started: mpsc::UnboundedSender<(String, Instant)>,
    end: oneshot::Receiver<()>,
) -> Result<&'static str, LockError> {
    started.send((lock.token().to_owned(), Instant::now())).ok();
    end.await.ok();
    Ok("the receipt")
}

/// A call of [`pay`], whose body may have begun or not.
struct Call {
    started: mpsc::UnboundedReceiver<(String, Instant)>,
    end: oneshot::Sender<()>,
    task: JoinHandle<Result<&'static str, LockError>>,
}

impl Call {
    fn begin(locks: &LockManager, ttl: Duration, wait: Duration) -> Self {
        let (locks, (starting, started), (end, ended)) =
            (locks.clone(), mpsc::unbounded_channel(), oneshot::channel());
        let task = tokio::spawn(async move { pay(&locks, 1, ttl, wait, starting, ended).await });
        Self { started, end, task }
    }

    /// The token under which the body runs, and since when.
    async fn runs(&mut self) -> (String, Instant) {
        self.started.recv().await.expect("the body begins: the lock is free")
    }

    async fn end(self) {
        self.end.send(()).expect("the body is waiting");
        let result = self.task.await.expect("the body does not panic");
        assert_eq!(result.unwrap(), "the receipt", "the work was done: its result is returned");
    }

    /// The error of a call whose body is not to begin.
    async fn refused(mut self) -> LockError {
        let error = self.task.await.expect("nothing panics").expect_err("the lock is theirs");
        assert!(self.started.recv().await.is_none(), "the body did not run");
        error
    }
}

#[derive(Clone, Copy)]
enum Language {
    Python,
    Node,
}

impl Language {
    /// The command of its program, which uses the library that `tests/run.sh` installs.
    ///
    /// # Panics
    ///
    /// If the library is not there.
    fn command(self) -> Command {
        let scripts = Path::new(env!("CARGO_MANIFEST_DIR")).join("languages");
        // `tmp` in the folder of the build.
        let build = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().expect("it is a folder of the build");
        let installed = |path: PathBuf, library: &str| {
            let there = path.exists();
            assert!(there, "{library} is not in {}: run tests/run.sh, which installs it", path.display());
        };
        match self {
            Self::Python => {
                let modules = build.join("languages/redis_py");
                installed(modules.join("redis"), "redis-py");
                let mut command = Command::new("python3");
                command.env("PYTHONPATH", modules).arg(scripts.join("redis_py.py"));
                command
            }
            Self::Node => {
                let modules = build.join("languages/redlock/node_modules");
                installed(modules.join("redlock"), "node-redlock");
                installed(modules.join("ioredis"), "ioredis");
                let mut command = Command::new("node");
                command.arg(scripts.join("redlock.mjs")).arg(modules);
                command
            }
        }
    }
}

/// A program in another language that has one lock, on [`KEY`].
struct Foreign {
    process: Process,
    requests: Cell<u32>,
}

impl Foreign {
    async fn start(language: Language, server: &RedisServer) -> Self {
        let mut command = language.command();
        command.arg(server.port().to_string()).arg(KEY);
        let process = Process::spawn_talking(&mut command).unwrap_or_else(|error| {
            let program = command.get_program().display();
            match error.kind() {
                ErrorKind::NotFound => {
                    panic!("{program} is not installed: run tests/run.sh, which installs it")
                }
                _ => panic!("{program} could not be started: {error}"),
            }
        });
        process.wait_for_line("ready").await;
        Self { process, requests: Cell::default() }
    }

    /// Tells it to do something; the answer is awaited with the number returned.
    fn ask(&self, request: &str) -> u32 {
        let number = self.requests.get() + 1;
        self.requests.set(number);
        self.process.say(&format!("#{number} {request}"));
        number
    }

    async fn answer(&self, number: u32) -> String {
        let number = format!("#{number} ");
        let line = self.process.wait_for_line(&number).await;
        line.strip_prefix(&number).expect("an answer begins with its number").to_owned()
    }

    /// Its token, or `None` if it was refused; it does not wait.
    async fn try_acquire(&self, ttl: Duration) -> Option<String> {
        let answer = self.answer(self.ask(&format!("try {}", ttl.as_millis()))).await;
        (answer != "refused").then(|| token(&answer))
    }

    async fn acquire(&self, ttl: Duration) -> String {
        self.try_acquire(ttl).await.expect("the key is free")
    }

    async fn release(&self) -> String {
        self.answer(self.ask("release")).await
    }
}

fn token(answer: &str) -> String {
    answer.strip_prefix("held ").unwrap_or_else(|| panic!("{answer:?}")).to_owned()
}

struct Both {
    server: RedisServer,
    locks: LockManager,
    foreign: Foreign,
    monitor: Monitor,
}

async fn both(language: Language) -> Both {
    let server = RedisServer::start().await;
    let locks = LockManager::connect(&server.url()).await.unwrap();
    let foreign = Foreign::start(language, &server).await;
    let monitor = Monitor::attach(&server);
    Both { server, locks, foreign, monitor }
}

impl Both {
    async fn assert_value(&self, expected: Option<&str>) {
        assert_eq!(self.server.get(KEY).await.as_deref(), expected);
    }

    /// Asserts that a holder has lost neither its token nor its time.
    async fn assert_undisturbed(&self, token: &str) {
        self.assert_value(Some(token)).await;
        let left = self.server.pttl(KEY).await;
        assert!(left > 10_000, "{left} ms are left");
    }

    async fn wait_for_expiry(&self) {
        eventually("the key expires", PATIENCE, async || !self.server.exists(KEY).await).await;
    }
}

/// Whether a command on the wire is an attempt at the key: a script with that token, or a `SET` with it.
fn tries(command: &Executed, token: &str) -> bool {
    let named = |name| command.is(name);
    !command.in_script()
        && (named("SET") || named("EVAL") || named("EVALSHA"))
        && command.args.iter().any(|argument| argument == token)
}

fn deletes(command: &Executed) -> bool {
    command.is("DEL") && command.args[1] == KEY
}

async fn theirs_keeps_ours_out(language: Language) {
    let both = both(language).await;
    let token = both.foreign.acquire(LONG).await;
    both.assert_value(Some(&token)).await;

    let error = Call::begin(&both.locks, LONG, Duration::ZERO).refused().await;
    assert!(error.is_busy(), "{error}");
    let wait = Duration::from_millis(50);
    let error = Call::begin(&both.locks, LONG, wait).refused().await;
    let LockError::Busy { waited, .. } = error else { panic!("{error}") };
    assert!(waited >= wait, "{waited:?}");

    both.assert_undisturbed(&token).await;
    assert_eq!(both.foreign.release().await, "released");
    both.assert_value(None).await;
    let mut ours = Call::begin(&both.locks, LONG, Duration::ZERO);
    ours.runs().await;
    ours.end().await;
}

async fn ours_keeps_theirs_out(language: Language) {
    let both = both(language).await;
    let mut ours = Call::begin(&both.locks, LONG, Duration::ZERO);
    let (token, _) = ours.runs().await;
    both.assert_value(Some(&token)).await;

    assert_eq!(both.foreign.try_acquire(LONG).await, None);

    both.assert_undisturbed(&token).await;
    ours.end().await;
    both.assert_value(None).await;
    both.foreign.acquire(LONG).await;
}

async fn their_release_wakes_ours(language: Language) {
    let both = both(language).await;
    let theirs = both.foreign.acquire(LONG).await;
    both.monitor.settled().await;
    drop(both.monitor.take());
    let mut ours = Call::begin(&both.locks, LONG, Duration::from_secs(20));
    // It sleeps once it has asked with the script: what happens behind that in the server, it is told.
    both.monitor.wait_for(|seen| !seen.in_script() && (seen.is("EVAL") || seen.is("EVALSHA"))).await;
    both.monitor.settled().await;
    assert!(ours.started.is_empty(), "nobody has released yet");
    both.assert_undisturbed(&theirs).await;

    let release = both.foreign.ask("release");
    let ((), freed) =
        tokio::join!(async { assert_eq!(both.foreign.answer(release).await, "released") }, async {
            both.monitor.wait_for(deletes).await;
            Instant::now()
        });
    let (token, began) = ours.runs().await;

    let took = began.saturating_duration_since(freed);
    assert!(took < SLACK, "{took:?} after their release");
    both.assert_undisturbed(&token).await;
    // Not by luck of polling: it asked once when it was woken, and not at all while it slept.
    let seen = both.monitor.settled().await;
    let freed = seen.iter().position(deletes).expect("they released");
    let (before, after) = seen.split_at(freed);
    let ours_in = |seen: &[Executed]| seen.iter().filter(|command| tries(command, &token)).count();
    assert_eq!((ours_in(before), ours_in(after)), (2, 1), "{seen:#?}");
    ours.end().await;
    both.assert_value(None).await;
}

async fn our_release_lets_theirs_in(language: Language) {
    let both = both(language).await;
    let mut ours = Call::begin(&both.locks, LONG, Duration::ZERO);
    let (token_of_ours, _) = ours.runs().await;
    both.monitor.settled().await;
    drop(both.monitor.take());
    let waiting = both.foreign.ask(&format!("wait {}", LONG.as_millis()));
    // Its first attempt, at the least, is refused.
    both.monitor.wait_for(|seen| !seen.in_script() && seen.args.iter().any(|argument| argument == KEY)).await;
    both.monitor.settled().await;
    both.assert_undisturbed(&token_of_ours).await;

    ours.end().await;
    let theirs = token(&both.foreign.answer(waiting).await);

    both.assert_undisturbed(&theirs).await;
    let seen = both.monitor.settled().await;
    let freed = seen.iter().position(deletes).expect("ours was released");
    let (before, after) = seen.split_at(freed);
    let theirs_in = |seen: &[Executed]| seen.iter().filter(|command| tries(command, &theirs)).count();
    assert!(theirs_in(before) >= 1, "{seen:#?}");
    assert_eq!(theirs_in(after), 1, "the first attempt behind our release has the lock: {seen:#?}");
    let error = Call::begin(&both.locks, LONG, Duration::ZERO).refused().await;
    assert!(error.is_busy(), "{error}");
    assert_eq!(both.foreign.release().await, "released");
}

async fn their_late_release_leaves_ours_alone(language: Language) {
    let both = both(language).await;
    both.foreign.acquire(SHORT).await;
    both.wait_for_expiry().await;
    let mut ours = Call::begin(&both.locks, LONG, Duration::ZERO);
    let (token, _) = ours.runs().await;

    assert_eq!(both.foreign.release().await, "not-owned");

    both.assert_undisturbed(&token).await;
    assert_eq!(both.foreign.try_acquire(LONG).await, None);
    ours.end().await;
    both.assert_value(None).await;
}

async fn our_late_release_leaves_theirs_alone(language: Language) {
    let both = both(language).await;
    let mut ours = Call::begin(&both.locks, SHORT, Duration::ZERO);
    ours.runs().await;
    both.wait_for_expiry().await;
    let token = both.foreign.acquire(LONG).await;

    ours.end().await;

    both.assert_undisturbed(&token).await;
    let error = Call::begin(&both.locks, LONG, Duration::ZERO).refused().await;
    assert!(error.is_busy(), "{error}");
    assert_eq!(both.foreign.release().await, "released", "their key was still there, with their token");
    both.assert_value(None).await;
}

macro_rules! histories {
    ($($module:ident: $language:ident),*) => {$(
        mod $module {
            use super::Language;

            histories!(
                $language:
                theirs_keeps_ours_out
                ours_keeps_theirs_out
                their_release_wakes_ours
                our_release_lets_theirs_in
                their_late_release_leaves_ours_alone
                our_late_release_leaves_theirs_alone
            );
        }
    )*};
    ($language:ident: $($history:ident)*) => {$(
        #[tokio::test]
        async fn $history() {
            super::$history(Language::$language).await;
        }
    )*};
}

histories!(redis_py: Python, node_redlock: Node);
