//! Tokens: who holds a lock, told apart from everyone else for ever.

use std::sync::Arc;

use crate::key::visible;

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
    pub(crate) fn new(owner: Option<&str>, tag: Option<&str>) -> Self {
        let id = uuid::Uuid::new_v4();
        let mut text = String::with_capacity(64);
        if let Some(owner) = owner {
            text.push_str(owner);
            text.push(':');
        }
        text.push_str(id.hyphenated().encode_lower(&mut uuid::Uuid::encode_buffer()));
        let tag = tag.map(|tag| visible(&tag.chars().take(MAX_TAG_CHARS).collect::<String>()));
        let tag_at = tag.filter(|tag| !tag.is_empty()).map(|tag| {
            text.push(':');
            text.push_str(&tag);
            text.len() - tag.len()
        });
        Self { text: text.into(), tag_at, seed: id.as_u64_pair().1 }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owner_uuid_and_tag_stand_in_this_order() {
        let token = Token::new(Some("orders-7f9c"), Some("trace 1"));
        let parts: Vec<_> = token.as_str().split(':').collect();
        assert_eq!((parts[0], parts[1].len(), parts[2]), ("orders-7f9c", 36, "trace%201"));
        assert_eq!(token.tag(), Some("trace%201"));
        assert_eq!(Token::new(None, None).as_str().len(), 36);
    }

    #[test]
    fn a_long_or_empty_tag_does_no_harm() {
        let token = Token::new(None, Some(&"é".repeat(10_000)));
        assert_eq!(token.tag().map(|tag| tag.chars().count()), Some(MAX_TAG_CHARS));
        assert_eq!(Token::new(None, Some("")).tag(), None);
    }
}
