//! Rows as CSV (RFC 4180): a field is quoted only when it must be; NULL is the null literal (an
//! empty field unless told otherwise), and a text that looks like it, such as the empty one, is
//! quoted, so that both come back as they were.

use arrow::array::{ArrayRef, RecordBatch};
use arrow::datatypes::{DataType, Schema};
use millpond_core::{Error, Result};

use crate::format::text::{ColumnText, TextFormat};
use crate::options::Options;

/// How CSV is written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CsvStyle {
    /// Between fields.
    pub delimiter: u8,
    /// Around fields that need it; `None`: such fields cannot be written.
    pub quote: Option<u8>,
    /// Stands for NULL.
    pub null_literal: String,
    /// Whether a file begins with the columns' names.
    pub header: bool,
}

impl CsvStyle {
    /// Takes the options `csv.*` that concern writing.
    pub(crate) fn parse(options: &mut Options) -> Result<Self> {
        let quote = options.parse("csv.quote-character", parse_ascii)?.unwrap_or(b'"');
        let is_disabled = options.flag("csv.disable-quote-character")?.unwrap_or(false);
        Ok(Self {
            delimiter: options.parse("csv.field-delimiter", parse_ascii)?.unwrap_or(b','),
            quote: (!is_disabled).then_some(quote),
            null_literal: options.text("csv.null-literal").unwrap_or_default(),
            // `auto`, which is for reading, writes none.
            header: options
                .choice("csv.header", &[("true", true), ("false", false), ("auto", false)])?
                .unwrap_or(false),
        })
    }
}

fn parse_ascii(text: &str) -> Result<u8> {
    match text.as_bytes() {
        b"\\t" => Ok(b'\t'),
        [byte] if byte.is_ascii() && !matches!(byte, b'\n' | b'\r') => Ok(*byte),
        _ => Err(Error::invalid(format!("{text:?} is not a single ASCII character"))),
    }
}

/// Turns batches into CSV text.
#[derive(Debug)]
pub(crate) struct CsvEncoder {
    style: CsvStyle,
}

impl CsvEncoder {
    pub(crate) fn new(style: CsvStyle) -> Self {
        Self { style }
    }

    /// What a file begins with.
    pub(crate) fn begin(&self, schema: &Schema, out: &mut String) -> Result<()> {
        if !self.style.header {
            return Ok(());
        }
        for (index, field) in schema.fields().iter().enumerate() {
            self.delimit(index, out);
            let start = out.len();
            out.push_str(field.name());
            self.quote_from(start, field.name(), out)?;
        }
        out.push('\n');
        Ok(())
    }

    /// Appends one line per row.
    pub(crate) fn encode(&self, rows: &RecordBatch, out: &mut String) -> Result<()> {
        let columns = rows.columns().iter().zip(rows.schema_ref().fields());
        let columns =
            columns.map(|(array, field)| Column::of(array, field.name())).collect::<Result<Vec<_>>>()?;
        for row in 0..rows.num_rows() {
            for (index, column) in columns.iter().enumerate() {
                self.delimit(index, out);
                self.push_field(column, row, out)?;
            }
            out.push('\n');
        }
        Ok(())
    }

    fn delimit(&self, index: usize, out: &mut String) {
        if index > 0 {
            out.push(self.style.delimiter as char);
        }
    }

    fn push_field(&self, column: &Column, row: usize, out: &mut String) -> Result<()> {
        let start = out.len();
        if column.text.is_null(row) {
            out.push_str(&self.style.null_literal);
            return Ok(());
        }
        column.text.write(row, out);
        if column.is_plain && self.spares_plain_fields() {
            return Ok(());
        }
        self.quote_from(start, &column.name, out)
    }

    /// Numbers and times hold no character that needs quotes, unless the style is odd.
    fn spares_plain_fields(&self) -> bool {
        matches!(self.style.delimiter, b',' | b';' | b'\t' | b'|')
            && self.style.quote == Some(b'"')
            && self.style.null_literal.is_empty()
    }

    /// Quotes the field that begins at `start` if it must be.
    fn quote_from(&self, start: usize, column: &str, out: &mut String) -> Result<()> {
        if !self.must_quote(&out[start..]) {
            return Ok(());
        }
        let text = out.split_off(start);
        match self.style.quote {
            Some(mark) => quote(&text, mark as char, out),
            None => {
                return Err(Error::data(format!(
                    "column {column:?} holds {text:?}, which CSV cannot hold without quotes"
                ))
                .with_hint("remove 'csv.disable-quote-character'"));
            }
        }
        Ok(())
    }

    /// Blank fields and leading `#` are quoted because readers may skip blank lines and comments.
    fn must_quote(&self, text: &str) -> bool {
        let bytes = text.as_bytes();
        text == self.style.null_literal
            || bytes.first().is_some_and(|byte| *byte == b'#' || (*byte <= b' ' && text.trim().is_empty()))
            || memchr::memchr3(self.style.delimiter, self.style.quote.unwrap_or(b'\n'), b'\n', bytes)
                .is_some()
            || memchr::memchr(b'\r', bytes).is_some()
    }
}

struct Column {
    name: String,
    text: ColumnText,
    is_plain: bool,
}

impl Column {
    fn of(array: &ArrayRef, name: &str) -> Result<Self> {
        let is_plain = !matches!(
            array.data_type(),
            DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View | DataType::Dictionary(..)
        ) && !array.data_type().is_nested();
        Ok(Self { name: name.into(), text: TextFormat::file().formatter(array)?, is_plain })
    }
}

fn quote(text: &str, mark: char, out: &mut String) {
    out.push(mark);
    for (index, part) in text.split(mark).enumerate() {
        if index > 0 {
            out.push(mark);
            out.push(mark);
        }
        out.push_str(part);
    }
    out.push(mark);
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{BinaryArray, Int64Array, StringArray, TimestampMillisecondArray};

    use super::*;

    fn style() -> CsvStyle {
        CsvStyle { delimiter: b',', quote: Some(b'"'), null_literal: String::new(), header: false }
    }

    fn encode(style: CsvStyle, columns: Vec<(&str, ArrayRef)>) -> String {
        let rows =
            RecordBatch::try_from_iter_with_nullable(columns.into_iter().map(|(n, c)| (n, c, true))).unwrap();
        let encoder = CsvEncoder::new(style);
        let mut out = String::new();
        encoder.begin(&rows.schema(), &mut out).unwrap();
        encoder.encode(&rows, &mut out).unwrap();
        out
    }

    fn texts(values: &[Option<&str>]) -> ArrayRef {
        Arc::new(StringArray::from(values.to_vec()))
    }

    #[test]
    fn only_fields_that_need_quotes_get_them() {
        let odd = texts(&[
            Some("plain"),
            Some("a,b"),
            Some("say \"hi\""),
            Some("two\nlines"),
            Some("cr\r"),
            Some(" é "),
        ]);
        let text = encode(style(), vec![("n", Arc::new(Int64Array::from(vec![1; 6]))), ("s", odd)]);
        assert_eq!(text, "1,plain\n1,\"a,b\"\n1,\"say \"\"hi\"\"\"\n1,\"two\nlines\"\n1,\"cr\r\"\n1, é \n");
    }

    #[test]
    fn null_and_the_empty_text_differ() {
        let texts = texts(&[None, Some("")]);
        assert_eq!(encode(style(), vec![("a", texts.clone()), ("b", texts)]), ",\n\"\",\"\"\n");
    }

    #[test]
    fn a_text_equal_to_the_null_literal_is_quoted() {
        let style = CsvStyle { null_literal: "7".into(), delimiter: b'|', header: true, ..style() };
        let numbers: ArrayRef = Arc::new(Int64Array::from(vec![Some(7), None]));
        let text = encode(style, vec![("a|b", texts(&[Some("7"), None])), ("n", numbers)]);
        assert_eq!(text, "\"a|b\"|n\n\"7\"|\"7\"\n7|7\n");
    }

    #[test]
    fn an_odd_delimiter_quotes_times_too() {
        let style = CsvStyle { delimiter: b'-', ..style() };
        let times: ArrayRef = Arc::new(TimestampMillisecondArray::from(vec![0]));
        let bytes: ArrayRef = Arc::new(BinaryArray::from(vec![&b"Man"[..]]));
        assert_eq!(encode(style, vec![("t", times), ("b", bytes)]), "\"1970-01-01 00:00:00\"-TWFu\n");
    }

    #[test]
    fn blank_fields_and_comment_marks_are_quoted() {
        assert_eq!(
            encode(style(), vec![("s", texts(&[Some(" "), Some("# no comment"), Some("a #")]))]),
            "\" \"\n\"# no comment\"\na #\n"
        );
    }

    #[test]
    fn without_quotes_a_field_that_needs_them_is_refused() {
        let encoder = CsvEncoder::new(CsvStyle { quote: None, ..style() });
        let rows = RecordBatch::try_from_iter([("s", texts(&[Some("a,b")]))]).unwrap();
        let error = encoder.encode(&rows, &mut String::new()).unwrap_err();
        assert_eq!(error.message(), "column \"s\" holds \"a,b\", which CSV cannot hold without quotes");
    }

    #[test]
    fn options_are_read_once() {
        let given = [("csv.field-delimiter", "\\t"), ("csv.header", "true"), ("csv.null-literal", "\\N")];
        let mut options = Options::new("t", given.map(|(k, v)| (k.to_string(), v.to_string())).into());
        let expected =
            CsvStyle { delimiter: b'\t', quote: Some(b'"'), null_literal: "\\N".into(), header: true };
        assert_eq!(CsvStyle::parse(&mut options).unwrap(), expected);
        let mut options = Options::new("t", [("csv.field-delimiter".to_string(), "ab".to_string())].into());
        assert!(CsvStyle::parse(&mut options).unwrap_err().message().contains("csv.field-delimiter"));
    }
}
