//! Numbers that a seed fixes.

use std::time::Duration;

/// A small generator: the same seed gives the same numbers on every machine.
pub(crate) struct Random(u64);

impl Random {
    /// The numbers of a seed, and of one of the many who draw under it.
    pub(crate) fn new(seed: u64, who: u64) -> Self {
        let mut random = Self(seed ^ who.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        // The first numbers of seeds that are close to each other are close, too.
        for _ in 0..8 {
            random.below(1);
        }
        random
    }

    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }

    /// A place in a list of this length.
    pub(crate) fn index(&mut self, length: usize) -> usize {
        usize::try_from(self.below(length as u64)).expect("it is below a length")
    }

    pub(crate) fn one_in(&mut self, many: u64) -> bool {
        self.below(many) == 0
    }

    /// Whole milliseconds from `least` to `most`.
    pub(crate) fn millis(&mut self, least: u64, most: u64) -> Duration {
        Duration::from_millis(least + self.below(most - least + 1))
    }

    /// Puts a list in another order.
    pub(crate) fn shuffle<T>(&mut self, list: &mut [T]) {
        for last in (1..list.len()).rev() {
            list.swap(last, self.index(last + 1));
        }
    }
}
