//! The connector `filesystem`: files as tables.

pub(crate) mod columns;
pub(crate) mod fingerprint;
pub mod listing;
pub(crate) mod reader;
mod sequence;
pub(crate) mod sink;
pub mod source;

use std::path::PathBuf;
use std::sync::Arc;

use millpond_core::Result;

use crate::connector::ConnectorTable;
use crate::factory::TableSpec;
use crate::options::Options;

/// The options of both sides.
pub(crate) const OPTIONS: &[&str] = &[
    "path",
    "source.path.recursive",
    "recursive",
    "source.monitor-interval",
    "source.report-statistics",
    "sink.rolling-policy.file-size",
    "compression",
];

fn folder(path: &str) -> PathBuf {
    PathBuf::from(path.strip_prefix("file://").unwrap_or(path))
}

/// A table of files.
pub(crate) fn open(spec: &TableSpec, options: &mut Options) -> Result<ConnectorTable> {
    let path = folder(spec.options.get("path").map_or("", String::as_str));
    let format = spec.options.get("format").map_or("", String::as_str);
    let source = source::FileSource::take(spec, options)?;
    let sink = sink::open_sink(spec, options, path, format)?;
    Ok(ConnectorTable { source: Some(Arc::new(source)), sink: Some(sink), ..ConnectorTable::default() })
}

#[cfg(test)]
mod tests;
