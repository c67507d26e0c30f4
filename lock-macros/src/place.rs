//! One `<place>` of a key: `order.id()`, `req.lines[0].sku`, `id:08`.
//!
//! Read by hand instead of by `syn`: a place is much less than an expression, so it can be told exactly what
//! is wrong with it, and every token that comes out of it is ours to give a span.

/// A place as it was written, taken apart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Place {
    /// The place as it was written, without the angle brackets and the format spec.
    pub(crate) text: String,
    pub(crate) expr: Expr,
    /// What stands behind the `:`.
    pub(crate) spec: Option<String>,
}

/// Where a value comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Expr {
    pub(crate) root: Root,
    pub(crate) steps: Vec<Step>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Root {
    /// `self`
    Receiver,
    /// A parameter, a binding, or a constant; without `r#`.
    Name(String),
    /// `Self::REGION`, `config::REGION`, `::app::REGION`
    Path { leading_colon: bool, segments: Vec<String> },
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Step {
    Field(String),
    TupleField(u32),
    Index(Arg),
    Call(String, Vec<Arg>),
}

/// What may stand between the brackets of an index or a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Arg {
    Int(String),
    Str(String),
    Char(char),
    Bool(bool),
    Place { by_reference: bool, expr: Expr },
}

impl Place {
    /// Reads what stands between `<` and `>`. The error continues the words "in the key, `<order.>` ...".
    pub(crate) fn parse(inside: &str) -> Result<Self, String> {
        let (expr, spec) = split_spec(inside);
        let text = expr.trim();
        if text.is_empty() {
            return Err("is empty: write the name of a parameter between the angle brackets".to_owned());
        }
        let spec = spec.map(|spec| check_spec(spec).map(|()| spec.to_owned())).transpose()?;
        let mut reader = Reader { rest: text };
        let expr = reader.expr()?;
        reader.skip_space();
        match reader.peek() {
            None => Ok(Self { text: text.to_owned(), expr, spec }),
            Some(found) => Err(reader.unexpected(found)),
        }
    }
}

/// Splits at the first `:` that is neither half of a `::` nor inside brackets or quotes.
fn split_spec(inside: &str) -> (&str, Option<&str>) {
    let mut depth = 0usize;
    let mut chars = inside.char_indices().peekable();
    while let Some((at, c)) = chars.next() {
        match c {
            '(' | '[' => depth += 1,
            ')' | ']' => depth = depth.saturating_sub(1),
            '"' | '\'' => {
                while let Some((_, inner)) = chars.next() {
                    if inner == '\\' {
                        chars.next();
                    } else if inner == c {
                        break;
                    }
                }
            }
            ':' if chars.peek().is_some_and(|(_, next)| *next == ':') => {
                chars.next();
            }
            ':' if depth == 0 => return (&inside[..at], Some(&inside[at + 1..])),
            _ => {}
        }
    }
    (inside, None)
}

/// Checks a format spec against the grammar of `std::fmt`, less what takes its numbers from other arguments.
fn check_spec(spec: &str) -> Result<(), String> {
    if spec.is_empty() {
        return Err("has an empty format spec: leave the `:` out, or write for example `<id:08>`; \
                    numbers align to the right without `>`"
            .to_owned());
    }
    let mut rest = spec;
    let is_align = |c: char| matches!(c, '<' | '^' | '>');
    let mut chars = rest.chars();
    match (chars.next(), chars.next()) {
        (Some(fill), Some(align)) if is_align(align) => rest = &rest[fill.len_utf8() + align.len_utf8()..],
        (Some(align), _) if is_align(align) => rest = &rest[align.len_utf8()..],
        _ => {}
    }
    if rest.contains('$') || rest.contains(".*") {
        return Err(format!("takes the numbers of `{spec}` from elsewhere: write them out, as in `<id:08>`"));
    }
    let after_digits = |text: &str| text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    rest = rest.strip_prefix(['+', '-']).unwrap_or(rest);
    rest = rest.strip_prefix('#').unwrap_or(rest);
    rest = &rest[rest.len() - after_digits(rest)..];
    if let Some(precision) = rest.strip_prefix('.') {
        let left = after_digits(precision);
        if left == precision.len() {
            return Err(format!("has the format spec `{spec}`, where digits should follow the `.`"));
        }
        rest = &precision[precision.len() - left..];
    }
    if matches!(rest, "" | "?" | "x?" | "X?" | "x" | "X" | "o" | "b" | "e" | "E" | "p") {
        Ok(())
    } else {
        Err(format!(
            "has no format spec of Rust behind its `:`: `{spec}`; write for example `<id:08>` or `<state:?>`"
        ))
    }
}

struct Reader<'a> {
    rest: &'a str,
}

impl<'a> Reader<'a> {
    fn peek(&self) -> Option<char> {
        self.rest.chars().next()
    }

    fn skip_space(&mut self) {
        self.rest = self.rest.trim_start();
    }

    fn eat(&mut self, token: &str) -> bool {
        self.skip_space();
        match self.rest.strip_prefix(token) {
            Some(rest) => {
                self.rest = rest;
                true
            }
            None => false,
        }
    }

    fn take_while(&mut self, accept: impl Fn(char) -> bool) -> &'a str {
        let end = self.rest.find(|c| !accept(c)).unwrap_or(self.rest.len());
        let (taken, rest) = self.rest.split_at(end);
        self.rest = rest;
        taken
    }

    fn unexpected(&self, found: char) -> String {
        match found {
            '?' => "uses `?`: a key cannot fail; bind the value to a parameter of the function first".to_owned(),
            '(' => "calls a function: a place starts at a parameter, `self` or a constant, and may call its methods"
                .to_owned(),
            '"' | '\'' => {
                "holds a literal: write it outside of the angle brackets, where it is part of the key".to_owned()
            }
            '<' => "has a `<` in it: close the place before it, or write `<<` outside of a place for the character itself"
                .to_owned(),
            found if found.is_ascii_digit() => {
                "starts with a number: write the name of a parameter between the angle brackets".to_owned()
            }
            _ => format!(
                "cannot be read at `{}`: a place is a parameter, `self` or a constant, followed by fields, \
                 indices and method calls",
                self.rest
            ),
        }
    }

    /// An identifier without its `r#`; `None` when there is none here.
    fn ident(&mut self) -> Option<(String, bool)> {
        self.skip_space();
        let raw = self.rest.starts_with("r#");
        let name = if raw { &self.rest[2..] } else { self.rest };
        if !name.starts_with(|c: char| c == '_' || c.is_alphabetic()) {
            return None;
        }
        self.rest = name;
        Some((self.take_while(|c| c == '_' || c.is_alphanumeric()).to_owned(), raw))
    }

    fn need_ident(&mut self, after: &str) -> Result<String, String> {
        match self.ident() {
            Some((name, _)) => Ok(name),
            None => match self.peek() {
                Some(found) => Err(format!("has `{found}` where a name should follow `{after}`")),
                None => Err(format!("ends where a name should follow `{after}`")),
            },
        }
    }

    fn expr(&mut self) -> Result<Expr, String> {
        let root = self.root()?;
        let mut steps = Vec::new();
        loop {
            if self.eat("..") {
                return Err("has a range in it: a place names one value".to_owned());
            } else if self.eat(".") {
                steps.push(self.member()?);
            } else if self.eat("[") {
                steps.push(Step::Index(self.arg()?));
                if !self.eat("]") {
                    return Err("lacks a `]`".to_owned());
                }
            } else {
                return Ok(Expr { root, steps });
            }
        }
    }

    fn root(&mut self) -> Result<Root, String> {
        let leading_colon = self.eat("::");
        let Some((first, raw)) = self.ident() else {
            return Err(self.peek().map_or_else(
                || "ends where a name should follow `::`".to_owned(),
                |found| self.unexpected(found),
            ));
        };
        let mut segments = vec![first];
        while self.eat("::") {
            if self.peek() == Some('<') {
                return Err("has type arguments: write a constant for it and name that".to_owned());
            }
            segments.push(self.need_ident("::")?);
        }
        if leading_colon || segments.len() > 1 {
            return Ok(Root::Path { leading_colon, segments });
        }
        let name = segments.swap_remove(0);
        Ok(if name == "self" && !raw { Root::Receiver } else { Root::Name(name) })
    }

    fn member(&mut self) -> Result<Step, String> {
        self.skip_space();
        let digits = self.take_while(|c| c.is_ascii_digit());
        if !digits.is_empty() {
            return match digits.parse() {
                Ok(number) => Ok(Step::TupleField(number)),
                Err(_) => Err(format!("has `{digits}` for a field")),
            };
        }
        let name = self.need_ident(".")?;
        if name == "await" {
            return Err("awaits: a key is rendered at once; bind the value to a parameter first".to_owned());
        }
        if self.rest.starts_with("::") {
            return Err("has type arguments: a method of a place has none".to_owned());
        }
        if !self.eat("(") {
            return Ok(Step::Field(name));
        }
        let mut args = Vec::new();
        while !self.eat(")") {
            args.push(self.arg()?);
            if !self.eat(",") && !self.rest.starts_with(')') {
                return Err(format!("lacks the `)` of `{name}(`"));
            }
        }
        Ok(Step::Call(name, args))
    }

    fn arg(&mut self) -> Result<Arg, String> {
        self.skip_space();
        match self.peek() {
            Some('"') => self.quoted('"').map(Arg::Str),
            Some('\'') => {
                let text = self.quoted('\'')?;
                let mut chars = text.chars();
                match (chars.next(), chars.next()) {
                    (Some(only), None) => Ok(Arg::Char(only)),
                    _ => Err(format!("has `'{text}'` where one character should stand")),
                }
            }
            Some(c) if c.is_ascii_digit() || c == '-' => self.int(),
            _ => {
                let by_reference = self.eat("&");
                let expr = self.expr()?;
                Ok(match &expr {
                    Expr { root: Root::Name(name), steps } if steps.is_empty() && name == "true" => {
                        Arg::Bool(true)
                    }
                    Expr { root: Root::Name(name), steps } if steps.is_empty() && name == "false" => {
                        Arg::Bool(false)
                    }
                    _ => Arg::Place { by_reference, expr },
                })
            }
        }
    }

    fn int(&mut self) -> Result<Arg, String> {
        const SUFFIXES: [&str; 13] =
            ["", "u8", "u16", "u32", "u64", "u128", "usize", "i8", "i16", "i32", "i64", "i128", "isize"];
        let sign = if self.eat("-") { "-" } else { "" };
        let digits = self.take_while(|c| c.is_ascii_digit() || c == '_');
        let suffix = self.take_while(|c| c == '_' || c.is_alphanumeric());
        if digits.starts_with(|c: char| c.is_ascii_digit()) && SUFFIXES.contains(&suffix) {
            Ok(Arg::Int(format!("{sign}{digits}{suffix}")))
        } else {
            Err(format!("has `{sign}{digits}{suffix}` where a decimal number should stand"))
        }
    }

    /// What stands between two `quote`s, with its escapes read.
    fn quoted(&mut self, quote: char) -> Result<String, String> {
        let mut text = String::new();
        let mut chars = self.rest.char_indices().skip(1);
        while let Some((at, c)) = chars.next() {
            if c == quote {
                self.rest = &self.rest[at + c.len_utf8()..];
                return Ok(text);
            }
            if c != '\\' {
                text.push(c);
                continue;
            }
            text.push(match chars.next() {
                Some((_, 'n')) => '\n',
                Some((_, 't')) => '\t',
                Some((_, 'r')) => '\r',
                Some((_, '0')) => '\0',
                Some((_, c @ ('\\' | '"' | '\''))) => c,
                _ => return Err("has an escape in its literal that is not known here".to_owned()),
            });
        }
        Err(format!("has a literal without its closing `{quote}`"))
    }
}

#[cfg(test)]
mod tests;
