//! Rows that a query gives itself: VALUES, and SELECT without FROM.

use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use millpond_core::{ChangelogBatch, ChangelogMode, Result};

use crate::connector::{Position, ReaderContext, SourceConnector, SourcePoll, Split, SplitReader};
use crate::filesystem::source::parse_position;

const SPLIT: &str = "rows";

/// A source that gives these rows, once.
pub fn given_rows(rows: RecordBatch) -> Arc<dyn SourceConnector> {
    Arc::new(GivenRows(rows))
}

#[derive(Debug)]
struct GivenRows(RecordBatch);

impl SourceConnector for GivenRows {
    fn schema(&self) -> SchemaRef {
        self.0.schema()
    }
    fn is_bounded(&self) -> bool {
        true
    }
    fn mode(&self) -> ChangelogMode {
        ChangelogMode::Append
    }
    fn splits(&self) -> Result<Vec<Split>> {
        Ok(vec![Split { id: SPLIT.into() }])
    }
    fn discovery_interval(&self) -> Option<i64> {
        None
    }
    fn open(
        &self,
        _: &Split,
        position: Option<&Position>,
        context: ReaderContext,
    ) -> Result<Box<dyn SplitReader>> {
        let given = position.map(parse_position).transpose()?.unwrap_or(0);
        Ok(Box::new(GivenRowsReader { rows: self.0.project(&context.projection)?, given, context }))
    }
}

struct GivenRowsReader {
    rows: RecordBatch,
    given: usize,
    context: ReaderContext,
}

impl SplitReader for GivenRowsReader {
    fn poll(&mut self, rows_max: usize) -> Result<SourcePoll> {
        let length = self.rows.num_rows().saturating_sub(self.given).min(rows_max);
        if length == 0 {
            return Ok(SourcePoll::End);
        }
        let rows = self.rows.slice(self.given, length);
        self.given += length;
        self.context.metrics.read.add(length as u64);
        Ok(SourcePoll::Rows(ChangelogBatch::append(rows)))
    }
    fn position(&self) -> Position {
        Position(self.given.into())
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::{ArrayRef, Int64Array};
    use millpond_core::{
        BadRows, DeadLetter, DeadLetterOffice, ManualClock, OnMissingFile, SourceMetrics, Timestamp,
    };

    use super::*;

    #[derive(Debug)]
    struct NoLetters;

    impl DeadLetterOffice for NoLetters {
        fn keep(&self, _: DeadLetter) -> Result<()> {
            Ok(())
        }
    }

    #[test]
    fn from_a_position_the_rest_is_given() {
        let column: ArrayRef = Arc::new(Int64Array::from_iter_values(0..5));
        let source = given_rows(RecordBatch::try_from_iter([("n", column)]).unwrap());
        let context = ReaderContext {
            table: "t".into(),
            projection: vec![0],
            bad_rows: BadRows::Fail,
            on_missing_file: OnMissingFile::Fail,
            log_dir: None,
            dead_letters: Arc::new(NoLetters),
            metrics: Arc::new(SourceMetrics::default()),
            clock: Arc::new(ManualClock::new(Timestamp(0))),
        };
        let split = source.splits().unwrap().remove(0);
        let mut reader = source.open(&split, None, context.clone()).unwrap();
        assert!(matches!(reader.poll(3).unwrap(), SourcePoll::Rows(batch) if batch.num_rows() == 3));
        let mut rest = source.open(&split, Some(&reader.position()), context.clone()).unwrap();
        assert!(matches!(rest.poll(3).unwrap(), SourcePoll::Rows(batch) if batch.num_rows() == 2));
        assert!(matches!(rest.poll(3).unwrap(), SourcePoll::End));
        assert_eq!(context.metrics.read.value(), 5);
    }
}
