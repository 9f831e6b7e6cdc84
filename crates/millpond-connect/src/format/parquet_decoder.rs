//! Parquet to columns: the parquet crate's reader, one row group at a time, so that a position is
//! exact to the row.
//!
//! Columns are found by name, absent ones are NULL, and other types are cast to the table's.
//! Damaged files are *Data* errors that name the file.

use std::fs::File;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, ArrowPrimitiveType, PrimitiveArray, RecordBatch, new_null_array};
use arrow::compute::{CastOptions, can_cast_types, cast_with_options};
use arrow::datatypes::{
    DataType, FieldRef, Schema, TimeUnit, TimestampMicrosecondType, TimestampMillisecondType,
    TimestampNanosecondType, TimestampSecondType,
};
use millpond_core::time::{TimePrecision, timestamp_values};
use millpond_core::{Error, Result};
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::{
    ArrowReaderMetadata, ArrowReaderOptions, ParquetRecordBatchReader, ParquetRecordBatchReaderBuilder,
};

use super::Faults;
use super::scalar::{Zone, type_name};

/// The magic bytes at both ends and the length of the footer.
const FILE_BYTES_MIN: u64 = 12;
const PAGE_ROWS: usize = 8192;

/// Reads one Parquet file.
pub(crate) struct ParquetReader {
    path: String,
    file: File,
    metadata: ArrowReaderMetadata,
    wanted: Vec<FieldRef>,
    /// Per wanted column: its index among the columns read, if the file has it.
    sources: Vec<Option<usize>>,
    mask: ProjectionMask,
    zone: Zone,
    position: ParquetPosition,
    group: Option<ParquetRecordBatchReader>,
    pending: Option<RecordBatch>,
}

/// The next row: its row group, and its index in there.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) struct ParquetPosition {
    row_group: usize,
    row: usize,
}

impl ParquetReader {
    pub(crate) fn open(
        path: &Path,
        wanted: Vec<FieldRef>,
        zone: Zone,
        position: ParquetPosition,
    ) -> Result<Self> {
        let name = path.display().to_string();
        let file = File::open(path).map_err(|error| Error::io(format!("open {name:?}"), &error))?;
        let length = file.metadata().map_err(|error| Error::io(format!("read {name:?}"), &error))?.len();
        if length < FILE_BYTES_MIN {
            return Err(Error::data(format!("{name:?} is not a Parquet file: it has only {length} bytes")));
        }
        let metadata = guarded(&name, || ArrowReaderMetadata::load(&file, ArrowReaderOptions::new()))?;
        let (sources, mask) = sources(metadata.schema(), &metadata, &wanted);
        Ok(Self {
            path: name,
            file,
            metadata,
            wanted,
            sources,
            mask,
            zone,
            position,
            group: None,
            pending: None,
        })
    }

    pub(crate) fn position(&self) -> ParquetPosition {
        self.position
    }

    /// Up to `rows_max` rows; `None` at the end.
    pub(crate) fn poll(
        &mut self,
        rows_max: usize,
        faults: &Faults,
    ) -> Result<Option<(Vec<ArrayRef>, usize)>> {
        let Some(batch) = self.next_batch()? else { return Ok(None) };
        let rows = batch.num_rows().min(rows_max);
        if rows < batch.num_rows() {
            self.pending = Some(batch.slice(rows, batch.num_rows() - rows));
        }
        let batch = batch.slice(0, rows);
        let columns: Result<Vec<ArrayRef>> =
            (0..self.wanted.len()).map(|at| self.column(&batch, at, faults)).collect();
        self.position.row += rows;
        faults.count_read(rows);
        Ok(Some((columns?, rows)))
    }

    fn next_batch(&mut self) -> Result<Option<RecordBatch>> {
        if let Some(batch) = self.pending.take() {
            return Ok(Some(batch));
        }
        let groups = self.metadata.metadata().num_row_groups();
        while self.position.row_group < groups {
            if self.group.is_none() {
                self.group = Some(self.open_group()?);
            }
            let Some(group) = &mut self.group else { break };
            match guarded(&self.path, || group.next().transpose())? {
                Some(batch) if batch.num_rows() > 0 => return Ok(Some(batch)),
                Some(_) => {}
                None => {
                    self.group = None;
                    self.position = ParquetPosition { row_group: self.position.row_group + 1, row: 0 };
                }
            }
        }
        Ok(None)
    }

    fn open_group(&self) -> Result<ParquetRecordBatchReader> {
        let file =
            self.file.try_clone().map_err(|error| Error::io(format!("open {:?}", self.path), &error))?;
        let builder = ParquetRecordBatchReaderBuilder::new_with_metadata(file, self.metadata.clone())
            .with_projection(self.mask.clone())
            .with_batch_size(PAGE_ROWS)
            .with_row_groups(vec![self.position.row_group])
            .with_offset(self.position.row);
        guarded(&self.path, || builder.build())
    }

    fn column(&self, batch: &RecordBatch, at: usize, faults: &Faults) -> Result<ArrayRef> {
        let field = &self.wanted[at];
        let Some(source) = self.sources[at] else {
            return Ok(new_null_array(field.data_type(), batch.num_rows()));
        };
        let column = batch.column(source);
        let about = || {
            format!(
                "cannot read column {:?} ({}) of {:?}",
                field.name(),
                type_name(field.data_type()),
                self.path
            )
        };
        if !can_convert(column.data_type(), field.data_type()) {
            let found = type_name(column.data_type());
            return Err(Error::data(format!("{}: it is {found} there", about())));
        }
        let converted = convert(column, field.data_type(), self.zone, !faults.are_fatal())
            .map_err(|error| error.context(about()))?;
        faults
            .context()
            .metrics
            .nulled
            .add((converted.null_count().saturating_sub(column.null_count())) as u64);
        Ok(converted)
    }
}

/// Which columns to read, and where the wanted ones are among them.
fn sources(
    schema: &Schema,
    metadata: &ArrowReaderMetadata,
    wanted: &[FieldRef],
) -> (Vec<Option<usize>>, ProjectionMask) {
    let found: Vec<Option<usize>> = wanted.iter().map(|field| schema.index_of(field.name()).ok()).collect();
    let mut roots: Vec<usize> = found.iter().flatten().copied().collect();
    roots.sort_unstable();
    roots.dedup();
    let sources = found.iter().map(|root| root.and_then(|root| roots.binary_search(&root).ok())).collect();
    (sources, ProjectionMask::roots(metadata.parquet_schema(), roots))
}

/// Runs a part of the parquet crate: its errors, and its panics on damaged bytes, are *Data*.
fn guarded<T, E: std::fmt::Display>(path: &str, work: impl FnOnce() -> Result<T, E>) -> Result<T> {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(error)) => Err(Error::data(format!("cannot read the Parquet file {path:?}: {error}"))),
        Err(_) => Err(Error::data(format!("cannot read the Parquet file {path:?}: it is damaged"))),
    }
}

fn can_convert(from: &DataType, to: &DataType) -> bool {
    matches!((from, to), (DataType::Timestamp(..), DataType::Timestamp(..))) || can_cast_types(from, to)
}

/// The column in another type; `safe`: what cannot be converted is NULL.
fn convert(column: &ArrayRef, to: &DataType, zone: Zone, safe: bool) -> Result<ArrayRef> {
    match (column.data_type(), to) {
        (from, to) if from == to => Ok(column.clone()),
        (DataType::Timestamp(_, from), DataType::Timestamp(unit, to_zone)) => {
            let local = from.is_none() && to_zone.is_some();
            let zone = if local { zone } else { Zone::Fixed(0) };
            let converted = match unit {
                TimeUnit::Second => in_unit::<TimestampSecondType>(column, zone, safe)?,
                TimeUnit::Millisecond => in_unit::<TimestampMillisecondType>(column, zone, safe)?,
                TimeUnit::Microsecond => in_unit::<TimestampMicrosecondType>(column, zone, safe)?,
                TimeUnit::Nanosecond => in_unit::<TimestampNanosecondType>(column, zone, safe)?,
            };
            Ok(retyped(converted, to))
        }
        _ => Ok(cast_with_options(column, to, &CastOptions { safe, ..CastOptions::default() })?),
    }
}

fn retyped(column: ArrayRef, to: &DataType) -> ArrayRef {
    match column.to_data().into_builder().data_type(to.clone()).build() {
        Ok(data) => arrow::array::make_array(data),
        Err(_) => column,
    }
}

/// Timestamps in another unit: rounded down, never toward zero; in a time zone, if they are
/// wall-clock times that become instants.
fn in_unit<T: ArrowPrimitiveType<Native = i64>>(
    column: &ArrayRef,
    zone: Zone,
    safe: bool,
) -> Result<ArrayRef> {
    let (values, precision) = timestamp_values(column)?;
    let to =
        TimePrecision::of(&T::DATA_TYPE).ok_or_else(|| Error::internal("a timestamp without a precision"))?;
    let (from, to) = (per_second(precision), per_second(to));
    let mut converted = Vec::with_capacity(values.len());
    let mut nulls = arrow::array::builder::NullBufferBuilder::new(values.len());
    for (row, value) in values.iter().enumerate() {
        let instant = column.is_valid(row).then(|| rescale(*value, from, to, zone));
        if instant == Some(None) && !safe {
            return Err(Error::data(format!("the time {value} is out of range")));
        }
        converted.push(instant.flatten().unwrap_or_default());
        nulls.append(instant.flatten().is_some());
    }
    Ok(Arc::new(PrimitiveArray::<T>::new(converted.into(), nulls.finish())))
}

fn rescale(value: i64, from: i64, to: i64, zone: Zone) -> Option<i64> {
    let scaled = i128::from(value) * i128::from(to);
    let local = i64::try_from(scaled.div_euclid(i128::from(from))).ok()?;
    match zone {
        Zone::Fixed(0) => Some(local),
        zone => local.checked_sub(zone.offset_of_local(value.div_euclid(from))?.checked_mul(to)?),
    }
}

fn per_second(precision: TimePrecision) -> i64 {
    match precision {
        TimePrecision::Second => 1,
        TimePrecision::Millisecond => 1_000,
        TimePrecision::Microsecond => 1_000_000,
        TimePrecision::Nanosecond => 1_000_000_000,
    }
}
