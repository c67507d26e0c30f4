//! Tokens: who holds a lock, told apart from everyone else for ever.

use std::sync::Arc;

use uuid::{Builder, Uuid};

use crate::key::visible;
use crate::store::{StoreError, StoreErrorKind};

/// A tag is cut after this many characters, so that the value of a key stays small.
const MAX_TAG_CHARS: usize = 128;

/// The value that a lock's key carries: `[owner:]uuid[:tag]`.
///
/// The UUID is a random one (version 4) from the operating system's source, one for each acquisition.
#[derive(Debug, Clone)]
pub(crate) struct Token {
    text: Arc<str>,
    tag_at: Option<usize>,
    seed: u64,
}

impl Token {
    pub(crate) fn new(owner: Option<&str>, tag: Option<&str>) -> Result<Self, StoreError> {
        Ok(Self::of(random()?, owner, tag))
    }

    /// The token of nobody.
    pub(crate) fn nil() -> Self {
        Self::of(Uuid::nil(), None, None)
    }

    fn of(id: Uuid, owner: Option<&str>, tag: Option<&str>) -> Self {
        let mut buffer = Uuid::encode_buffer();
        let uuid = &*id.hyphenated().encode_lower(&mut buffer);
        let seed = id.as_u64_pair().1;
        if owner.is_none() && tag.is_none() {
            return Self { text: uuid.into(), tag_at: None, seed };
        }
        let mut text = String::with_capacity(128);
        if let Some(owner) = owner {
            text.push_str(owner);
            text.push(':');
        }
        text.push_str(uuid);
        let tag = tag.map(|tag| visible(&tag.chars().take(MAX_TAG_CHARS).collect::<String>()));
        let tag_at = tag.filter(|tag| !tag.is_empty()).map(|tag| {
            text.push(':');
            text.push_str(&tag);
            text.len() - tag.len()
        });
        Self { text: text.into(), tag_at, seed }
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.text
    }

    pub(crate) fn shared(&self) -> Arc<str> {
        Arc::clone(&self.text)
    }

    pub(crate) fn tag(&self) -> Option<&str> {
        self.tag_at.and_then(|at| self.text.get(at..))
    }

    /// A number that differs between waiters, so that those that were refused together do not ask together again.
    pub(crate) fn seed(&self) -> u64 {
        self.seed
    }
}

/// Asked for each token anew: whatever is kept for later, a cloned process (a fork, a machine restored from a snapshot)
/// would have too.
fn random() -> Result<Uuid, StoreError> {
    let mut bytes = [0; 16];
    match getrandom::fill(&mut bytes) {
        Ok(()) => Ok(Builder::from_random_bytes(bytes).into_uuid()),
        Err(error) => {
            Err(StoreError::new(StoreErrorKind::NoRandomness, format!("no token could be made: {error}")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owner_uuid_and_tag_stand_in_this_order() {
        let token = Token::of(Uuid::nil(), Some("orders-7f9c"), Some("trace 1"));
        let parts: Vec<_> = token.as_str().split(':').collect();
        assert_eq!((parts[0], parts[1].len(), parts[2]), ("orders-7f9c", 36, "trace%201"));
        assert_eq!(token.tag(), Some("trace%201"));
        assert_eq!(Token::nil().as_str().len(), 36);
    }

    #[test]
    fn a_long_or_empty_tag_does_no_harm() {
        let token = Token::of(Uuid::nil(), None, Some(&"é".repeat(10_000)));
        assert_eq!(token.tag().map(|tag| tag.chars().count()), Some(MAX_TAG_CHARS));
        assert_eq!(Token::of(Uuid::nil(), None, Some("")).tag(), None);
    }

    #[test]
    fn no_two_tokens_are_equal() {
        let thread = || std::thread::spawn(|| (0..1_000).map(|_| random()).collect::<Result<Vec<_>, _>>());
        let threads: Vec<_> = (0..4).map(|_| thread()).collect();
        let mut tokens = Vec::new();
        for thread in threads {
            tokens.extend(thread.join().unwrap().unwrap());
        }
        assert!(tokens.iter().all(|token| token.get_version_num() == 4));
        tokens.sort_unstable();
        tokens.dedup();
        assert_eq!(tokens.len(), 4_000);
    }
}
