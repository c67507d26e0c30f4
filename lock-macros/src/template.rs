//! The template of a key: literal text and `<places>`.

use crate::place::Place;

/// The longest key that the runtime accepts, without the prefix.
const LONGEST_KEY: usize = 1024;

/// A template, taken apart.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Template {
    pub(crate) parts: Vec<Part>,
    /// The literal text inside each brace pair that holds no place.
    pub(crate) braced: Vec<String>,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Part {
    Literal(String),
    Place(Place),
}

impl Template {
    /// Reads a template and reports everything that is wrong with it, each as a sentence.
    pub(crate) fn parse(text: &str) -> Result<Self, Vec<String>> {
        let mut reader = Reader::default();
        reader.read(text);
        reader.finish(text)
    }

    pub(crate) fn places(&self) -> impl Iterator<Item = &Place> {
        self.parts.iter().filter_map(|part| match part {
            Part::Place(place) => Some(place),
            Part::Literal(_) => None,
        })
    }
}

/// An open brace: what it encloses so far.
#[derive(Default)]
struct Brace {
    literal: String,
    holds_place: bool,
}

#[derive(Default)]
struct Reader {
    template: Template,
    literal: String,
    open: Vec<Brace>,
    errors: Vec<String>,
}

impl Reader {
    fn read(&mut self, text: &str) {
        let mut rest = text;
        while let Some(c) = rest.chars().next() {
            rest = &rest[c.len_utf8()..];
            match c {
                '<' | '>' if rest.starts_with(c) => {
                    rest = &rest[1..];
                    self.push(c);
                }
                '<' => rest = self.place(rest),
                '>' => self.errors.push(
                    "the key has a `>` that closes nothing: write `>>` for the character itself".to_owned(),
                ),
                '{' => {
                    self.push(c);
                    self.open.push(Brace::default());
                }
                '}' => self.close_brace(),
                c => self.push(c),
            }
        }
    }

    /// Reads a place, whose `<` has been read; gives back what follows it.
    fn place<'a>(&mut self, rest: &'a str) -> &'a str {
        let Some(end) = end_of_place(rest) else {
            self.errors.push(format!(
                "the place `<{rest}` is not closed: write its `>`, or `<<` for the character itself"
            ));
            return "";
        };
        let inside = &rest[..end];
        match Place::parse(inside) {
            Ok(place) => {
                self.flush();
                self.template.parts.push(Part::Place(place));
            }
            Err(message) => self.errors.push(format!("the place `<{inside}>` {message}")),
        }
        for brace in &mut self.open {
            brace.holds_place = true;
        }
        &rest[end + 1..]
    }

    fn push(&mut self, c: char) {
        self.literal.push(c);
        for brace in &mut self.open {
            brace.literal.push(c);
        }
    }

    fn close_brace(&mut self) {
        match self.open.pop() {
            None => self.errors.push("the key has a `}` without its `{`: braces are a hash tag of Redis Cluster, \
                 and come in pairs".to_owned()),
            Some(brace) if brace.holds_place => {}
            Some(brace) if brace.literal.trim().is_empty() => self.errors.push(
                "the key has a pair of braces with nothing in it: a place is written `<name>`, and braces are a \
                 hash tag of Redis Cluster, which needs its text".to_owned(),
            ),
            Some(brace) => self.template.braced.push(brace.literal),
        }
        self.push('}');
    }

    fn flush(&mut self) {
        if !self.literal.is_empty() {
            self.template.parts.push(Part::Literal(std::mem::take(&mut self.literal)));
        }
    }

    fn finish(mut self, text: &str) -> Result<Template, Vec<String>> {
        self.flush();
        if text.trim().is_empty() {
            self.errors.push(
                "the key is empty, which would be one lock for everything: write for example `key = \"order:<order_id>\"`"
                    .to_owned(),
            );
        }
        if !self.open.is_empty() {
            self.errors.push(
                "the key has a `{` without its `}`: braces are a hash tag of Redis Cluster, and come \
                 in pairs"
                    .to_owned(),
            );
        }
        if self.errors.is_empty() {
            self.check_separators();
            self.check_length();
        }
        if self.errors.is_empty() { Ok(self.template) } else { Err(self.errors) }
    }

    /// Between two places there must be text that no value can contain, because values are percent-encoded.
    /// Otherwise
    /// `<a><b>` would give one key for ("1", "23") and ("12", "3").
    fn check_separators(&mut self) {
        let mut before: Option<&Place> = None;
        let mut separated = true;
        for part in &self.template.parts {
            match part {
                Part::Literal(text) => separated |= text.contains([':', '/', '{', '}']),
                Part::Place(place) => {
                    if let (Some(before), false) = (before, separated) {
                        self.errors.push(format!(
                            "nothing keeps `<{}>` and `<{}>` apart, so that different values could give one key: \
                             write `:` or `/` between them",
                            before.text, place.text
                        ));
                    }
                    before = Some(place);
                    separated = false;
                }
            }
        }
    }

    fn check_length(&mut self) {
        let literal: usize = self
            .template
            .parts
            .iter()
            .map(|part| match part {
                Part::Literal(text) => text.len(),
                Part::Place(_) => 1,
            })
            .sum();
        if literal > LONGEST_KEY {
            self.errors
                .push(format!("the key is longer than {LONGEST_KEY} bytes before any value is filled in"));
        }
    }
}

/// Where the `>` of a place stands: the first that is not inside a quoted argument.
fn end_of_place(rest: &str) -> Option<usize> {
    let mut chars = rest.char_indices();
    let mut depth = 0usize;
    while let Some((at, c)) = chars.next() {
        match c {
            '(' | '[' => depth += 1,
            ')' | ']' => depth = depth.saturating_sub(1),
            // Quotes mean something only where an argument can stand.
            '"' | '\'' if depth > 0 => {
                while let Some((_, inner)) = chars.next() {
                    if inner == '\\' {
                        chars.next();
                    } else if inner == c {
                        break;
                    }
                }
            }
            '>' => return Some(at),
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests;
