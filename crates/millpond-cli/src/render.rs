//! Rendering: rows as text in each of the formats that the manual names.
//!
//! Results go to stdout, everything else to stderr.

use std::io::{IsTerminal, Write};

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use comfy_table::{CellAlignment, Table, presets};
use millpond::{ChangelogBatch, ColumnText, Error, Result, Rows, TextFormat};

use crate::args::{Args, Format};

/// Prints answers the way the command line asked for.
#[derive(Debug, Clone)]
pub(crate) struct Printer {
    format: Format,
    null: String,
    header: bool,
    pub(crate) quiet: bool,
    pub(crate) progress: bool,
}

impl Printer {
    pub(crate) fn new(args: &Args) -> Self {
        let null = match (&args.null, args.format) {
            (Some(text), _) => text.clone(),
            (None, Format::Csv) => String::new(),
            (None, _) => "NULL".into(),
        };
        Self {
            format: args.format,
            null,
            header: !args.no_header,
            quiet: args.quiet,
            progress: args.progress || (std::io::stderr().is_terminal() && !args.quiet),
        }
    }

    /// Prints a whole answer.
    pub(crate) fn rows(&self, rows: &Rows, time_zone: &str) -> Result<()> {
        let mut out = String::new();
        self.render(&rows.schema, &rows.batches, time_zone, &mut out)?;
        to_stdout(&out)
    }

    /// Prints changes with their kind as the first column.
    pub(crate) fn changes(&self, batches: &[ChangelogBatch], time_zone: &str) -> Result<()> {
        let mut out = String::new();
        for batch in batches {
            let columns = columns(&batch.rows, time_zone)?;
            for row in 0..batch.num_rows() {
                out.push_str(batch.kind(row).symbol());
                for column in &columns {
                    out.push('|');
                    self.list_value(column, row, &mut out);
                }
                out.push('\n');
            }
        }
        to_stdout(&out)
    }

    /// The line of names above printed changes.
    pub(crate) fn changes_header(&self, schema: &SchemaRef) -> Result<()> {
        if !self.header {
            return Ok(());
        }
        let names: Vec<&str> = schema.fields().iter().map(|field| field.name().as_str()).collect();
        to_stdout(&format!("op|{}\n", names.join("|")))
    }

    fn render(
        &self,
        schema: &SchemaRef,
        batches: &[RecordBatch],
        time_zone: &str,
        out: &mut String,
    ) -> Result<()> {
        match self.format {
            Format::Table => self.drawn(schema, batches, time_zone, presets::NOTHING, out),
            Format::Box => self.drawn(schema, batches, time_zone, presets::UTF8_FULL_CONDENSED, out),
            Format::Markdown => self.drawn(schema, batches, time_zone, presets::ASCII_MARKDOWN, out),
            Format::Csv => self.separated(schema, batches, time_zone, ",", csv_text, out),
            Format::List => self.separated(schema, batches, time_zone, "|", list_text, out),
            Format::Jsonl => self.json(schema, batches, time_zone, out, ["", "\n", "\n"]),
            Format::Json => self.json(schema, batches, time_zone, out, ["[", ",\n ", "]\n"]),
            Format::Line => self.line(schema, batches, time_zone, out),
        }
    }

    fn drawn(
        &self,
        schema: &SchemaRef,
        batches: &[RecordBatch],
        time_zone: &str,
        preset: &str,
        out: &mut String,
    ) -> Result<()> {
        let mut table = Table::new();
        table.load_preset(preset);
        if self.header {
            table.set_header(schema.fields().iter().map(|field| field.name()));
        }
        for batch in batches {
            let columns = columns(batch, time_zone)?;
            for row in 0..batch.num_rows() {
                table.add_row(columns.iter().map(|column| self.shown(column, row)));
            }
        }
        for (field, column) in schema.fields().iter().zip(table.column_iter_mut()) {
            if field.data_type().is_numeric() {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        out.push_str(&table.trim_fmt());
        out.push('\n');
        if self.format == Format::Box {
            let rows: usize = batches.iter().map(RecordBatch::num_rows).sum();
            out.push_str(&format!("({rows} {})\n", if rows == 1 { "row" } else { "rows" }));
        }
        Ok(())
    }

    /// A value in a drawn table: control characters are escaped, so that data cannot draw.
    fn shown(&self, column: &ColumnText, row: usize) -> String {
        let mut text = String::new();
        if column.is_null(row) {
            return self.null.clone();
        }
        column.write(row, &mut text);
        let escaped = |c: char| match c {
            '|' if self.format == Format::Markdown => vec!['\\', '|'],
            c if c.is_control() => c.escape_default().collect(),
            c => vec![c],
        };
        text.chars().flat_map(escaped).collect()
    }

    fn separated(
        &self,
        schema: &SchemaRef,
        batches: &[RecordBatch],
        time_zone: &str,
        separator: &str,
        escape: fn(&str, &mut String),
        out: &mut String,
    ) -> Result<()> {
        if self.header {
            for (i, field) in schema.fields().iter().enumerate() {
                out.push_str(if i == 0 { "" } else { separator });
                escape(field.name(), out);
            }
            out.push('\n');
        }
        let mut value = String::new();
        for batch in batches {
            let columns = columns(batch, time_zone)?;
            for row in 0..batch.num_rows() {
                for (i, column) in columns.iter().enumerate() {
                    out.push_str(if i == 0 { "" } else { separator });
                    if column.is_null(row) {
                        out.push_str(&self.null);
                        continue;
                    }
                    value.clear();
                    column.write(row, &mut value);
                    escape(&value, out);
                }
                out.push('\n');
            }
        }
        Ok(())
    }

    fn list_value(&self, column: &ColumnText, row: usize, out: &mut String) {
        if column.is_null(row) {
            out.push_str(&self.null);
            return;
        }
        let mut value = String::new();
        column.write(row, &mut value);
        list_text(&value, out);
    }

    fn json(
        &self,
        schema: &SchemaRef,
        batches: &[RecordBatch],
        time_zone: &str,
        out: &mut String,
        [open, between, close]: [&str; 3],
    ) -> Result<()> {
        out.push_str(open);
        let mut first = true;
        for batch in batches {
            let columns = columns(batch, time_zone)?;
            for row in 0..batch.num_rows() {
                out.push_str(if first { "" } else { between });
                first = false;
                json_object(schema, &columns, row, out);
            }
        }
        if !first || !open.is_empty() {
            out.push_str(close);
        }
        Ok(())
    }

    fn line(
        &self,
        schema: &SchemaRef,
        batches: &[RecordBatch],
        time_zone: &str,
        out: &mut String,
    ) -> Result<()> {
        let width = schema.fields().iter().map(|field| field.name().chars().count()).max().unwrap_or(0);
        for batch in batches {
            let columns = columns(batch, time_zone)?;
            for row in 0..batch.num_rows() {
                for (field, column) in schema.fields().iter().zip(&columns) {
                    out.push_str(&format!("{:>width$} = {}\n", field.name(), self.shown(column, row)));
                }
                out.push('\n');
            }
        }
        Ok(())
    }
}

fn json_object(schema: &SchemaRef, columns: &[ColumnText], row: usize, out: &mut String) {
    out.push('{');
    for (i, (field, column)) in schema.fields().iter().zip(columns).enumerate() {
        out.push_str(if i == 0 { "" } else { "," });
        json_text(field.name(), out);
        out.push(':');
        if column.is_null(row) {
            out.push_str("null");
        } else {
            column.write_json(row, out);
        }
    }
    out.push('}');
}

/// A JSON string.
fn json_text(text: &str, out: &mut String) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            c if c.is_control() => out.push_str(&format!("\\u{:04x}", u32::from(c))),
            c => out.push(c),
        }
    }
    out.push('"');
}

fn columns(batch: &RecordBatch, time_zone: &str) -> Result<Vec<ColumnText>> {
    let zone = time_zone.parse().map_err(|_| Error::invalid(format!("{time_zone:?} is not a time zone")))?;
    let format = TextFormat::display(zone);
    batch.columns().iter().map(|column| format.formatter(column)).collect()
}

/// A value of the `list` format: newline, CR and | are escaped.
fn list_text(text: &str, out: &mut String) {
    for c in text.chars() {
        match c {
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '|' => out.push_str("\\|"),
            c => out.push(c),
        }
    }
}

/// A value of the `csv` format: quoted where RFC 4180 asks for it, and where it is empty (a bare
/// empty field is NULL).
fn csv_text(text: &str, out: &mut String) {
    if text.is_empty() || text.contains([',', '"', '\n', '\r']) {
        out.push('"');
        out.push_str(&text.replace('"', "\"\""));
        out.push('"');
    } else {
        out.push_str(text);
    }
}

/// Writes results. A reader that has gone away ends the process as it does for every Unix tool.
pub(crate) fn to_stdout(text: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => std::process::exit(0),
        Err(error) => Err(Error::io("write to stdout", &error)),
    }
}

/// Writes everything else; there is nowhere to report a failure to.
pub(crate) fn to_stderr(text: &str) {
    let _ = std::io::stderr().lock().write_all(text.as_bytes());
}
