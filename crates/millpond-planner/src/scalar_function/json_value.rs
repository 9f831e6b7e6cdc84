//! JSON values as the JSON functions see them: numbers keep their digits, objects their order.

/// A JSON value.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Json {
    Null,
    Boolean(bool),
    /// As written.
    Number(String),
    Text(String),
    Array(Vec<Json>),
    Object(Vec<(String, Json)>),
}

/// How deep values may be nested.
const DEPTH_MAX: usize = 128;

impl Json {
    /// Reads one value; `None` if the text is no JSON.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let mut reader = Reader { text, at: 0 };
        let value = reader.value(0)?;
        reader.skip_blanks();
        (reader.at == text.len()).then_some(value)
    }

    /// Whether it is neither an array nor an object.
    pub(super) fn is_scalar(&self) -> bool {
        !matches!(self, Json::Array(_) | Json::Object(_))
    }

    /// Writes the value without blanks.
    pub(super) fn write(&self, out: &mut String) {
        match self {
            Json::Null => out.push_str("null"),
            Json::Boolean(truth) => out.push_str(if *truth { "true" } else { "false" }),
            Json::Number(digits) => out.push_str(digits),
            Json::Text(text) => write_text(text, out),
            Json::Array(items) => {
                out.push('[');
                for (place, item) in items.iter().enumerate() {
                    if place > 0 {
                        out.push(',');
                    }
                    item.write(out);
                }
                out.push(']');
            }
            Json::Object(members) => {
                out.push('{');
                for (place, (name, value)) in members.iter().enumerate() {
                    if place > 0 {
                        out.push(',');
                    }
                    write_text(name, out);
                    out.push(':');
                    value.write(out);
                }
                out.push('}');
            }
        }
    }

    /// The value without blanks.
    pub(super) fn to_text(&self) -> String {
        let mut text = String::new();
        self.write(&mut text);
        text
    }
}

/// Writes a text in quotes.
pub(super) fn write_text(text: &str, out: &mut String) {
    out.push('"');
    for letter in text.chars() {
        match letter {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            letter if letter < ' ' => out.push_str(&format!("\\u{:04x}", letter as u32)),
            letter => out.push(letter),
        }
    }
    out.push('"');
}

struct Reader<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Reader<'a> {
    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    fn skip_blanks(&mut self) {
        self.at += self.rest().bytes().take_while(|byte| b" \t\r\n".contains(byte)).count();
    }

    fn take(&mut self, token: &str) -> Option<()> {
        self.rest().starts_with(token).then(|| self.at += token.len())
    }

    fn take_after_blanks(&mut self, token: &str) -> Option<()> {
        self.skip_blanks();
        self.take(token)
    }

    fn value(&mut self, depth: usize) -> Option<Json> {
        if depth > DEPTH_MAX {
            return None;
        }
        self.skip_blanks();
        match self.rest().bytes().next()? {
            b'{' => self.object(depth),
            b'[' => self.array(depth),
            b'"' => self.string().map(Json::Text),
            b't' => self.take("true").map(|()| Json::Boolean(true)),
            b'f' => self.take("false").map(|()| Json::Boolean(false)),
            b'n' => self.take("null").map(|()| Json::Null),
            _ => self.number(),
        }
    }

    fn object(&mut self, depth: usize) -> Option<Json> {
        self.take("{")?;
        let mut members: Vec<(String, Json)> = Vec::new();
        if self.take_after_blanks("}").is_some() {
            return Some(Json::Object(members));
        }
        loop {
            self.skip_blanks();
            let name = self.string()?;
            self.take_after_blanks(":")?;
            let value = self.value(depth + 1)?;
            // Of equal names the last one counts.
            members.retain(|(known, _)| *known != name);
            members.push((name, value));
            if self.take_after_blanks("}").is_some() {
                return Some(Json::Object(members));
            }
            self.take(",")?;
        }
    }

    fn array(&mut self, depth: usize) -> Option<Json> {
        self.take("[")?;
        let mut items = Vec::new();
        if self.take_after_blanks("]").is_some() {
            return Some(Json::Array(items));
        }
        loop {
            items.push(self.value(depth + 1)?);
            if self.take_after_blanks("]").is_some() {
                return Some(Json::Array(items));
            }
            self.take(",")?;
        }
    }

    fn string(&mut self) -> Option<String> {
        self.take("\"")?;
        let mut text = String::new();
        loop {
            let plain = self.rest().find(|letter| letter == '"' || letter == '\\' || letter < ' ')?;
            text.push_str(&self.rest()[..plain]);
            self.at += plain;
            if self.take("\"").is_some() {
                return Some(text);
            }
            self.take("\\")?;
            let escaped = self.rest().chars().next()?;
            self.at += escaped.len_utf8();
            text.push(match escaped {
                '"' | '\\' | '/' => escaped,
                'b' => '\u{8}',
                'f' => '\u{c}',
                'n' => '\n',
                'r' => '\r',
                't' => '\t',
                'u' => self.code_point()?,
                _ => return None,
            });
        }
    }

    fn code_point(&mut self) -> Option<char> {
        let first = self.hex()?;
        if !(0xd800..0xdc00).contains(&first) {
            return char::from_u32(first);
        }
        self.take("\\u")?;
        let second = self.hex().filter(|unit| (0xdc00..0xe000).contains(unit))?;
        char::from_u32(0x10000 + ((first - 0xd800) << 10) + (second - 0xdc00))
    }

    fn hex(&mut self) -> Option<u32> {
        let digits = self.rest().get(..4).filter(|digits| digits.bytes().all(|b| b.is_ascii_hexdigit()))?;
        self.at += 4;
        u32::from_str_radix(digits, 16).ok()
    }

    fn number(&mut self) -> Option<Json> {
        let start = self.at;
        let _ = self.take("-");
        let whole = self.digits();
        if whole == 0 || (whole > 1 && self.text[self.at - whole..].starts_with('0')) {
            return None;
        }
        if self.take(".").is_some() && self.digits() == 0 {
            return None;
        }
        if self.take("e").or(self.take("E")).is_some() {
            let _ = self.take("+").or(self.take("-"));
            if self.digits() == 0 {
                return None;
            }
        }
        Some(Json::Number(self.text[start..self.at].to_owned()))
    }

    fn digits(&mut self) -> usize {
        let digits = self.rest().bytes().take_while(u8::is_ascii_digit).count();
        self.at += digits;
        digits
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_read_and_written() {
        let cases = [
            (" { \"b\" : [1, 2.50, -3e+2], \"a\" : null } ", Some("{\"b\":[1,2.50,-3e+2],\"a\":null}")),
            ("\"a\\u00e4\\ud83d\\ude00\\n\"", Some("\"aä😀\\n\"")),
            ("{\"a\":1,\"a\":2}", Some("{\"a\":2}")),
            ("12345678901234567890", Some("12345678901234567890")),
            ("[]", Some("[]")),
            ("007", None),
            ("[1,]", None),
            ("{\"a\"}", None),
            ("nul", None),
            ("\"\\ud83d\"", None),
            ("1 2", None),
            ("", None),
        ];
        for (text, expected) in cases {
            assert_eq!(Json::parse(text).map(|json| json.to_text()).as_deref(), expected, "{text}");
        }
        assert_eq!(Json::parse(&"[".repeat(1000)), None);
    }
}
