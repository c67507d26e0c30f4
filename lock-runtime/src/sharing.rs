//! Sharing a key among processes: after a turn of some local grants, a process lets others in.

use std::time::Duration;

/// A process's turn at a key that others want, too: this many grants in a row from one local caller to the next.
/// Handing on locally needs no news from the server, so it is always faster than anybody else's waiter.
const TURN: u32 = 4;
/// The same while no other process was met at the key: longer, because letting others in is time lost if none come.
const TURN_ALONE: u32 = 16;
/// How long one that met others stands back, also when it is woken later.
const STAND_BACK: Duration = Duration::from_millis(3);
/// It stands back a millisecond less for every turn of others, so that whoever has waited longest asks first. The
/// server tells its waiters of a release always in the same order, and would else always serve the same ones.
const LESS_FOR_EACH_TURN: Duration = Duration::from_millis(1);

/// How a process lets others in before it asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StandBack {
    No,
    /// For one round trip: what a waiter elsewhere needs to hear of a release and to ask. If one was too late this time,
    /// there is another next time.
    RoundTrip,
    For(Duration),
}

/// One process's view of how a key is shared, as long as callers of its own queue for it.
pub(crate) struct Sharing {
    /// Grants in a row in the present turn.
    grants: u32,
    /// Holds of others that were met since the last turn; the most there can be before the first turn.
    holds_of_others: u32,
    /// Whether no other process was met since a turn ago.
    alone: bool,
    /// Others were let in, and have not shown up since.
    stood_back: bool,
}

impl Default for Sharing {
    fn default() -> Self {
        Self { grants: 0, holds_of_others: u32::MAX, alone: true, stood_back: false }
    }
}

impl Sharing {
    /// How long the next head stands back before it asks.
    pub(crate) fn stand_back(&mut self) -> StandBack {
        if self.grants >= if self.alone { TURN_ALONE } else { TURN } {
            self.grants = 0;
            self.holds_of_others = 0;
            self.stood_back = true;
        }
        if self.grants > 0 {
            StandBack::No
        } else if self.alone && self.stood_back {
            StandBack::RoundTrip
        } else {
            let turns_of_others = self.holds_of_others / TURN;
            match STAND_BACK.saturating_sub(LESS_FOR_EACH_TURN.saturating_mul(turns_of_others)) {
                Duration::ZERO => StandBack::No,
                pause => StandBack::For(pause),
            }
        }
    }

    /// Whether no other process was met lately: it is worth asking without preparing to wait for one.
    pub(crate) fn is_alone(&self) -> bool {
        self.alone
    }

    /// A head of ours was told that someone else holds the key.
    pub(crate) fn refused(&mut self) {
        self.grants = 0;
        self.holds_of_others = self.holds_of_others.saturating_add(1);
        self.alone = false;
        self.stood_back = false;
    }

    /// A head of ours got the lock.
    pub(crate) fn granted(&mut self) {
        if self.grants == 0 {
            self.holds_of_others = 0;
        }
        self.grants += 1;
        if std::mem::take(&mut self.stood_back) {
            self.alone = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turn(sharing: &mut Sharing, grants: u32) {
        for _ in 0..grants {
            assert_eq!(sharing.stand_back(), StandBack::No);
            sharing.granted();
        }
    }

    #[test]
    fn a_process_alone_stands_back_briefly_after_a_long_turn() {
        let mut sharing = Sharing::default();
        for _ in 0..3 {
            let left = TURN_ALONE - sharing.grants;
            turn(&mut sharing, left);
            assert_eq!(sharing.stand_back(), StandBack::RoundTrip);
            sharing.granted();
        }
    }

    #[test]
    fn where_others_are_turns_are_short_and_the_longest_waiter_goes_first() {
        let mut sharing = Sharing::default();
        sharing.refused();
        assert_eq!(sharing.stand_back(), StandBack::No, "it has had no turn yet");
        turn(&mut sharing, TURN);
        for turns in 0..5 {
            let expected = match 3_u64.saturating_sub(turns) {
                0 => StandBack::No,
                left => StandBack::For(Duration::from_millis(left)),
            };
            assert_eq!(sharing.stand_back(), expected, "after {turns} turns of others");
            (0..TURN).for_each(|_| sharing.refused());
        }
    }

    #[test]
    fn a_turn_that_was_cut_short_was_a_turn() {
        let mut sharing = Sharing::default();
        sharing.refused();
        turn(&mut sharing, 2);
        sharing.refused();
        assert_eq!(sharing.stand_back(), StandBack::For(STAND_BACK));
    }
}
