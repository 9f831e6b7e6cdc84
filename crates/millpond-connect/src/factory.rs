//! Opens connector tables: from `WITH (…)` to checked, typed connectors.
//!
//! Each connector takes the options that it knows; the factory takes those common to all, and
//! refuses what nobody took.

use std::collections::BTreeMap;

use arrow::datatypes::SchemaRef;
use millpond_core::{BadRows, Error, OnMissingFile, Result};

use crate::connector::ConnectorTable;
use crate::format::Format;
use crate::options::{Options, nearest};
use crate::{blackhole, datagen, filesystem, http_listen, nexmark, print, stdin, values};

/// The definition of a connector table.
#[derive(Debug, Clone)]
pub struct TableSpec {
    /// Its name, for messages.
    pub name: String,
    /// Its physical columns, and its metadata columns, marked by [`TableSpec::METADATA_KEY`].
    pub schema: SchemaRef,
    /// The columns of its primary key.
    pub primary_key: Vec<String>,
    /// The columns of PARTITIONED BY.
    pub partition_keys: Vec<String>,
    /// The options of WITH.
    pub options: BTreeMap<String, String>,
    /// The session's time zone, in which text without a zone is read as an instant.
    pub time_zone: String,
}

impl TableSpec {
    /// The key of a field's metadata that marks a metadata column and names what it holds.
    pub const METADATA_KEY: &str = "metadata-key";
}

/// A connector's side of the agreement.
struct Connector {
    name: &'static str,
    open: fn(&TableSpec, &mut Options) -> Result<ConnectorTable>,
    options: &'static [&'static str],
}

const CONNECTORS: &[Connector] = &[
    Connector { name: "blackhole", open: blackhole::open, options: blackhole::OPTIONS },
    Connector { name: "datagen", open: datagen::open, options: datagen::OPTIONS },
    Connector { name: "filesystem", open: filesystem::open, options: filesystem::OPTIONS },
    Connector { name: "http-listen", open: http_listen::open, options: http_listen::OPTIONS },
    Connector { name: "nexmark", open: nexmark::open, options: nexmark::OPTIONS },
    Connector { name: "print", open: print::open, options: print::OPTIONS },
    Connector { name: "stdin", open: stdin::open, options: stdin::OPTIONS },
    Connector { name: "values", open: values::open, options: values::OPTIONS },
];

/// The options that every connector table has.
const COMMON: &[&str] = &[
    "connector",
    "bad-rows",
    "on-missing-file",
    "source.idle-timeout",
    "source.max-future",
    "scan.watermark.emit.strategy",
];

/// Checks a definition and opens its connector. Nothing outside is touched yet.
///
/// Errors: *Invalid* for unknown connectors and options (naming the nearest) and for values that
/// cannot be read.
pub fn open_table(spec: TableSpec) -> Result<ConnectorTable> {
    let mut options = Options::new(&spec.name, spec.options.clone());
    let name = options.require("connector")?;
    let connector =
        CONNECTORS.iter().find(|connector| connector.name == name).ok_or_else(|| unknown(&spec, &name))?;
    let mut table = (connector.open)(&spec, &mut options)?;
    take_common(&mut table, &mut options)?;
    let known: Vec<&str> = [connector.options, COMMON, Format::OPTIONS].concat();
    options.finish(&known)?;
    Ok(table)
}

fn unknown(spec: &TableSpec, name: &str) -> Error {
    let names = || CONNECTORS.iter().map(|connector| connector.name);
    let error = Error::invalid(format!("table {:?}: there is no connector '{name}'", spec.name));
    match nearest(name, names()) {
        Some(word) => error.with_hint(format!("did you mean '{word}'?")),
        None => error.with_hint(format!("use one of {}", names().collect::<Vec<_>>().join(", "))),
    }
}

fn take_common(table: &mut ConnectorTable, options: &mut Options) -> Result<()> {
    let policies = [("fail", BadRows::Fail), ("skip", BadRows::Skip), ("dead-letter", BadRows::DeadLetter)];
    let ignore = options.flag("json.ignore-parse-errors")?.unwrap_or(false);
    let ignore = options.flag("csv.ignore-parse-errors")?.unwrap_or(false) || ignore;
    let ignore = options.flag("debezium-json.ignore-parse-errors")?.unwrap_or(false) || ignore;
    table.bad_rows =
        options.choice("bad-rows", &policies)?.or(ignore.then_some(BadRows::Skip)).or(table.bad_rows);
    let gone = [("fail", OnMissingFile::Fail), ("skip", OnMissingFile::Skip)];
    table.on_missing_file = options.choice("on-missing-file", &gone)?.or(table.on_missing_file);
    table.idle_timeout = options.duration("source.idle-timeout")?.or(table.idle_timeout);
    table.max_future = options.duration("source.max-future")?.or(table.max_future);
    // Which rows are late is the same for both, so there is nothing to keep.
    options.choice("scan.watermark.emit.strategy", &[("on-periodic", ()), ("on-event", ())])?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::datatypes::{DataType, Field, Schema};

    use super::*;

    fn open(options: &[(&str, &str)]) -> Result<ConnectorTable> {
        let field = |name: &str| Field::new(name, DataType::Int64, true);
        open_table(TableSpec {
            name: "t".into(),
            schema: Arc::new(Schema::new(vec![field("a"), field("b")])),
            primary_key: vec![],
            partition_keys: vec![],
            options: options.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect(),
            time_zone: "UTC".into(),
        })
    }

    fn hint(options: &[(&str, &str)]) -> String {
        open(options).unwrap_err().hint().unwrap_or_default().to_string()
    }

    #[test]
    fn options_are_checked_when_the_table_is_opened() {
        let files = [("connector", "filesystem"), ("path", "/none"), ("format", "csv")];
        assert!(open(&files).unwrap().source.is_some());
        assert_eq!(hint(&[("connector", "filesytem")]), "did you mean 'filesystem'?");
        assert_eq!(
            hint(&[files[0], files[1], files[2], ("csv.field-delimeter", ";")]),
            "did you mean 'csv.field-delimiter'?"
        );
        assert_eq!(
            hint(&[files[0], files[1], ("format", "avro")]),
            "use one of csv, json, debezium-json, parquet"
        );
        assert_eq!(hint(&[files[0], files[1]]), "add 'format' = '…' to WITH (…)");
        for bad in [("bad-rows", "ignore"), ("source.idle-timeout", "soon"), ("csv.field-delimiter", "||")] {
            assert!(open(&[files[0], files[1], files[2], bad]).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn common_options_reach_the_table() {
        let values = [("connector", "values"), ("data", "1,2")];
        let table = open(&[
            values[0],
            values[1],
            ("source.idle-timeout", "5 s"),
            ("csv.ignore-parse-errors", "true"),
        ]);
        let table = table.unwrap();
        assert_eq!((table.idle_timeout, table.bad_rows), (Some(5_000_000), Some(BadRows::Skip)));
        assert_eq!(open(&values).unwrap().bad_rows, None);
    }
}
