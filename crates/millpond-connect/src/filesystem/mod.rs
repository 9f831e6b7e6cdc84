//! The connector `filesystem`: files as tables.

pub mod listing;
pub(crate) mod reader;
pub mod source;

use std::sync::Arc;

use millpond_core::Result;

use crate::connector::ConnectorTable;
use crate::factory::TableSpec;
use crate::options::Options;

/// The options that the reading side takes.
pub(crate) const OPTIONS: &[&str] =
    &["path", "source.path.recursive", "recursive", "source.monitor-interval", "source.report-statistics"];

/// A table of files.
pub(crate) fn open(spec: &TableSpec, options: &mut Options) -> Result<ConnectorTable> {
    let source = source::FileSource::take(spec, options)?;
    Ok(ConnectorTable { source: Some(Arc::new(source)), ..ConnectorTable::default() })
}

#[cfg(test)]
mod tests;
