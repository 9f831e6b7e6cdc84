//! Scans JSON text (RFC 8259) strictly: finds where values stand, builds nothing.
//!
//! A record is one line, so a line end within an object is an error; that is what keeps a
//! malformed record from swallowing its neighbours.

use memchr::memchr2;
use millpond_core::limits::JSON_DEPTH_MAX;

/// What a value is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Null,
    Boolean,
    Number,
    /// Text without escapes.
    Text,
    /// Text with escapes.
    EscapedText,
    Object,
    Array,
}

/// Where a value stands; for text, without the quotes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Span {
    start: u32,
    end: u32,
    pub(crate) kind: Kind,
}

impl Span {
    fn new(start: usize, end: usize, kind: Kind) -> Self {
        Self { start: start as u32, end: end as u32, kind }
    }
    pub(crate) fn start(self) -> usize {
        self.start as usize
    }
    #[inline]
    pub(crate) fn text(self, bytes: &[u8]) -> &[u8] {
        &bytes[self.start as usize..self.end as usize]
    }
}

/// Why scanning stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stop {
    /// The bytes end within the value.
    Incomplete,
    /// What stands at `at` is not JSON.
    Malformed { at: usize, reason: &'static str },
}

type Scan<T> = Result<T, Stop>;

fn malformed<T>(at: usize, reason: &'static str) -> Scan<T> {
    Err(Stop::Malformed { at, reason })
}

const TWO_LINES: &str = "it does not end on its line (expected one object per line)";

/// Scans values in a window of bytes.
#[derive(Clone, Copy)]
pub(crate) struct Scanner<'a> {
    bytes: &'a [u8],
}

impl<'a> Scanner<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes }
    }

    /// Scans the object at `start`; `member` gets its keys and values in order. Returns its end.
    pub(crate) fn object(self, start: usize, member: impl FnMut(Span, Span)) -> Scan<usize> {
        match self.bytes.get(start) {
            Some(b'{') => self.object_at(start, 0, member),
            Some(_) => malformed(start, "it is not an object (expected one object per line)"),
            None => Err(Stop::Incomplete),
        }
    }

    /// The members of an object that has been scanned before.
    pub(crate) fn members(self, object: Span, member: impl FnMut(Span, Span)) {
        let scanned = self.object_at(object.start(), 0, member);
        debug_assert!(scanned.is_ok(), "it was scanned before");
    }

    /// The elements of an array that has been scanned before.
    pub(crate) fn elements(self, array: Span, element: impl FnMut(Span)) {
        let scanned = self.array_at(array.start(), 0, element);
        debug_assert!(scanned.is_ok(), "it was scanned before");
    }

    /// The first byte at or behind `at` that is not blank.
    #[inline]
    fn skip_blanks(self, mut at: usize) -> Scan<(u8, usize)> {
        loop {
            match self.bytes.get(at) {
                Some(b' ' | b'\t' | b'\r') => at += 1,
                Some(b'\n') => return malformed(at, TWO_LINES),
                Some(byte) => return Ok((*byte, at)),
                None => return Err(Stop::Incomplete),
            }
        }
    }

    fn object_at(self, start: usize, depth: usize, mut member: impl FnMut(Span, Span)) -> Scan<usize> {
        let (mut byte, mut at) = self.skip_blanks(start + 1)?;
        if byte == b'}' {
            return Ok(at + 1);
        }
        loop {
            if byte != b'"' {
                return malformed(at, "a key in quotes is expected");
            }
            let (key, end) = self.text_at(at)?;
            (byte, at) = self.skip_blanks(end)?;
            if byte != b':' {
                return malformed(at, "a colon is expected behind a key");
            }
            (_, at) = self.skip_blanks(at + 1)?;
            let (value, end) = self.value_at(at, depth)?;
            member(key, value);
            (byte, at) = self.skip_blanks(end)?;
            match byte {
                b',' => (byte, at) = self.skip_blanks(at + 1)?,
                b'}' => return Ok(at + 1),
                _ => return malformed(at, "a comma or a closing brace is expected"),
            }
        }
    }

    fn array_at(self, start: usize, depth: usize, mut element: impl FnMut(Span)) -> Scan<usize> {
        let (mut byte, mut at) = self.skip_blanks(start + 1)?;
        if byte == b']' {
            return Ok(at + 1);
        }
        loop {
            let (value, end) = self.value_at(at, depth)?;
            element(value);
            (byte, at) = self.skip_blanks(end)?;
            match byte {
                b',' => (_, at) = self.skip_blanks(at + 1)?,
                b']' => return Ok(at + 1),
                _ => return malformed(at, "a comma or a closing bracket is expected"),
            }
        }
    }

    #[inline]
    fn value_at(self, at: usize, depth: usize) -> Scan<(Span, usize)> {
        let nested = |kind, end| (Span::new(at, end, kind), end);
        match self.bytes[at] {
            b'"' => self.text_at(at),
            b'-' | b'0'..=b'9' => self.number_at(at),
            b'{' | b'[' if depth + 1 >= JSON_DEPTH_MAX => malformed(at, "it is nested too deeply"),
            b'{' => Ok(nested(Kind::Object, self.object_at(at, depth + 1, |_, _| ())?)),
            b'[' => Ok(nested(Kind::Array, self.array_at(at, depth + 1, |_| ())?)),
            b't' => self.word_at(at, b"true", Kind::Boolean),
            b'f' => self.word_at(at, b"false", Kind::Boolean),
            b'n' => self.word_at(at, b"null", Kind::Null),
            _ => malformed(at, "a value is expected"),
        }
    }

    fn word_at(self, at: usize, word: &[u8], kind: Kind) -> Scan<(Span, usize)> {
        let rest = &self.bytes[at..];
        match rest.get(..word.len()) {
            Some(found) if found == word => Ok((Span::new(at, at + word.len(), kind), at + word.len())),
            None if word.starts_with(rest) => Err(Stop::Incomplete),
            _ => malformed(at, "a value is expected"),
        }
    }

    /// The text whose opening quote is at `at`.
    #[inline]
    fn text_at(self, at: usize) -> Scan<(Span, usize)> {
        let start = at + 1;
        let (mut end, mut kind) = (start, Kind::Text);
        loop {
            let rest = self.bytes.get(end..).unwrap_or_default();
            let special = memchr2(b'"', b'\\', rest);
            let plain = &rest[..special.unwrap_or(rest.len())];
            if plain.iter().any(|byte| *byte < b' ') {
                return malformed(end, "a text contains a control character or does not end");
            }
            let Some(length) = special else { return Err(Stop::Incomplete) };
            end += length;
            if self.bytes[end] == b'"' {
                return Ok((Span::new(start, end, kind), end + 1));
            }
            kind = Kind::EscapedText;
            end = self.escape_at(end)?;
        }
    }

    /// The end of the escape whose backslash is at `at`.
    fn escape_at(self, at: usize) -> Scan<usize> {
        match self.bytes.get(at + 1) {
            None => Err(Stop::Incomplete),
            Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => Ok(at + 2),
            Some(b'u') => {
                let digits = &self.bytes[at + 2..self.bytes.len().min(at + 6)];
                match digits.iter().position(|byte| !byte.is_ascii_hexdigit()) {
                    Some(_) => malformed(at, "an escape \\u needs four hexadecimal digits"),
                    None if digits.len() < 4 => Err(Stop::Incomplete),
                    None => Ok(at + 6),
                }
            }
            Some(_) => malformed(at, "a text contains an unknown escape"),
        }
    }

    fn number_at(self, start: usize) -> Scan<(Span, usize)> {
        let mut at = start + usize::from(self.bytes[start] == b'-');
        at = match self.bytes.get(at) {
            Some(b'0') => at + 1,
            _ => self.digits_at(at)?,
        };
        if self.bytes.get(at) == Some(&b'.') {
            at = self.digits_at(at + 1)?;
        }
        if let Some(b'e' | b'E') = self.bytes.get(at) {
            let signed = matches!(self.bytes.get(at + 1), Some(b'+' | b'-'));
            at = self.digits_at(at + 1 + usize::from(signed))?;
        }
        match self.bytes.get(at) {
            None => Err(Stop::Incomplete),
            Some(b',' | b'}' | b']' | b' ' | b'\t' | b'\r' | b'\n') => {
                Ok((Span::new(start, at, Kind::Number), at))
            }
            Some(_) => malformed(at, "a number is not well formed"),
        }
    }

    /// The end of at least one digit at `at`.
    fn digits_at(self, at: usize) -> Scan<usize> {
        let rest = self.bytes.get(at..).unwrap_or_default();
        match rest.iter().position(|byte| !byte.is_ascii_digit()) {
            Some(0) => malformed(at, "a number is not well formed"),
            Some(length) => Ok(at + length),
            None => Err(Stop::Incomplete),
        }
    }
}

/// Undoes the escapes of a scanned text; `false` for half a surrogate pair.
pub(crate) fn unescape(text: &[u8], out: &mut Vec<u8>) -> bool {
    let mut rest = text;
    while let Some(at) = memchr::memchr(b'\\', rest) {
        out.extend_from_slice(&rest[..at]);
        let (character, length) = match rest.get(at + 1) {
            Some(b'u') => match escaped_character(&rest[at..]) {
                Some(found) => found,
                None => return false,
            },
            Some(b'b') => ('\u{8}', 2),
            Some(b'f') => ('\u{c}', 2),
            Some(b'n') => ('\n', 2),
            Some(b'r') => ('\r', 2),
            Some(b't') => ('\t', 2),
            Some(byte) => (char::from(*byte), 2),
            None => return false,
        };
        out.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes());
        rest = &rest[at + length..];
    }
    out.extend_from_slice(rest);
    true
}

/// The character of `\uXXXX`, or of two of them that are a surrogate pair, and their length.
fn escaped_character(text: &[u8]) -> Option<(char, usize)> {
    let unit = |at: usize| {
        let digits = text.get(at..at + 6)?.strip_prefix(b"\\u")?;
        u32::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
    };
    let first = unit(0)?;
    if !(0xd800..0xdc00).contains(&first) {
        return Some((char::from_u32(first)?, 6));
    }
    let second = unit(6).filter(|second| (0xdc00..0xe000).contains(second))?;
    let character = 0x10000 + ((first - 0xd800) << 10) + (second - 0xdc00);
    Some((char::from_u32(character)?, 12))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scan(text: &str) -> Scan<usize> {
        Scanner::new(text.as_bytes()).object(0, |_, _| ())
    }

    /// What serde_json accepts is accepted, and nothing else.
    #[test]
    fn objects_are_those_of_a_strict_parser() {
        let values = [
            "1",
            "-0",
            "0.5",
            "1e3",
            "1E+3",
            "01",
            "1.",
            ".5",
            "+1",
            "-",
            "1e",
            "NaN",
            "Infinity",
            "true",
            "tru",
            "null",
            "nul",
            "truex",
            r#""""#,
            r#""a\n\u00e9""#,
            r#""\x""#,
            r#""\u12""#,
            "\"\u{1}\"",
            "'a'",
            "[]",
            "[1,2]",
            "[1,]",
            "[,1]",
            "[1 2]",
            "{}",
            r#"{"a":{}}"#,
            r#"{"a":1,}"#,
            r#"{a:1}"#,
            r#"{"a" 1}"#,
            "/* */1",
            "1 1",
            "0x1",
            "1_0",
        ];
        for value in values {
            let text = format!("{{\"k\": {value} }}");
            let strict = serde_json::from_str::<serde_json::Value>(&text).is_ok();
            assert_eq!(scan(&text) == Ok(text.len()), strict, "{text}");
        }
    }

    #[test]
    fn every_prefix_is_incomplete_rather_than_wrong() {
        let text = r#"{"a": [1.5e+3, -20, true, null], "b\n": {"c": "\ud83d\ude00"}, "d": false}"#;
        for length in 0..text.len() {
            assert_eq!(scan(&text[..length]), Err(Stop::Incomplete), "{}", &text[..length]);
        }
        assert_eq!(scan(text), Ok(text.len()));
    }

    #[test]
    fn half_surrogate_pairs_are_refused() {
        let read = |text: &str| {
            let mut out = Vec::new();
            unescape(text.as_bytes(), &mut out).then(|| String::from_utf8(out).unwrap())
        };
        assert_eq!(read(r"\ud83d\ude00!"), Some("😀!".into()));
        assert_eq!(read(r#"\"\\\/\b\t\u0000"#), Some("\"\\/\u{8}\t\0".into()));
        assert_eq!(read(r"\ud800\ud801"), None);
        assert_eq!(read(r"\udc00"), None);
        assert_eq!(read(r"\ud83d"), None);
    }

    #[test]
    fn depth_is_bounded() {
        let nested = |depth: usize| format!("{{\"a\":{}{}}}", "[".repeat(depth), "]".repeat(depth));
        assert!(scan(&nested(100)).is_ok());
        let too_deep = scan(&nested(2000));
        assert!(
            matches!(too_deep, Err(Stop::Malformed { reason: "it is nested too deeply", .. })),
            "{too_deep:?}"
        );
    }
}
