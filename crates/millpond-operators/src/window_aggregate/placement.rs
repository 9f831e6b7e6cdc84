//! Placement: where the rows of a batch count.

use std::collections::BTreeMap;

use arrow::array::Array;
use arrow::datatypes::DataType;
use millpond_core::time::timestamp_values;
use millpond_core::{ChangelogBatch, OperatorMetrics, Result, TimePrecision, Timestamp, Watermark};

use super::WindowAggregateFactory;
use crate::window::{WINDOW_TIME_MAX, WindowKind, WindowSpec};

/// The rows of a batch by the ends of panes and of windows; counts of the others.
#[derive(Default)]
pub(super) struct Placement {
    pub(super) panes: BTreeMap<i64, Vec<u32>>,
    pub(super) overlay: BTreeMap<i64, Vec<u32>>,
    overlay_rows: u64,
    late: u64,
    rejected: u64,
    between: u64,
}

impl Placement {
    /// Decides for each row of a batch where it counts.
    pub(super) fn of(
        factory: &WindowAggregateFactory,
        watermark: Watermark,
        batch: &ChangelogBatch,
    ) -> Result<Self> {
        let column = batch.rows.column(factory.time_column);
        let (values, precision) = timestamp_values(column)?;
        let window = &factory.window;
        // A column without a zone is in local time already.
        let zoned = matches!(column.data_type(), DataType::Timestamp(_, Some(_)));
        let cumulative = matches!(window.kind, WindowKind::Cumulate { .. });
        let mut placement = Placement::default();
        let mut pane = Pane::nowhere();
        for (row, value) in values.iter().enumerate() {
            let time = precision.to_timestamp(*value).0;
            let local = if zoned { window.local(time) } else { time };
            if column.is_null(row) || local.unsigned_abs() >= WINDOW_TIME_MAX as u64 {
                placement.rejected += 1;
                continue;
            }
            if local < pane.start || local >= pane.end {
                placement.pane_rows(&mut pane);
                pane = Pane::of(window, precision, local, watermark);
            }
            let Some(ends) = pane.windows else {
                placement.between += 1;
                continue;
            };
            let tag = batch.late_tag(row);
            if tag.max(watermark) >= pane.last_final {
                placement.late += 1;
            } else if tag >= pane.open_final {
                let is_over = |end| window.final_at(end, precision) <= tag.max(watermark);
                let first = window.first_open(ends, is_over).unwrap_or(ends.1);
                match cumulative {
                    true => placement.panes.entry(first).or_default().push(row as u32),
                    false => placement.overlay_row(row, (first, ends.1), window.slide()),
                }
            } else {
                pane.rows.push(row as u32);
            }
        }
        placement.pane_rows(&mut pane);
        Ok(placement)
    }

    pub(super) fn count(&self, metrics: &OperatorMetrics) {
        let in_panes: usize = self.panes.values().map(Vec::len).sum();
        metrics.accepted.add(in_panes as u64 + self.overlay_rows);
        metrics.late.add(self.late);
        metrics.rejected.add(self.rejected);
        metrics.filtered.add(self.between);
    }

    fn pane_rows(&mut self, pane: &mut Pane) {
        if !pane.rows.is_empty() {
            self.panes.entry(pane.counts_at).or_default().append(&mut pane.rows);
        }
    }

    fn overlay_row(&mut self, row: usize, (first, last): (i64, i64), slide: i64) {
        self.overlay_rows += 1;
        for end in (first..=last).step_by(slide as usize) {
            self.overlay.entry(end).or_default().push(row as u32);
        }
    }
}

/// A pane during the placement of a batch.
struct Pane {
    start: i64,
    end: i64,
    /// The pane that its rows are folded into: itself, or for CUMULATE the one at the end of the
    /// first window that has not fired.
    counts_at: i64,
    /// Ends of the first and last window that it is part of.
    windows: Option<(i64, i64)>,
    /// From which watermark on the first window that has not fired is final.
    open_final: Timestamp,
    /// From which watermark on the last window is final.
    last_final: Timestamp,
    rows: Vec<u32>,
}

impl Pane {
    /// The pane in which no time lies.
    fn nowhere() -> Self {
        let (open_final, last_final) = (Timestamp::MAX, Timestamp::MAX);
        Self { start: 0, end: 0, counts_at: 0, windows: None, open_final, last_final, rows: Vec::new() }
    }

    fn of(window: &WindowSpec, precision: TimePrecision, local: i64, watermark: Watermark) -> Self {
        let end = window.pane_end(local);
        let windows = window.ends(local);
        let final_at = |end| window.final_at(end, precision);
        let first_open = windows.and_then(|ends| window.first_open(ends, |end| final_at(end) <= watermark));
        let cumulative = matches!(window.kind, WindowKind::Cumulate { .. });
        Self {
            start: end - window.pane(),
            end,
            counts_at: first_open.filter(|_| cumulative).unwrap_or(end),
            windows,
            open_final: first_open.map_or(Timestamp::MAX, final_at),
            last_final: windows.map_or(Timestamp::MIN, |(_, last)| final_at(last)),
            rows: Vec::new(),
        }
    }
}
