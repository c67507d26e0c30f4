//! The server, the processes that lock on it, each behind a proxy of its own, and what is done to all of them.

use std::time::{Duration, Instant};

use tests::clock::sleep;
use tests::history::History;
use tests::process::Process;
use tests::proxy::{self, Flow, Proxy};
use tests::server::RedisServer;
use tests::{PATIENCE, TempDir, eventually};

use crate::child::{LAST_WORDS, Lock, Orders};
use crate::faults::{self, Fault, LONGEST_DELAY, Whose};
use crate::tally::Counts;
use crate::{CHILDREN, LONGEST_TTL, Options};

/// How often the children are looked at.
const LOOK: Duration = Duration::from_millis(500);
/// How often it is said that all goes on.
const NEWS: Duration = Duration::from_secs(10);
/// What a child may take to end: a call that has just begun, and a shutdown.
const LONGEST_END: Duration = Duration::from_secs(30);
/// For a busy machine.
const SLACK: Duration = Duration::from_secs(2);

/// What came of a run.
pub(crate) struct Outcome {
    pub(crate) lock: Lock,
    pub(crate) took: Duration,
    pub(crate) began: Instant,
    pub(crate) faults: Counts,
    /// What the children counted. Of one that was killed, what it had printed.
    pub(crate) counts: Counts,
    pub(crate) history: History,
}

/// A run of this length.
///
/// # Panics
///
/// If a child ended by itself or fell silent, or a key was left that has no expiry or outlived its lock.
pub(crate) async fn run(lock: Lock, options: &Options, length: Duration) -> Outcome {
    let mut fleet = Fleet::start(lock, options).await;
    for (at, fault) in faults::schedule(options.seed, length) {
        fleet.watch_until(at).await;
        if options.verbose {
            println!("{:9.3} s  {fault}", fleet.began.elapsed().as_secs_f64());
        }
        fleet.faults.add(fault.kind(), 1);
        fleet.inflict(fault).await;
        fleet.look_for_keys_without_expiry().await;
    }
    fleet.watch_until(length).await;
    fleet.end().await
}

struct Fleet {
    children: Vec<Child>,
    proxies: Vec<Proxy>,
    server: RedisServer,
    dir: TempDir,
    lock: Lock,
    seed: u64,
    started: u64,
    began: Instant,
    told: Duration,
    faults: Counts,
    /// Of children that are gone, and the requests that passed the proxies.
    counts: Counts,
}

struct Child {
    process: Process,
    lines: usize,
    heard: Instant,
}

impl Fleet {
    async fn start(lock: Lock, options: &Options) -> Self {
        let server = RedisServer::start_aof().await;
        let mut fleet = Self {
            children: Vec::new(),
            proxies: (0..CHILDREN).map(|_| Proxy::start(server.port())).collect(),
            server,
            dir: tests::temp_dir(),
            lock,
            seed: options.seed,
            started: 0,
            began: Instant::now(),
            told: Duration::ZERO,
            faults: Counts::default(),
            counts: Counts::default(),
        };
        for place in 0..CHILDREN {
            let child = fleet.start_child(place).await;
            fleet.children.push(child);
        }
        fleet.began = Instant::now();
        fleet
    }

    async fn start_child(&mut self, place: usize) -> Child {
        let orders = Orders {
            lock: self.lock,
            url: self.proxies[place].url(),
            seed: self.seed,
            number: self.started,
            file: self.file(),
        };
        self.started += 1;
        let process = orders.start();
        process.wait_for_line(Counts::MARK).await;
        Child { process, lines: 0, heard: Instant::now() }
    }

    fn file(&self) -> String {
        let path = self.dir.path().join("history");
        path.into_os_string().into_string().expect("the path of temporary files is text")
    }

    /// Sees to it that all children go on, until that time of the run.
    async fn watch_until(&mut self, at: Duration) {
        loop {
            self.children.iter_mut().for_each(|child| child.look(self.began));
            let requests = self.proxies.iter().map(|proxy| proxy.take_commands().len() as u64).sum();
            self.counts.add("requests", requests);
            let now = self.began.elapsed();
            if now >= self.told + NEWS {
                self.told = now;
                let (counts, faults) = (self.counts(), self.faults.sum());
                println!("{:5} s: {} calls, {faults} faults", now.as_secs(), counts.get("calls"));
            }
            match at.saturating_sub(now) {
                Duration::ZERO => return,
                left => sleep(left.min(LOOK)).await,
            }
        }
    }

    /// What all children have counted until now.
    fn counts(&self) -> Counts {
        let mut counts = self.counts.clone();
        self.children.iter().for_each(|child| counts.add_all(&child.counts()));
        counts
    }

    /// Does it, and undoes it when its time is over.
    async fn inflict(&mut self, fault: Fault) {
        match fault {
            Fault::PauseServer(time) => {
                self.server.pause();
                sleep(time).await;
                self.server.resume();
            }
            Fault::PauseClients(time) => {
                self.server.call::<()>(&["CLIENT", "PAUSE", &time.as_millis().to_string()]).await;
                sleep(time).await;
            }
            Fault::RestartServer(time) => {
                self.server.kill().await;
                sleep(time).await;
                self.server.restart().await;
            }
            Fault::CloseConnections => drop(self.server.kill_connections().await),
            Fault::ForgetScripts => self.server.script_flush().await,
            Fault::PauseChild(child, time) => {
                self.children[child].process.pause();
                sleep(time).await;
                self.children[child].process.resume();
            }
            Fault::ReplaceChild(place) => {
                self.children[place].process.kill();
                self.counts.add_all(&self.children[place].counts());
                self.children[place] = self.start_child(place).await;
            }
            Fault::CutRequests(whose, times) => self.cut(whose, times, &proxy::Fault::CutRequest).await,
            Fault::CutReplies(whose, times) => self.cut(whose, times, &proxy::Fault::CutReply).await,
            Fault::DelayRequests(whose, delay, time) => {
                self.proxies(whose).for_each(|proxy| proxy.requests(Flow::Delay(delay)));
                sleep(time).await;
                // What is on its way arrives all the same, behind what is sent on new connections.
                self.proxies(whose).for_each(Proxy::cut_clients);
                self.proxies(whose).for_each(Proxy::pass);
            }
            Fault::DelayReplies(whose, delay, time) => {
                self.proxies(whose).for_each(|proxy| proxy.replies(Flow::Delay(delay)));
                sleep(time).await;
                self.proxies(whose).for_each(Proxy::pass);
            }
            Fault::DropReplies(whose, time) => {
                self.proxies(whose).for_each(|proxy| proxy.replies(Flow::Hold));
                sleep(time).await;
                // With their connection: a stream never goes on behind something that is missing from it.
                self.proxies(whose).for_each(Proxy::cut);
                self.proxies(whose).for_each(Proxy::pass);
            }
            Fault::BlackHole(whose, time) => {
                self.proxies(whose).for_each(Proxy::black_hole);
                sleep(time).await;
                self.proxies(whose).for_each(Proxy::pass);
            }
        }
    }

    async fn cut(&self, whose: Whose, times: u64, how: &proxy::Fault) {
        for proxy in self.proxies(whose) {
            (0..times).for_each(|_| proxy.next("*", how.clone()));
        }
        sleep(LOOK).await;
        self.proxies(whose).for_each(Proxy::pass);
    }

    fn proxies(&self, whose: Whose) -> impl Iterator<Item = &Proxy> {
        let theirs = match whose {
            Whose::One(child) => child..child + 1,
            Whose::Everyone => 0..CHILDREN,
        };
        self.proxies[theirs].iter()
    }

    async fn look_for_keys_without_expiry(&self) {
        let script = "local found = {}
for _, key in ipairs(redis.call('KEYS', '*')) do
  if redis.call('PTTL', key) == -1 then
    found[#found + 1] = key
  end
end
return found";
        let found: Vec<String> = self.server.call(&["EVAL", script, "0"]).await;
        assert!(found.is_empty(), "keys that live for ever: {found:?}");
    }

    /// Lets the children come to their end, and puts together what they leave.
    async fn end(mut self) -> Outcome {
        let took = self.began.elapsed();
        self.children.iter().for_each(|child| child.process.say("end"));
        for child in &self.children {
            let status = child.process.wait(LONGEST_END).await;
            assert!(status.success(), "a process ended with {status}");
        }
        for child in std::mem::take(&mut self.children) {
            // Its last words may still be on their way when it has ended.
            child.process.wait_for_line(LAST_WORDS).await;
            self.counts.add_all(&child.counts());
        }
        // Those of processes that were killed end by themselves, and so does what was set by a request that was late.
        let longest = Duration::from_millis(LONGEST_DELAY) + LONGEST_TTL + SLACK;
        eventually("the keys of all locks are gone", longest, async || self.lock_keys().await.is_empty())
            .await;
        self.look_for_keys_without_expiry().await;
        let history = History::load(self.file().as_ref());
        let Self { lock, began, faults, counts, .. } = self;
        Outcome { lock, took, began, faults, counts, history }
    }

    /// All but the counters of fencing tokens, which are kept for days.
    async fn lock_keys(&self) -> Vec<String> {
        self.server.keys("lock:*").await
    }
}

impl Child {
    fn counts(&self) -> Counts {
        Counts::last_of(&self.process.lines())
    }

    /// Makes sure that it goes on.
    fn look(&mut self, began: Instant) {
        let now = began.elapsed().as_secs_f64();
        if let Some(status) = self.process.ended() {
            panic!("a process has ended by itself at {now:.3} s ({status}): what it said is above");
        }
        let lines = self.process.lines().len();
        if lines > self.lines {
            (self.lines, self.heard) = (lines, Instant::now());
        }
        assert!(self.heard.elapsed() < PATIENCE, "a process had said nothing for {PATIENCE:?} at {now:.3} s");
    }
}
