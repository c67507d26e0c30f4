//! What an acquisition asks for besides its keys and its ttl.

use std::time::Duration;

use crate::error::OptionFault;
use crate::renew::RenewPolicy;
use crate::store::Mode;

/// The options of one acquisition.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Terms {
    pub(crate) wait: Duration,
    pub(crate) renew: Option<RenewPolicy>,
    pub(crate) mode: Mode,
    pub(crate) fenced: bool,
    /// The keys stay until they are this old, however the body ended.
    pub(crate) hold_at_least: Option<Duration>,
    /// The keys stay this much longer after the body succeeded.
    pub(crate) hold_after_ok: Option<Duration>,
}

impl Terms {
    /// What is wrong with them, for this many keys and this ttl.
    pub(crate) fn check(&self, keys: usize, ttl: Duration) -> Result<(), OptionFault> {
        if self.mode == Mode::Permits(0) {
            Err(OptionFault::NoPermits)
        } else if self.hold_at_least.is_some_and(|least| least > ttl) {
            Err(OptionFault::HoldLongerThanTtl)
        } else if self.renew.and_then(|policy| policy.max_hold).is_some_and(|most| most <= ttl) {
            Err(OptionFault::MaxHoldTooShort)
        } else if self.fenced && (keys > 1 || self.mode != Mode::Exclusive) {
            Err(OptionFault::FencedIsForOne)
        } else {
            Ok(())
        }
    }
}
