//! Child processes that are paused, continued and killed, and never outlive the test.

use std::env;
use std::io::{BufRead, BufReader, Write as _};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};

use crate::feed::Feed;
use crate::{PATIENCE, clock, lock};

/// A child process; dropping it kills and reaps it.
pub struct Process {
    child: Mutex<Child>,
    lines: Arc<Feed<String>>,
    reader: Option<JoinHandle<()>>,
    name: String,
}

impl Process {
    /// Starts a program whose standard output is nobody's business: it goes where `command` says.
    ///
    /// # Errors
    ///
    /// If it cannot be started, for instance because there is no such program.
    pub fn spawn(command: &mut Command) -> std::io::Result<Self> {
        let name = command.get_program().to_string_lossy().into_owned();
        let child = Mutex::new(command.spawn()?);
        Ok(Self { child, lines: Arc::default(), reader: None, name })
    }

    /// Starts a program and collects the lines it prints, for [`wait_for_line`](Self::wait_for_line).
    ///
    /// # Errors
    ///
    /// As [`spawn`](Self::spawn).
    pub fn spawn_reading(command: &mut Command) -> std::io::Result<Self> {
        let mut process = Self::spawn(command.stdout(Stdio::piped()))?;
        let output = lock(&process.child).stdout.take();
        let lines = Arc::clone(&process.lines);
        process.reader = output.map(|output| {
            thread::spawn(move || {
                for line in BufReader::new(output).lines().map_while(Result::ok) {
                    lines.push(line);
                }
            })
        });
        Ok(process)
    }

    /// As [`spawn_reading`](Self::spawn_reading), for a program that is told what to do by [`say`](Self::say).
    ///
    /// # Errors
    ///
    /// As [`spawn`](Self::spawn).
    pub fn spawn_talking(command: &mut Command) -> std::io::Result<Self> {
        Self::spawn_reading(command.stdin(Stdio::piped()))
    }

    /// Runs one test of this test binary as a process of its own, with these environment variables.
    ///
    /// What it prints is to be read by [`wait_for_line`](Self::wait_for_line), whose lines may begin with words of the
    /// test harness. Write the part of the child as a test that returns at once where its variables are missing: it
    /// also runs with all the others.
    ///
    /// # Panics
    ///
    /// If this test binary cannot be started again.
    #[must_use]
    pub fn of_this_test(test: &str, variables: &[(&str, &str)]) -> Self {
        let binary = env::current_exe().expect("a test knows the path of its own binary");
        let mut command = Command::new(binary);
        command.args([test, "--exact", "--nocapture", "--test-threads=1"]);
        command.stdin(Stdio::null()).envs(variables.iter().copied());
        Self::spawn_reading(&mut command)
            .unwrap_or_else(|error| panic!("the test {test:?} could not be started as a process: {error}"))
    }

    /// The process id.
    pub fn id(&self) -> u32 {
        lock(&self.child).id()
    }

    /// Writes a line to its standard input, if it was started by [`spawn_talking`](Self::spawn_talking).
    ///
    /// # Panics
    ///
    /// If it was not, and if it has ended.
    pub fn say(&self, line: &str) {
        let mut child = lock(&self.child);
        let input = child.stdin.as_mut().unwrap_or_else(|| panic!("{} cannot be talked to", self.name));
        // In one piece, and small enough for a pipe to take it at once.
        input
            .write_all(format!("{line}\n").as_bytes())
            .unwrap_or_else(|error| panic!("{} does not listen to {line:?}: {error}", self.name));
    }

    /// The lines printed so far.
    pub fn lines(&self) -> Vec<String> {
        self.lines.list()
    }

    /// The first line, printed already or to come, that contains `text`.
    ///
    /// # Panics
    ///
    /// If none comes within [`PATIENCE`].
    pub async fn wait_for_line(&self, text: &str) -> String {
        self.lines.find(PATIENCE, |line| line.contains(text)).await.unwrap_or_else(|| {
            panic!("{} printed no {text:?} within {PATIENCE:?}, but {:#?}", self.name, self.lines())
        })
    }

    /// Stops the process (SIGSTOP) and returns once it stands.
    ///
    /// # Panics
    ///
    /// If the process has ended.
    pub fn pause(&self) {
        let mut child = lock(&self.child);
        self.signal(&mut child, Signal::STOP);
        // The signal is on its way when `kill` returns; a last command could still be executed meanwhile.
        let deadline = Instant::now() + PATIENCE;
        // Left to be seen again: a second pause changes nothing that could be waited for.
        let options = WaitIdOptions::STOPPED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        loop {
            match waitid(WaitId::Pid(Pid::from_child(&child)), options) {
                Ok(Some(_)) => return,
                Ok(None) if Instant::now() < deadline => thread::sleep(Duration::from_micros(200)),
                other => panic!("{} could not be paused: {other:?}", self.name),
            }
        }
    }

    /// Continues a process that was paused (SIGCONT).
    ///
    /// # Panics
    ///
    /// If the process has ended.
    pub fn resume(&self) {
        self.signal(&mut lock(&self.child), Signal::CONT);
    }

    /// Kills the process (kill -9) and reaps it; nothing happens to one that has ended.
    pub fn kill(&self) {
        let mut child = lock(&self.child);
        // Errors mean that it has ended already.
        child.kill().ok();
        child.wait().ok();
    }

    /// How it ended, or `None` while it runs.
    ///
    /// # Panics
    ///
    /// If the system does not say.
    pub fn ended(&self) -> Option<ExitStatus> {
        lock(&self.child)
            .try_wait()
            .expect("a child that only this value waits for can be asked for its status")
    }

    /// Waits for its end.
    ///
    /// # Panics
    ///
    /// If it has not ended `within` that time.
    pub async fn wait(&self, within: Duration) -> ExitStatus {
        let deadline = Instant::now() + within;
        loop {
            if let Some(status) = self.ended() {
                return status;
            }
            assert!(
                Instant::now() < deadline,
                "{} did not end within {within:?}; it printed {:#?}",
                self.name,
                self.lines()
            );
            clock::sleep(Duration::from_millis(2)).await;
        }
    }

    fn signal(&self, child: &mut Child, signal: Signal) {
        // The id of a process that was reaped may be another process' by now.
        let ended =
            child.try_wait().expect("a child that only this value waits for can be asked for its status");
        assert!(ended.is_none(), "{} cannot be sent {signal:?}: it has ended", self.name);
        kill_process(Pid::from_child(child), signal)
            .unwrap_or_else(|error| panic!("{} could not be sent {signal:?}: {error}", self.name));
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
        // Not joined: a grandchild may hold the pipe open.
        drop(self.reader.take());
    }
}
