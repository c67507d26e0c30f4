//! Keys: how a template is rendered so that different values never share a lock.

use std::fmt::{self, Write as _};
use std::sync::Arc;

use crate::few::Few;
use crate::site::Site;

/// The longest rendered key, in bytes, without the manager's prefix.
pub const MAX_KEY_BYTES: usize = 1024;

/// The most keys in one acquisition.
pub const MAX_KEYS: usize = 1000;

/// What is wrong with a rendered key, or with the set of keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum KeyFault {
    /// This place of the template rendered to nothing; the key would have been shared by unrelated calls.
    EmptyPlace(&'static str),
    /// The whole key is empty.
    Empty,
    /// The key is longer than [`MAX_KEY_BYTES`].
    TooLong,
    /// Several keys were asked for, and there are none.
    NoKeys,
    /// More than [`MAX_KEYS`] keys were asked for at once.
    TooManyKeys,
}

impl fmt::Display for KeyFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::EmptyPlace(place) => write!(f, "<{place}> rendered to an empty string"),
            Self::Empty => f.write_str("the key is empty"),
            Self::TooLong => write!(f, "the key is longer than {MAX_KEY_BYTES} bytes"),
            Self::NoKeys => f.write_str("there is no element to make a key of"),
            Self::TooManyKeys => write!(f, "there are more than {MAX_KEYS} keys"),
        }
    }
}

/// A template being rendered.
#[derive(Debug)]
pub struct Key {
    text: String,
    fault: Option<KeyFault>,
}

impl Key {
    /// An empty key of this site.
    #[must_use]
    pub fn new(site: &'static Site) -> Self {
        // A rendered key is seldom much longer than its template and the manager's prefix: one allocation.
        Self { text: String::with_capacity(site.template().len() + 32), fault: None }
    }

    /// A key that is taken as it stands.
    pub(crate) fn verbatim(text: String) -> Self {
        Self { text, fault: None }
    }

    /// Appends text of the template.
    #[must_use]
    pub fn literal(mut self, text: &'static str) -> Self {
        self.text.push_str(text);
        self
    }

    /// Appends a value, encoded. `name` is the place as it is written in the template.
    #[must_use]
    pub fn place(mut self, name: &'static str, value: fmt::Arguments<'_>) -> Self {
        let before = self.text.len();
        // Past the limit a value is cut off rather than buffered: the key is refused in any case.
        let written = Encode { out: &mut self.text, limit: MAX_KEY_BYTES + 1 }.write_fmt(value);
        if self.fault.is_none() {
            if self.text.len() > MAX_KEY_BYTES {
                self.fault = Some(KeyFault::TooLong);
            } else if self.text.len() == before || written.is_err() {
                self.fault = Some(KeyFault::EmptyPlace(name));
            }
        }
        self
    }

    /// The rendered key; with the fault, if it has one.
    pub(crate) fn finish(self) -> (String, Option<KeyFault>) {
        let fault = self.fault.or(if self.text.is_empty() {
            Some(KeyFault::Empty)
        } else if self.text.len() > MAX_KEY_BYTES {
            Some(KeyFault::TooLong)
        } else {
            None
        });
        (self.text, fault)
    }
}

/// What one acquisition locks: a key, or several at once.
#[derive(Debug)]
pub enum Keys {
    /// One key.
    One(Key),
    /// Several, or none, which is refused.
    Several(Vec<Key>),
}

impl Keys {
    /// Several keys, to be pushed.
    #[must_use]
    pub fn several() -> Self {
        Self::Several(Vec::new())
    }

    /// Adds a key.
    pub fn push(&mut self, key: Key) {
        match self {
            Self::Several(keys) => keys.push(key),
            Self::One(only) => *only = key,
        }
    }

    /// The full keys, sorted and without duplicates: in whatever order callers name them, they ask in the same one.
    /// Or a key to name in the error, and what is wrong.
    pub(crate) fn finish(self, prefix: &str) -> Result<Few<Arc<str>>, (String, KeyFault)> {
        let full = |key: Key| match key.finish() {
            (mut text, None) => {
                text.insert_str(0, prefix);
                Ok(Arc::from(text))
            }
            // A key that is too long would make a message that is.
            (text, Some(fault)) => {
                Err((format!("{prefix}{}", text.chars().take(80).collect::<String>()), fault))
            }
        };
        let keys = match self {
            Self::One(key) => return Ok(Few::one(full(key)?)),
            Self::Several(keys) => keys,
        };
        if keys.is_empty() {
            return Err((prefix.to_owned(), KeyFault::NoKeys));
        }
        let mut keys = keys.into_iter().map(full).collect::<Result<Vec<Arc<str>>, _>>()?;
        keys.sort_unstable();
        keys.dedup();
        if keys.len() > MAX_KEYS {
            return Err((prefix.to_owned(), KeyFault::TooManyKeys));
        }
        Ok(Few::Many(keys))
    }
}

impl From<Key> for Keys {
    fn from(key: Key) -> Self {
        Self::One(key)
    }
}

/// Percent-encodes what would let two values run into each other or into the template: the separators that a
/// template must have between its places, the braces of Redis Cluster's hash tags, and `%` itself; and what an
/// operator could not see in a key: white space and control characters.
///
/// The crate `percent-encoding` is not used because it encodes every non-ASCII character, and keys such as
/// `城市:上海` are to stay readable.
struct Encode<'a> {
    out: &'a mut String,
    limit: usize,
}

impl fmt::Write for Encode<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for c in text.chars() {
            if self.out.len() >= self.limit {
                return Err(fmt::Error);
            }
            encode_char(self.out, c, |c| matches!(c, '%' | ':' | '/' | '{' | '}'));
        }
        Ok(())
    }
}

/// Encodes what cannot be seen in a token, so that a tag cannot break a log line. Not reversible, and need not be.
pub(crate) fn visible(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        encode_char(&mut out, c, |_| false);
    }
    out
}

fn encode_char(out: &mut String, c: char, also: impl Fn(char) -> bool) {
    if also(c) || c.is_whitespace() || c.is_control() {
        let mut bytes = [0; 4];
        for byte in c.encode_utf8(&mut bytes).bytes() {
            out.push('%');
            for digit in [byte >> 4, byte & 15] {
                out.push(char::from(if digit < 10 { b'0' + digit } else { b'A' + digit - 10 }));
            }
        }
    } else {
        out.push(c);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    static SITE: Site = Site::new("a:<x>", "f");

    fn one(value: &str) -> (String, Option<KeyFault>) {
        Key::new(&SITE).literal("a:").place("x", format_args!("{value}")).finish()
    }

    #[test]
    fn values_are_encoded_and_literals_are_not() {
        let encoded = one("1:2/3%{4} \u{a0}\n上海").0;
        assert_eq!(encoded, "a:1%3A2%2F3%25%7B4%7D%20%C2%A0%0A上海");
    }

    #[test]
    fn an_empty_place_is_a_fault_that_names_it() {
        assert_eq!(one("").1, Some(KeyFault::EmptyPlace("x")));
        assert_eq!(
            one("").1.map(|fault| fault.to_string()).as_deref(),
            Some("<x> rendered to an empty string")
        );
    }

    #[test]
    fn a_key_of_one_kib_passes_and_one_byte_more_does_not() {
        assert_eq!(one(&"v".repeat(MAX_KEY_BYTES - 2)).1, None);
        assert_eq!(one(&"v".repeat(MAX_KEY_BYTES - 1)).1, Some(KeyFault::TooLong));
        let (text, fault) = one(&"v".repeat(1 << 20));
        assert_eq!(fault, Some(KeyFault::TooLong));
        assert!(text.len() < MAX_KEY_BYTES + 8, "a huge value is not buffered");
    }

    #[test]
    fn a_display_that_fails_is_a_fault() {
        struct Broken;
        impl fmt::Display for Broken {
            fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
                Err(fmt::Error)
            }
        }
        assert!(Key::new(&SITE).place("x", format_args!("{Broken}")).finish().1.is_some());
    }
}
