//! What a server executed, seen through `MONITOR`.

use std::fmt;
use std::io::{BufRead, BufReader, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{self, JoinHandle};

use crate::PATIENCE;
use crate::feed::Feed;
use crate::server::{self, RedisServer};

const MARKER: &str = "harness-marker-";

/// One command that the server executed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Executed {
    /// The number of the database.
    pub db: u32,
    /// `address:port` of the client, or `lua` for a command inside a script.
    pub client: String,
    /// The command and its arguments; bytes that are no UTF-8 are replaced.
    pub args: Vec<String>,
}

impl Executed {
    /// Whether a script ran it, so that it never was on the wire.
    #[must_use]
    pub fn in_script(&self) -> bool {
        self.client == "lua"
    }

    /// Whether it is this command, in any case of its letters.
    #[must_use]
    pub fn is(&self, name: &str) -> bool {
        self.args.first().is_some_and(|first| first.eq_ignore_ascii_case(name))
    }
}

impl fmt::Display for Executed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.args.join(" "))
    }
}

/// A running `MONITOR`.
///
/// The server does not show `AUTH`, and shows `HELLO` without its secrets.
pub struct Monitor {
    server: u16,
    login: Option<server::Login>,
    stream: TcpStream,
    executed: Arc<Feed<Executed>>,
    markers: Arc<Feed<String>>,
    thread: Option<JoinHandle<()>>,
}

impl Monitor {
    /// Starts monitoring; everything executed from now on is seen, until the server dies.
    ///
    /// # Panics
    ///
    /// If the server does not allow it.
    #[must_use]
    pub fn attach(server: &RedisServer) -> Self {
        let fail =
            |error: &dyn fmt::Display| -> ! { panic!("MONITOR on the test's redis-server failed: {error}") };
        let (port, login) = (server.port(), server.login());
        let mut stream = server::open(port, login.as_ref()).unwrap_or_else(|error| fail(&error));
        stream.write_all(b"MONITOR\r\n").unwrap_or_else(|error| fail(&error));
        let mut reader = BufReader::new(stream.try_clone().unwrap_or_else(|error| fail(&error)));
        let mut answer = String::new();
        reader.read_line(&mut answer).unwrap_or_else(|error| fail(&error));
        if answer.trim_end() != "+OK" {
            fail(&answer);
        }
        // From now on silence is no failure.
        stream.set_read_timeout(None).unwrap_or_else(|error| fail(&error));

        let executed = Arc::<Feed<Executed>>::default();
        let markers = Arc::<Feed<String>>::default();
        let thread = {
            let (executed, markers) = (Arc::clone(&executed), Arc::clone(&markers));
            thread::spawn(move || {
                for line in reader.split(b'\n').map_while(Result::ok) {
                    match parse(&line) {
                        Some(command) if command.args.last().is_some_and(|last| last.starts_with(MARKER)) => {
                            markers.push(command.args.concat());
                        }
                        Some(command) => executed.push(command),
                        None => {}
                    }
                }
            })
        };
        Self { server: port, login, stream, executed, markers, thread: Some(thread) }
    }

    /// What was executed so far; commands that were sent a moment ago may be missing.
    #[must_use]
    pub fn seen(&self) -> Vec<Executed> {
        self.executed.list()
    }

    /// As [`seen`](Self::seen), and forgets it.
    #[must_use = "to forget what was seen, drop it"]
    pub fn take(&self) -> Vec<Executed> {
        self.executed.take()
    }

    /// Waits until everything has been seen that was sent before this call, and returns what was seen.
    ///
    /// # Panics
    ///
    /// If the server does not answer within [`PATIENCE`].
    pub async fn settled(&self) -> Vec<Executed> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        // Twice: in one turn of its loop the server reads its connections in any order, so a request that is
        // unanswered yet may be executed behind the first marker, but not behind one that was sent after its reply.
        for _ in 0..2 {
            let marker = format!("{MARKER}{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
            let (port, login, args) = (self.server, self.login.clone(), ["ECHO".to_owned(), marker.clone()]);
            server::blocking(move || server::exchange(port, login.as_ref(), &args))
                .await
                .unwrap_or_else(|error| panic!("the monitored server does not answer: {error}"));
            self.markers
                .find(PATIENCE, |seen| seen.ends_with(&marker))
                .await
                .unwrap_or_else(|| panic!("MONITOR shows nothing any more: was the server restarted?"));
        }
        self.seen()
    }

    /// As [`settled`](Self::settled), without what scripts executed: what was on the wire.
    ///
    /// # Panics
    ///
    /// As [`settled`](Self::settled).
    pub async fn wire(&self) -> Vec<Executed> {
        let mut seen = self.settled().await;
        seen.retain(|command| !command.in_script());
        seen
    }

    /// Waits for a command for which `wanted` holds, seen already or to come.
    ///
    /// # Panics
    ///
    /// If none comes within [`PATIENCE`].
    pub async fn wait_for(&self, wanted: impl FnMut(&Executed) -> bool) -> Executed {
        self.executed
            .find(PATIENCE, wanted)
            .await
            .unwrap_or_else(|| panic!("not seen within {PATIENCE:?}, but {:#?}", self.seen()))
    }
}

impl Drop for Monitor {
    fn drop(&mut self) {
        // Fails where the server is gone, and then the thread has ended.
        self.stream.shutdown(Shutdown::Both).ok();
        self.thread.take().map(JoinHandle::join);
    }
}

// `+1339518083.107412 [0 127.0.0.1:60866] "keys" "*"`
fn parse(line: &[u8]) -> Option<Executed> {
    let open = line.iter().position(|&byte| byte == b'[')?;
    let close = open + line[open..].iter().position(|&byte| byte == b']')?;
    let (db, client) = std::str::from_utf8(&line[open + 1..close]).ok()?.split_once(' ')?;
    Some(Executed { db: db.parse().ok()?, client: client.into(), args: arguments(&line[close + 1..]) })
}

fn arguments(bytes: &[u8]) -> Vec<String> {
    let mut args = Vec::new();
    let mut current: Option<Vec<u8>> = None;
    let mut rest = bytes.iter().copied();
    while let Some(byte) = rest.next() {
        match (&mut current, byte) {
            (None, b'"') => current = Some(Vec::new()),
            (None, _) => {}
            (Some(_), b'"') => {
                args.extend(current.take().map(|arg| String::from_utf8_lossy(&arg).into_owned()));
            }
            (Some(arg), b'\\') => arg.push(match rest.next() {
                Some(b'n') => b'\n',
                Some(b'r') => b'\r',
                Some(b't') => b'\t',
                Some(b'a') => 7,
                Some(b'b') => 8,
                Some(b'x') => hex(rest.next()) << 4 | hex(rest.next()),
                other => other.unwrap_or(b'\\'),
            }),
            (Some(arg), byte) => arg.push(byte),
        }
    }
    args
}

fn hex(digit: Option<u8>) -> u8 {
    let value = digit.and_then(|digit| char::from(digit).to_digit(16)).unwrap_or(0);
    u8::try_from(value).expect("a hexadecimal digit is below 16")
}
