//! A `redis-server` of one's own.

use std::env;
use std::ffi::OsString;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpStream};
use std::panic::resume_unwind;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::{Arc, LazyLock, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, FromRedisValue, RedisResult, Value};
use tempfile::TempDir;

use crate::process::Process;
use crate::{PATIENCE, free_port, lock, temp_dir};

/// A running `redis-server` on a free port of the loopback interface, in an empty directory of its own.
///
/// It persists nothing, unless [`start_aof`](Self::start_aof) made it. Dropping it kills the process and deletes the
/// directory. The environment variable `REDIS_SERVER_BIN` names another binary than `redis-server`.
///
/// The functions that look at keys ([`get`](Self::get), [`pttl`](Self::pttl), …) open a bare connection for
/// each command, so they need no runtime to be alive from one call to the next, they send nothing else, and they
/// see the server as it is now even if it was restarted.
pub struct RedisServer {
    inner: Arc<Inner>,
}

struct Inner {
    port: u16,
    args: Vec<String>,
    keeps_data: bool,
    dir: TempDir,
    process: Mutex<Option<Process>>,
    login: Mutex<Option<Login>>,
}

#[derive(Clone)]
pub(crate) struct Login {
    user: String,
    password: String,
}

enum Failure {
    /// Something else took the port between our looking and the server's binding.
    PortTaken,
    Other(String),
}

impl RedisServer {
    /// A server that persists nothing.
    ///
    /// # Panics
    ///
    /// If `redis-server` is not installed, or not ready within [`PATIENCE`].
    pub async fn start() -> Self {
        Self::start_with(&[]).await
    }

    /// A server that persists nothing, for a program that measures.
    ///
    /// The other ways to start one keep this process' [events awake](crate::events::keep_awake), and a lock that
    /// reports to somebody is not as fast as one that reports to nobody.
    ///
    /// # Panics
    ///
    /// As [`start`](Self::start).
    pub async fn start_to_measure() -> Self {
        Self::launch(&[], false).await
    }

    /// As [`start`](Self::start), with more arguments for `redis-server`; they win over the harness' own.
    ///
    /// # Panics
    ///
    /// As [`start`](Self::start), and if the server refuses an argument.
    pub async fn start_with(args: &[&str]) -> Self {
        crate::events::keep_awake();
        Self::launch(args, false).await
    }

    /// A server that has every acknowledged write on disk, and keeps its directory over restarts.
    ///
    /// # Panics
    ///
    /// As [`start`](Self::start).
    pub async fn start_aof() -> Self {
        crate::events::keep_awake();
        Self::launch(&["--appendonly", "yes", "--appendfsync", "always"], true).await
    }

    async fn launch(args: &[&str], keeps_data: bool) -> Self {
        let args: Vec<String> = args.iter().map(ToString::to_string).collect();
        let inner = blocking(move || {
            for _ in 0..10 {
                let inner = Inner {
                    port: free_port(),
                    args: args.clone(),
                    keeps_data,
                    dir: temp_dir(),
                    process: Mutex::default(),
                    login: Mutex::default(),
                };
                match inner.run(Instant::now() + PATIENCE) {
                    Ok(()) => return inner,
                    Err(Failure::PortTaken) => {}
                    Err(Failure::Other(why)) => panic!("{why}"),
                }
            }
            panic!("redis-server found ten ports taken that had just been free");
        });
        Self { inner: Arc::new(inner.await) }
    }

    /// The port it listens on, the same after a restart.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.inner.port
    }

    /// The process id, or `None` while it is killed.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        lock(&self.inner.process).as_ref().map(Process::id)
    }

    /// `redis://127.0.0.1:PORT`.
    #[must_use]
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port())
    }

    /// The URL with a user and a password, percent-encoded.
    #[must_use]
    pub fn url_with(&self, user: &str, password: &str) -> String {
        format!("redis://{}:{}@127.0.0.1:{}", encoded(user), encoded(password), self.port())
    }

    /// Makes the harness' own commands log in, once the server wants that; it does not change the server.
    pub fn log_in_as(&self, user: &str, password: &str) {
        *lock(&self.inner.login) = Some(Login { user: user.into(), password: password.into() });
    }

    /// A client of the `redis` crate.
    ///
    /// # Panics
    ///
    /// Never: the URL is our own.
    #[must_use]
    pub fn client(&self) -> Client {
        let url = match &*lock(&self.inner.login) {
            Some(login) => self.url_with(&login.user, &login.password),
            None => self.url(),
        };
        Client::open(url).expect("the harness' own URL is valid")
    }

    /// A new connection of the `redis` crate, patient with a busy machine.
    ///
    /// # Panics
    ///
    /// If the server takes none.
    pub async fn connection(&self) -> MultiplexedConnection {
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(PATIENCE))
            .set_response_timeout(Some(PATIENCE));
        self.client()
            .get_multiplexed_async_connection_with_config(&config)
            .await
            .unwrap_or_else(|error| panic!("no connection to the test's redis-server: {error}"))
    }

    /// Stops the server as a hang does (SIGSTOP): connections stay, nothing is answered.
    ///
    /// # Panics
    ///
    /// If it is not running.
    pub fn pause(&self) {
        self.with_process(Process::pause);
    }

    /// Continues a paused server (SIGCONT); it then executes what has arrived meanwhile.
    ///
    /// # Panics
    ///
    /// If it is not running.
    pub fn resume(&self) {
        self.with_process(Process::resume);
    }

    fn with_process(&self, action: impl FnOnce(&Process)) {
        action(
            lock(&self.inner.process).as_ref().expect("the test's redis-server was killed: restart it first"),
        );
    }

    /// Kills the server (kill -9) and reaps it. Its port is then refused, until [`restart`](Self::restart).
    pub async fn kill(&self) {
        let inner = Arc::clone(&self.inner);
        blocking(move || drop(lock(&inner.process).take())).await;
    }

    /// Kills the server if it runs, and starts it again on its port with its arguments.
    ///
    /// It is empty then, unless it was made by [`start_aof`](Self::start_aof).
    ///
    /// # Panics
    ///
    /// If it is not ready within [`PATIENCE`].
    pub async fn restart(&self) {
        self.kill().await;
        let inner = Arc::clone(&self.inner);
        blocking(move || {
            let deadline = Instant::now() + PATIENCE;
            loop {
                match inner.run(deadline) {
                    Ok(()) => return,
                    Err(Failure::PortTaken) if Instant::now() < deadline => {
                        thread::sleep(Duration::from_millis(5));
                    }
                    Err(Failure::PortTaken) => {
                        panic!("port {} was taken while its server was down", inner.port)
                    }
                    Err(Failure::Other(why)) => panic!("{why}"),
                }
            }
        })
        .await;
    }

    /// Sends one command over a connection of its own.
    ///
    /// # Errors
    ///
    /// If the server refuses it, or does not answer within [`PATIENCE`].
    pub async fn try_call<T: FromRedisValue>(&self, args: &[&str]) -> RedisResult<T> {
        let port = self.port();
        let login = lock(&self.inner.login).clone();
        let args: Vec<String> = args.iter().map(ToString::to_string).collect();
        let value = blocking(move || exchange(port, login.as_ref(), &args)).await?;
        Ok(redis::from_redis_value(value)?)
    }

    /// Sends one command over a connection of its own.
    ///
    /// # Panics
    ///
    /// If the server refuses it, or does not answer within [`PATIENCE`].
    pub async fn call<T: FromRedisValue>(&self, args: &[&str]) -> T {
        self.try_call(args)
            .await
            .unwrap_or_else(|error| panic!("the test's own command {args:?} failed: {error}"))
    }

    /// `GET`
    pub async fn get(&self, key: &str) -> Option<String> {
        self.call(&["GET", key]).await
    }

    /// `SET`
    pub async fn set(&self, key: &str, value: &str) {
        self.call::<()>(&["SET", key, value]).await;
    }

    /// `SET … PX`, in milliseconds.
    pub async fn set_px(&self, key: &str, value: &str, milliseconds: u64) {
        self.call::<()>(&["SET", key, value, "PX", &milliseconds.to_string()]).await;
    }

    /// `DEL`: whether the key was there.
    pub async fn del(&self, key: &str) -> bool {
        self.call(&["DEL", key]).await
    }

    /// `EXISTS`
    pub async fn exists(&self, key: &str) -> bool {
        self.call(&["EXISTS", key]).await
    }

    /// `PTTL` in milliseconds; -1 for a key that never expires, -2 for none.
    pub async fn pttl(&self, key: &str) -> i64 {
        self.call(&["PTTL", key]).await
    }

    /// `KEYS`, sorted.
    pub async fn keys(&self, pattern: &str) -> Vec<String> {
        let mut keys: Vec<String> = self.call(&["KEYS", pattern]).await;
        keys.sort();
        keys
    }

    /// `FLUSHALL`
    pub async fn flush(&self) {
        self.call::<()>(&["FLUSHALL"]).await;
    }

    /// `SCRIPT FLUSH`: every EVALSHA is answered NOSCRIPT then.
    pub async fn script_flush(&self) {
        self.call::<()>(&["SCRIPT", "FLUSH"]).await;
    }

    /// `CONFIG SET`
    pub async fn config_set(&self, name: &str, value: &str) {
        self.call::<()>(&["CONFIG", "SET", name, value]).await;
    }

    /// How many ordinary connections the server has, monitors too, the one that asks left out.
    pub async fn connections(&self) -> usize {
        let list: String = self.call(&["CLIENT", "LIST", "TYPE", "NORMAL"]).await;
        list.lines().count() - 1
    }

    /// `CLIENT KILL` of every ordinary connection, monitors too; how many there were.
    pub async fn kill_connections(&self) -> usize {
        self.call(&["CLIENT", "KILL", "TYPE", "NORMAL", "SKIPME", "YES"]).await
    }

    pub(crate) fn login(&self) -> Option<Login> {
        lock(&self.inner.login).clone()
    }
}

impl Inner {
    // Starts the process and waits until it answers.
    fn run(&self, deadline: Instant) -> Result<(), Failure> {
        let data = self.dir.path().join("data");
        let log = self.dir.path().join("log");
        let prepared = (|| {
            if !self.keeps_data && data.exists() {
                fs::remove_dir_all(&data)?;
            }
            fs::create_dir_all(&data)?;
            let output = File::create(&log)?;
            // Errors in its arguments go to the one, all else to the other.
            Ok::<_, std::io::Error>((output.try_clone()?, output))
        })();
        let (errors, output) = prepared.expect("the server's own temporary directory can be written");

        let mut command = Command::new(binary());
        command
            .args(["--port", &self.port.to_string(), "--bind", "127.0.0.1"])
            .args(["--save", "", "--appendonly", "no", "--dir"])
            .arg(&data);
        if *TAKES_DEBUG_OPTION {
            command.args(["--enable-debug-command", "local"]);
        }
        command.args(&self.args).stdin(Stdio::null()).stderr(errors).stdout(output);
        let process = Process::spawn(&mut command).unwrap_or_else(|error| cannot_start(&error));

        while !self.answers(process.id()) {
            let status = process.ended();
            if status.is_none() && Instant::now() < deadline {
                thread::sleep(Duration::from_millis(2));
                continue;
            }
            let log = fs::read_to_string(&log).unwrap_or_default();
            if log.contains("ddress already in use") {
                return Err(Failure::PortTaken);
            }
            let state =
                status.map_or_else(|| "was not ready in time".into(), |status| format!("ended ({status})"));
            return Err(Failure::Other(format!(
                "redis-server on port {} {state}; arguments: {:?}; it said:\n{log}",
                self.port, self.args
            )));
        }
        *lock(&self.process) = Some(process);
        Ok(())
    }

    // Whether this very process answers: the one that answers may be another that was quicker to take the port.
    fn answers(&self, pid: u32) -> bool {
        let args = |args: &[&str]| args.iter().map(ToString::to_string).collect::<Vec<_>>();
        let login = lock(&self.login).clone();
        match exchange(self.port, login.as_ref(), &args(&["PING"])) {
            Ok(_) => {}
            // It is up, and wants a password that we do not have: then we cannot ask whose process it is.
            Err(error) => return matches!(error.code(), Some("NOAUTH" | "NOPERM" | "WRONGPASS")),
        }
        let info = exchange(self.port, login.as_ref(), &args(&["INFO", "server"]));
        let info: String = info.and_then(|value| Ok(redis::from_redis_value(value)?)).unwrap_or_default();
        info.lines().any(|line| line.trim_end() == format!("process_id:{pid}"))
    }
}

/// Opens a connection, logs in if there is a login, sends one command and reads one reply.
pub(crate) fn exchange(port: u16, login: Option<&Login>, args: &[String]) -> RedisResult<Value> {
    let mut stream = open(port, login)?;
    let value = ask(&mut stream, args)?;
    // Until the server has closed too, so that it does not count this connection when it is asked next. It may have
    // been told to die, and then errors are no news.
    stream.shutdown(Shutdown::Write).ok();
    stream.read_to_end(&mut Vec::new()).ok();
    Ok(value)
}

/// A bare connection that is logged in.
pub(crate) fn open(port: u16, login: Option<&Login>) -> RedisResult<TcpStream> {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let mut stream = TcpStream::connect_timeout(&address, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_nodelay(true)?;
    if let Some(Login { user, password }) = login {
        ask(&mut stream, &["AUTH".into(), user.clone(), password.clone()])?;
    }
    Ok(stream)
}

fn ask(stream: &mut TcpStream, args: &[String]) -> RedisResult<Value> {
    let mut command = redis::Cmd::new();
    command.arg(args);
    stream.write_all(&command.get_packed_command())?;
    redis::Parser::new().parse_value(stream)?.extract_error()
}

// The file that is run. Left as it is named: Debian's redis-server is a link to a program that looks at its own name.
fn binary() -> OsString {
    env::var_os("REDIS_SERVER_BIN").unwrap_or_else(|| "redis-server".into())
}

// Redis 7.0 made DEBUG an opt-in, and servers before it refuse the option.
static TAKES_DEBUG_OPTION: LazyLock<bool> = LazyLock::new(|| {
    let output =
        Command::new(binary()).arg("--version").output().unwrap_or_else(|error| cannot_start(&error));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let major = text.split_once("v=").and_then(|(_, version)| version.split('.').next()?.parse::<u32>().ok());
    major.is_none_or(|major| major >= 7)
});

fn cannot_start(error: &std::io::Error) -> ! {
    match env::var_os("REDIS_SERVER_BIN") {
        Some(named) => {
            panic!(
                "REDIS_SERVER_BIN names {}, which cannot be started: {error}",
                PathBuf::from(named).display()
            )
        }
        None if error.kind() == ErrorKind::NotFound => {
            panic!("redis-server is not installed: run tests/run.sh, or apt-get install redis-server")
        }
        None => panic!("redis-server cannot be started: {error}"),
    }
}

// Off the runtime's own threads: there may be only one, with its clock paused, and other tasks to run meanwhile.
pub(crate) async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match tokio::task::spawn_blocking(work).await {
        Ok(output) => output,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => resume_unwind(panic),
            Err(error) => panic!("the runtime of the test ended: {error}"),
        },
    }
}

fn encoded(text: &str) -> String {
    text.bytes().fold(String::new(), |mut out, byte| {
        if byte.is_ascii_alphanumeric() {
            out.push(char::from(byte));
        } else {
            write!(out, "%{byte:02X}").expect("writing to a String does not fail");
        }
        out
    })
}
