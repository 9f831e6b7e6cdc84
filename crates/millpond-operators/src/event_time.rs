//! Event time: turns the rows of one split into rows with computed columns, a watermark and late
//! tags.
//!
//! The watermark of a split is the largest value of the WATERMARK expression so far. A row is
//! tagged with the watermark *before* it (over the earlier rows of its split, in offset order)
//! when its time is at or below that; so which rows are late is a property of the split's content
//! and not of batch sizes, parallelism or timing.

use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use datafusion::physical_plan::PhysicalExpr;
use millpond_core::{BadRows, ChangelogBatch, Result, SourceMetrics, Timestamp, Watermark};

/// What the source of a table does to each batch before the first operator.
#[derive(Debug, Clone)]
pub struct EventTime {
    /// Output columns, as expressions over the columns that the connector gives (in the order of
    /// the source's projection): physical columns and computed ones.
    pub columns: Vec<Arc<dyn PhysicalExpr>>,
    /// Their names and types.
    pub schema: SchemaRef,
    /// The time attribute, if the table has a WATERMARK.
    pub watermark: Option<WatermarkSpec>,
}

/// A WATERMARK clause, over the connector's columns.
#[derive(Debug, Clone)]
pub struct WatermarkSpec {
    /// The time column.
    pub time: Arc<dyn PhysicalExpr>,
    /// The watermark expression.
    pub watermark: Arc<dyn PhysicalExpr>,
    /// Its column's name, for messages.
    pub column: String,
    /// Rows further ahead of the processing time than this many microseconds are bad; `None`: off.
    pub max_future: Option<i64>,
}

/// The running watermark of one split; part of the source's checkpointed state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct SplitWatermark {
    /// The largest value of the watermark expression so far; [`Timestamp::MIN`] before the first.
    pub current: Watermark,
}

impl Default for SplitWatermark {
    fn default() -> Self {
        Self { current: Timestamp::MIN }
    }
}

/// What a row without a usable time becomes; the caller keeps or reports it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BadTime {
    /// Index of the row in the input batch.
    pub row: usize,
    /// Why its time cannot be used.
    pub reason: String,
}
