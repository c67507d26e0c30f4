//! Contenders that take turns, so that what disturbs the machine disturbs all of them.

use std::pin::Pin;

use tests::measure::Sample;

type Turn<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// A contender with its work, and what came of each of its turns.
pub(crate) struct Entrant<T> {
    pub(crate) name: &'static str,
    work: Box<dyn Fn() -> Turn<T> + Send + Sync>,
    pub(crate) turns: Vec<T>,
}

impl<T> Entrant<T> {
    pub(crate) fn new<F>(name: &'static str, work: impl Fn() -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = T> + Send + 'static,
    {
        Self { name, work: Box::new(move || Box::pin(work())), turns: Vec::new() }
    }

    /// One number of each turn.
    pub(crate) fn sample(&self, number: impl Fn(&T) -> f64) -> Sample {
        self.turns.iter().map(number).collect()
    }
}

/// Lets all have a turn in each round: another one goes first each time, and behind another one every other time.
pub(crate) async fn take_turns<T>(entrants: &mut [Entrant<T>], rounds: usize) {
    let all = entrants.len();
    for round in 0..rounds {
        for place in 0..all {
            let place = if round % 2 == 0 { place } else { all - 1 - place };
            let entrant = &mut entrants[(round + place) % all];
            let turn = (entrant.work)().await;
            entrant.turns.push(turn);
        }
    }
}
