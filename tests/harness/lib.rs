//! The harness that the tests against real servers share.
//!
//! - [`server`]: a `redis-server` of one's own, that can be paused, killed and restarted
//! - [`proxy`]: a TCP proxy in front of it, that delays, drops, cuts and forges
//! - [`monitor`]: what the server executed
//! - [`events`]: what was reported through `tracing`
//! - [`history`]: who was in a critical section when, and whether two were there at once
//! - [`poll`]: futures that are dropped half-way
//! - [`calls`]: calls of annotated functions without a server
//! - [`measure`]: medians, ratios and tables
//! - [`process`]: child processes that are paused and killed
//! - [`clock`]: time that passes even where tokio's clock is paused
//!
//! Nothing here waits for a fixed time: every wait ends with what it waits for, and has a deadline at which it
//! panics and says what was seen instead. Everything that is started is stopped by its `Drop`, on panic too.

use std::fmt::Display;
use std::net::{Ipv4Addr, TcpListener};
use std::ops::Range;
use std::os::fd::AsFd;
use std::panic::Location;
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

pub use tempfile::TempDir;

pub mod calls;
pub mod clock;
pub mod events;
mod feed;
pub mod history;
pub mod measure;
pub mod monitor;
pub mod poll;
pub mod process;
pub mod proxy;
mod resp;
pub mod server;

/// The examples of the README are compiled and run like those of a library's own documentation; the one in Chinese
/// has the same, as a test makes sure.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
struct Readme;

/// How long the harness waits for anything that has no deadline of its own.
///
/// Far longer than anything takes, so that only a hang meets it and a busy machine does not.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// Locks a mutex that a panicking test may have poisoned.
///
/// The harness must still stop its servers then, and its data is valid between any two statements.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A directory of its own that is deleted when it is dropped.
///
/// # Panics
///
/// If the system's folder for temporary files cannot be written.
#[must_use]
pub fn temp_dir() -> TempDir {
    tempfile::Builder::new()
        .prefix("lock-tests-")
        .tempdir()
        .expect("no temporary directory could be made: is TMPDIR writable, and is there space left?")
}

/// A TCP port of the loopback interface that nothing listens on, never given before by this process.
///
/// Other processes that use this harness get others. All lie below the range from which the system takes the source
/// ports of outgoing connections (32768 and up on Linux): a port from that range could be taken while a server is
/// down between kill and restart, and a client that keeps trying a dead port of that range sooner or later connects
/// to itself.
///
/// # Panics
///
/// If no port is free.
#[must_use]
pub fn free_port() -> u16 {
    static PORTS: LazyLock<Mutex<Ports>> = LazyLock::new(Mutex::default);

    let mut ports = lock(&PORTS);
    loop {
        let port = ports.next();
        if let Ok(listener) = TcpListener::bind((Ipv4Addr::LOCALHOST, port)) {
            stop_listening(&listener);
            return port;
        }
    }
}

/// The ports of this process: blocks, each of which is ours while we listen on its first port.
///
/// Without them two processes that look for a free port at the same moment would find the same, and one would take
/// the server of the other for its own.
#[derive(Default)]
struct Ports {
    claims: Vec<TcpListener>,
    left: Range<u16>,
}

impl Ports {
    const BLOCK: u16 = 200;
    const BLOCKS: u16 = 100;
    const FIRST: u16 = 10_000;

    fn next(&mut self) -> u16 {
        if let Some(port) = self.left.next() {
            return port;
        }
        for block in 0..Self::BLOCKS {
            let first = Self::FIRST + block * Self::BLOCK;
            if let Ok(claim) = TcpListener::bind((Ipv4Addr::LOCALHOST, first)) {
                self.claims.push(claim);
                self.left = first + 1..first + Self::BLOCK;
                return self.next();
            }
        }
        panic!("the ports of 127.0.0.1 from {} on are all in use", Self::FIRST);
    }
}

/// Makes a listener that is about to be closed refuse connections at once.
///
/// Closing alone does not do it while another thread starts a process: up to its `exec` that process has a copy.
pub(crate) fn stop_listening(listener: &impl AsFd) {
    // Where the system knows this only for connections, closing has to do.
    rustix::net::shutdown(listener, rustix::net::Shutdown::Both).ok();
}

/// Waits until a condition holds, asking every two milliseconds of real time.
///
/// For what announces itself to nobody (a key that vanishes, a connection that closes); where an event can be
/// awaited instead, await it.
///
/// # Panics
///
/// If the condition does not hold within the time given; the message has `what` and the caller's line.
#[track_caller]
pub fn eventually<F>(what: impl Display, within: Duration, mut condition: F) -> impl Future<Output = ()>
where
    F: AsyncFnMut() -> bool,
{
    let caller = Location::caller();
    async move {
        let deadline = Instant::now() + within;
        while !condition().await {
            assert!(Instant::now() < deadline, "{caller}: not within {within:?}: {what}");
            clock::sleep(Duration::from_millis(2)).await;
        }
    }
}
