//! The `print` sink: every change as a line on standard output, as Flink prints it:
//! `+I[1, a, NULL]`.
//!
//! Lines of an epoch are written together when it ends, so that output of several tasks does not
//! mix within an epoch. This and the command line are the only places that print.

use std::fmt::Write as _;
use std::io::{ErrorKind, Write};
use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use millpond_core::{ChangelogBatch, ChangelogMode, CheckpointId, Error, Result};

use crate::connector::{Committable, ConnectorTable, PreCommit, SinkConnector, SinkContext, SinkWriter};
use crate::factory::TableSpec;
use crate::format::text::{ColumnText, TextFormat};
use crate::options::Options;

/// The options of `print`.
pub(crate) const OPTIONS: &[&str] = &["print-identifier", "standard-error"];

/// Text that waits for the end of an epoch; more than this is printed at once.
const PENDING_BYTES_MAX: usize = 4 << 20;

/// Parses the options of a table.
pub(crate) fn open(spec: &TableSpec, options: &mut Options) -> Result<ConnectorTable> {
    let identifier = options.text("print-identifier").filter(|text| !text.is_empty());
    let to_stderr = options.flag("standard-error")?.unwrap_or(false);
    let stream = if to_stderr { Stream::Err } else { Stream::Out };
    let sink = PrintSink {
        schema: spec.schema.clone(),
        format: TextFormat::display_in(&spec.time_zone)?,
        identifier,
        stream,
    };
    Ok(ConnectorTable {
        source: None,
        sink: Some(Arc::new(sink)),
        bad_rows: None,
        on_missing_file: None,
        idle_timeout: None,
        max_future: None,
    })
}

#[derive(Debug, Clone, Copy)]
enum Stream {
    Out,
    Err,
}

#[derive(Debug)]
struct PrintSink {
    schema: SchemaRef,
    format: TextFormat,
    identifier: Option<String>,
    stream: Stream,
}

impl SinkConnector for PrintSink {
    fn schema(&self) -> SchemaRef {
        self.schema.clone()
    }
    fn mode(&self) -> ChangelogMode {
        ChangelogMode::Retract
    }
    fn is_transactional(&self) -> bool {
        false
    }
    fn open(&self, context: SinkContext) -> Result<Box<dyn SinkWriter>> {
        let prefix = prefix(self.identifier.as_deref(), context.index, context.parallelism);
        Ok(Box::new(PrintWriter {
            lines: Lines { prefix, format: self.format, text: String::new() },
            stream: self.stream,
        }))
    }
    fn commit(&self, _committables: &[Committable]) -> Result<()> {
        Ok(())
    }
    fn abort_dangling(&self, _job: &str, _keep: &[Committable]) -> Result<()> {
        Ok(())
    }
    fn committed_after(&self, _job: &str, _checkpoint: CheckpointId) -> Result<Option<String>> {
        Ok(None)
    }
}

/// As Flink: `identifier:task> `, each part only where there is one to tell.
fn prefix(identifier: Option<&str>, index: usize, parallelism: usize) -> String {
    match (identifier, parallelism > 1) {
        (None, false) => String::new(),
        (None, true) => format!("{}> ", index + 1),
        (Some(identifier), false) => format!("{identifier}> "),
        (Some(identifier), true) => format!("{identifier}:{}> ", index + 1),
    }
}

#[derive(Debug)]
struct PrintWriter {
    lines: Lines,
    stream: Stream,
}

impl PrintWriter {
    fn publish(&mut self) -> Result<()> {
        if self.lines.text.is_empty() {
            return Ok(());
        }
        let text = self.lines.text.as_bytes();
        let printed = match self.stream {
            Stream::Out => print(&mut std::io::stdout().lock(), text),
            Stream::Err => print(&mut std::io::stderr().lock(), text),
        };
        self.lines.text.clear();
        printed.map_err(|error| match error.kind() {
            // The reader of a pipe has gone, as `head` does: nobody is left to tell.
            ErrorKind::BrokenPipe => Error::cancelled(),
            _ => Error::io("print", &error),
        })
    }
}

fn print(out: &mut impl Write, text: &[u8]) -> std::io::Result<()> {
    out.write_all(text)?;
    out.flush()
}

impl SinkWriter for PrintWriter {
    fn write(&mut self, batch: &ChangelogBatch) -> Result<()> {
        self.lines.push(batch)?;
        if self.lines.text.len() >= PENDING_BYTES_MAX {
            self.publish()?;
        }
        Ok(())
    }
    fn end_epoch(&mut self) -> Result<()> {
        self.publish()
    }
    fn pre_commit(&mut self, _checkpoint: CheckpointId) -> Result<PreCommit> {
        self.publish()?;
        Ok(PreCommit::nothing())
    }
}

/// The lines of the open epoch.
#[derive(Debug)]
struct Lines {
    prefix: String,
    format: TextFormat,
    text: String,
}

impl Lines {
    fn push(&mut self, batch: &ChangelogBatch) -> Result<()> {
        let columns = batch.rows.columns().iter().map(|column| self.format.formatter(column));
        let columns = columns.collect::<Result<Vec<_>>>()?;
        for row in 0..batch.num_rows() {
            write!(self.text, "{}{}[", self.prefix, batch.kind(row).symbol())
                .expect("writing to a string cannot fail");
            self.push_values(&columns, row);
            self.text.push_str("]\n");
        }
        Ok(())
    }

    fn push_values(&mut self, columns: &[ColumnText], row: usize) {
        for (index, column) in columns.iter().enumerate() {
            if index > 0 {
                self.text.push_str(", ");
            }
            match column.is_null(row) {
                true => self.text.push_str("NULL"),
                false => column.write(row, &mut self.text),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::{ArrayRef, Int64Array, RecordBatch, StringArray};
    use millpond_core::RowKind;

    use super::*;

    fn changes() -> ChangelogBatch {
        let columns: Vec<(&str, ArrayRef)> = vec![
            ("n", Arc::new(Int64Array::from(vec![1, 1]))),
            ("s", Arc::new(StringArray::from(vec![Some("a, b"), None]))),
        ];
        let rows =
            RecordBatch::try_from_iter_with_nullable(columns.into_iter().map(|(n, c)| (n, c, true))).unwrap();
        ChangelogBatch::with_kinds(rows, vec![RowKind::UpdateBefore, RowKind::UpdateAfter])
    }

    #[test]
    fn a_change_is_a_line() {
        let mut lines = Lines {
            prefix: prefix(Some("p"), 1, 2),
            format: TextFormat::display(chrono_tz::UTC),
            text: String::new(),
        };
        lines.push(&changes()).unwrap();
        assert_eq!(lines.text, "p:2> -U[1, a, b]\np:2> +U[1, NULL]\n");
    }

    #[test]
    fn the_prefix_names_only_what_there_is() {
        assert_eq!([prefix(None, 0, 1), prefix(None, 0, 2), prefix(Some("x"), 0, 1)], ["", "1> ", "x> "]);
    }
}
