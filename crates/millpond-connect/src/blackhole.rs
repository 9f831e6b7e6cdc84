//! The `blackhole` sink: takes everything and counts it; for benchmarks and tests.

use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use millpond_core::metric::Counter;
use millpond_core::{ChangelogBatch, ChangelogMode, CheckpointId, Result};

use crate::connector::{Committable, ConnectorTable, PreCommit, SinkConnector, SinkContext, SinkWriter};
use crate::factory::TableSpec;
use crate::options::Options;

/// The options of `blackhole`: none.
pub(crate) const OPTIONS: &[&str] = &[];

/// Parses the options of a table.
pub(crate) fn open(spec: &TableSpec, _options: &mut Options) -> Result<ConnectorTable> {
    let sink = BlackholeSink { schema: spec.schema.clone(), rows: Arc::default() };
    Ok(ConnectorTable {
        source: None,
        sink: Some(Arc::new(sink)),
        bad_rows: None,
        on_missing_file: None,
        idle_timeout: None,
        max_future: None,
    })
}

#[derive(Debug)]
struct BlackholeSink {
    schema: SchemaRef,
    rows: Arc<Counter>,
}

impl SinkConnector for BlackholeSink {
    fn schema(&self) -> SchemaRef {
        self.schema.clone()
    }
    fn mode(&self) -> ChangelogMode {
        ChangelogMode::Retract
    }
    fn ignores_update_before(&self) -> bool {
        true
    }
    fn is_transactional(&self) -> bool {
        false
    }
    fn open(&self, _context: SinkContext) -> Result<Box<dyn SinkWriter>> {
        Ok(Box::new(BlackholeWriter { rows: self.rows.clone() }))
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

#[derive(Debug)]
struct BlackholeWriter {
    rows: Arc<Counter>,
}

impl SinkWriter for BlackholeWriter {
    fn write(&mut self, batch: &ChangelogBatch) -> Result<()> {
        self.rows.add(batch.num_rows() as u64);
        Ok(())
    }
    fn end_epoch(&mut self) -> Result<()> {
        Ok(())
    }
    fn pre_commit(&mut self, _checkpoint: CheckpointId) -> Result<PreCommit> {
        Ok(PreCommit::nothing())
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::{ArrayRef, Int64Array, RecordBatch};

    use super::*;

    #[test]
    fn rows_are_counted_over_all_writers() {
        let column: ArrayRef = Arc::new(Int64Array::from(vec![1, 2, 3]));
        let rows = RecordBatch::try_from_iter([("n", column)]).unwrap();
        let counter = Arc::new(Counter::default());
        for _ in 0..2 {
            let mut writer = BlackholeWriter { rows: counter.clone() };
            writer.write(&ChangelogBatch::append(rows.clone())).unwrap();
            writer.end_epoch().unwrap();
            assert!(writer.pre_commit(CheckpointId(1)).unwrap().run().unwrap().is_empty());
        }
        assert_eq!(counter.value(), 6);
    }
}
