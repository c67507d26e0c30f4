//! What goes wrong, and when: fixed by the seed alone.

use std::fmt;
use std::time::Duration;

use crate::CHILDREN;
use crate::random::Random;

/// Whose way to the server is disturbed.
#[derive(Clone, Copy)]
pub(crate) enum Whose {
    One(usize),
    Everyone,
}

/// Something that goes wrong, and what it takes until it is over.
pub(crate) enum Fault {
    /// The server is stopped (SIGSTOP), and executes later what was sent meanwhile.
    PauseServer(Duration),
    /// The server reads, and lets every client wait (CLIENT PAUSE).
    PauseClients(Duration),
    /// The server is killed (kill -9), and is down for this long.
    RestartServer(Duration),
    /// The server closes all connections.
    CloseConnections,
    /// The server forgets its scripts.
    ForgetScripts,
    /// A child is stopped (SIGSTOP) for longer than any lease.
    PauseChild(usize, Duration),
    /// A child is killed (kill -9), and another one takes its place.
    ReplaceChild(usize),
    /// So many connections are cut before the request went through.
    CutRequests(Whose, u64),
    /// So many connections are cut after the request went through.
    CutReplies(Whose, u64),
    /// Requests take this long, and arrive although their client has hung up meanwhile.
    DelayRequests(Whose, Duration, Duration),
    /// Replies take this long.
    DelayReplies(Whose, Duration, Duration),
    /// The server hears, and nothing comes back.
    DropReplies(Whose, Duration),
    /// Nothing goes either way, on new connections neither; what was sent on them is lost.
    BlackHole(Whose, Duration),
}

/// The longest that replies and requests take, in milliseconds.
pub(crate) const LONGEST_DELAY: u64 = 1_500;

/// One of each kind, longer or shorter, for one or for all.
const MAKERS: [fn(&mut Random) -> Fault; 13] = [
    |random| Fault::PauseServer(random.millis(300, 1_500)),
    |random| Fault::PauseClients(random.millis(300, 1_500)),
    |random| Fault::RestartServer(random.millis(0, 800)),
    |_| Fault::CloseConnections,
    |_| Fault::ForgetScripts,
    |random| Fault::PauseChild(a_child(random), random.millis(1_100, 1_800)),
    |random| Fault::ReplaceChild(a_child(random)),
    |random| Fault::CutRequests(whose(random), 1 + random.below(12)),
    |random| Fault::CutReplies(whose(random), 1 + random.below(12)),
    |random| Fault::DelayRequests(whose(random), delay(random), random.millis(500, 1_500)),
    |random| Fault::DelayReplies(whose(random), delay(random), random.millis(500, 1_500)),
    |random| Fault::DropReplies(whose(random), random.millis(300, 1_500)),
    |random| Fault::BlackHole(whose(random), random.millis(300, 1_500)),
];

fn a_child(random: &mut Random) -> usize {
    random.index(CHILDREN)
}

fn whose(random: &mut Random) -> Whose {
    if random.one_in(3) { Whose::Everyone } else { Whose::One(a_child(random)) }
}

/// From less than a ttl, within the response timeout, to more than the longest ttl.
fn delay(random: &mut Random) -> Duration {
    if random.one_in(2) { random.millis(100, 480) } else { random.millis(480, LONGEST_DELAY) }
}

impl Fault {
    /// What its kind is called in the report.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Self::PauseServer(_) => "server paused",
            Self::PauseClients(_) => "clients paused",
            Self::RestartServer(_) => "server killed and restarted",
            Self::CloseConnections => "connections closed by the server",
            Self::ForgetScripts => "scripts forgotten",
            Self::PauseChild(..) => "process paused",
            Self::ReplaceChild(_) => "process killed and replaced",
            Self::CutRequests(..) => "connections cut before the request",
            Self::CutReplies(..) => "connections cut after the request",
            Self::DelayRequests(..) => "requests delayed",
            Self::DelayReplies(..) => "replies delayed",
            Self::DropReplies(..) => "replies dropped",
            Self::BlackHole(..) => "black hole",
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.kind())?;
        match self {
            Self::PauseServer(time) | Self::PauseClients(time) | Self::RestartServer(time) => {
                write!(f, ", for {time:?}")
            }
            Self::CloseConnections | Self::ForgetScripts => Ok(()),
            Self::PauseChild(child, time) => write!(f, ", {}, for {time:?}", Whose::One(*child)),
            Self::ReplaceChild(child) => write!(f, ", {}", Whose::One(*child)),
            Self::CutRequests(whose, times) | Self::CutReplies(whose, times) => {
                write!(f, ", {whose}, {times} times each")
            }
            Self::DelayRequests(whose, delay, time) | Self::DelayReplies(whose, delay, time) => {
                write!(f, ", {whose}, by {delay:?}, for {time:?}")
            }
            Self::DropReplies(whose, time) | Self::BlackHole(whose, time) => {
                write!(f, ", {whose}, for {time:?}")
            }
        }
    }
}

impl fmt::Display for Whose {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::One(child) => write!(f, "process {child}"),
            Self::Everyone => write!(f, "all processes"),
        }
    }
}

/// The faults of a run of this length, each with the time at which it begins: one every two to five seconds, and of
/// each kind one before any comes again.
pub(crate) fn schedule(seed: u64, length: Duration) -> Vec<(Duration, Fault)> {
    let mut random = Random::new(seed, 0);
    let (mut at, mut makers, mut faults) = (Duration::ZERO, Vec::new(), Vec::new());
    loop {
        at += random.millis(2_000, 5_000);
        if at >= length {
            return faults;
        }
        if makers.is_empty() {
            makers = MAKERS.to_vec();
            random.shuffle(&mut makers);
        }
        faults.extend(makers.pop().map(|maker| (at, maker(&mut random))));
    }
}
