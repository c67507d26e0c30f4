//! Processes of their own: this program again, with a part to play.

use std::env;
use std::io;
use std::process::{Command, ExitCode};
use std::str::FromStr;

use tests::process::Process;

use crate::contenders::{Place, with_contender};
use crate::runtimes::Flavour;
use crate::{handoff, memory, processes};

/// Says to this program that it is a child, before the words of its part.
pub(crate) const CHILD: &str = "--child";

/// Starts this program again to play a part as one contender on one kind of runtime.
pub(crate) fn start(
    part: &str,
    flavour: Flavour,
    contender: &str,
    place: &Place,
    more: &[String],
) -> Process {
    let program = env::current_exe().expect("a program knows its own path");
    let mut command = Command::new(program);
    command.args([CHILD, part, flavour.name(), contender, &place.url, &place.release]).args(more);
    Process::spawn_talking(&mut command).expect("this program can be started again")
}

/// What the child was told when it was started.
pub(crate) struct Part {
    pub(crate) place: Place,
    more: Vec<String>,
}

impl Part {
    /// One of the words that only this part knows.
    pub(crate) fn word<T: FromStr>(&self, index: usize) -> T {
        let word = self.more.get(index).and_then(|word| word.parse().ok());
        word.unwrap_or_else(|| panic!("a child cannot play its part from {:?}", self.more))
    }
}

/// Plays the part.
pub(crate) fn play(words: &[String]) -> ExitCode {
    let [part, flavour, contender, url, release, more @ ..] = words else { return ExitCode::from(2) };
    let place = Place { url: url.clone(), release: release.clone() };
    let told = Part { place, more: more.to_vec() };
    let Some(flavour) = Flavour::named(flavour) else { return ExitCode::from(2) };
    match part.as_str() {
        processes::PART => with_contender!(contender.as_str(), |C| flavour.run(processes::child::<C>(told))),
        handoff::PART => with_contender!(contender.as_str(), |C| flavour.run(handoff::child::<C>(told))),
        memory::PART => with_contender!(contender.as_str(), |C| flavour.run(memory::child::<C>(told))),
        _ => return ExitCode::from(2),
    }
    ExitCode::SUCCESS
}

/// The next line that the parent says; none if it is gone.
pub(crate) async fn hear() -> Option<String> {
    let line = tokio::task::spawn_blocking(|| io::stdin().lines().next());
    line.await.ok()?.and_then(Result::ok)
}
