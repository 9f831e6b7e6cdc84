//! Rows as Parquet (zstd, level 1). What Parquet has no type for is widened, so that other
//! readers see a time and not a bare number: times in seconds become milliseconds.

use std::io::Write;
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::compute::cast;
use arrow::datatypes::{DataType, Field, IntervalUnit, Schema, SchemaRef, TimeUnit};
use millpond_core::{Error, Result};
use parquet::arrow::ArrowWriter;
use parquet::basic::{Compression, ZstdLevel};
use parquet::errors::ParquetError;
use parquet::file::properties::WriterProperties;

/// Encoded bytes that may wait in memory before a row group is closed. Readers work on row groups
/// in parallel; writers of many partitions hold one open each.
const ROW_GROUP_BYTES_MAX: usize = 16 << 20;

/// Writes one Parquet file.
pub(crate) struct ParquetEncoder<W: Write + Send> {
    schema: SchemaRef,
    writer: ArrowWriter<W>,
}

impl<W: Write + Send> ParquetEncoder<W> {
    /// A file with the columns of `schema`.
    pub(crate) fn new(out: W, schema: &Schema) -> Result<Self> {
        refuse_intervals(schema)?;
        let schema = widened_schema(schema);
        let level = ZstdLevel::try_new(1).map_err(|error| Error::internal(error.to_string()))?;
        let properties = WriterProperties::builder().set_compression(Compression::ZSTD(level)).build();
        let writer =
            ArrowWriter::try_new(out, schema.clone(), Some(properties)).map_err(|error| match error {
                ParquetError::External(error) => {
                    Error::unavailable(format!("cannot begin a parquet file: {error}"))
                }
                error => Error::invalid(format!("the columns cannot be written as parquet: {error}")),
            })?;
        Ok(Self { schema, writer })
    }

    /// Appends rows.
    pub(crate) fn write(&mut self, rows: &RecordBatch) -> Result<()> {
        let fields = self.schema.fields().iter();
        let columns = rows.columns().iter().zip(fields).map(|(column, field)| {
            match column.data_type() == field.data_type() {
                true => Ok(column.clone()),
                false => cast(column, field.data_type()).map_err(Error::from),
            }
        });
        let columns = columns.collect::<Result<Vec<_>>>()?;
        let rows = RecordBatch::try_new(self.schema.clone(), columns)?;
        self.writer.write(&rows).map_err(cannot_write)?;
        if self.writer.in_progress_size() >= ROW_GROUP_BYTES_MAX {
            self.writer.flush().map_err(cannot_write)?;
        }
        Ok(())
    }

    /// Bytes written and waiting, about.
    pub(crate) fn bytes(&self) -> u64 {
        (self.writer.bytes_written() + self.writer.in_progress_size()) as u64
    }

    /// Completes the file.
    pub(crate) fn finish(self) -> Result<W> {
        self.writer.into_inner().map_err(cannot_write)
    }
}

fn cannot_write(error: ParquetError) -> Error {
    Error::unavailable(format!("cannot write parquet: {error}"))
}

/// The writer itself would only complain at the first row.
fn refuse_intervals(schema: &Schema) -> Result<()> {
    let is_interval =
        |data_type: &DataType| matches!(data_type, DataType::Interval(IntervalUnit::MonthDayNano));
    match schema.fields().iter().find(|field| is_interval(field.data_type())) {
        None => Ok(()),
        Some(field) => Err(Error::invalid(format!(
            "column {:?} is an interval, which parquet cannot hold",
            field.name()
        ))
        .with_hint("cast it to VARCHAR")),
    }
}

fn widened_schema(schema: &Schema) -> SchemaRef {
    let fields = schema
        .fields()
        .iter()
        .map(|field| Field::new(field.name(), widened(field.data_type()), field.is_nullable()));
    Arc::new(Schema::new(fields.collect::<Vec<_>>()))
}

fn widened(data_type: &DataType) -> DataType {
    match data_type {
        DataType::Timestamp(TimeUnit::Second, zone) => {
            DataType::Timestamp(TimeUnit::Millisecond, zone.clone())
        }
        DataType::Time32(TimeUnit::Second) => DataType::Time32(TimeUnit::Millisecond),
        other => other.clone(),
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::{ArrayRef, Int64Array, StringArray, TimestampMillisecondArray, TimestampSecondArray};
    use bytes::Bytes;
    use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;

    use super::*;

    #[test]
    fn rows_come_back() {
        let columns: Vec<(&str, ArrayRef)> = vec![
            ("n", Arc::new(Int64Array::from(vec![Some(1), None]))),
            ("s", Arc::new(StringArray::from(vec![None, Some("x")]))),
            ("t", Arc::new(TimestampSecondArray::from(vec![Some(1), None]))),
        ];
        let rows =
            RecordBatch::try_from_iter_with_nullable(columns.into_iter().map(|(n, c)| (n, c, true))).unwrap();
        let mut encoder = ParquetEncoder::new(Vec::new(), &rows.schema()).unwrap();
        encoder.write(&rows).unwrap();
        assert!(encoder.bytes() > 0);
        let file = Bytes::from(encoder.finish().unwrap());
        let mut batches = ParquetRecordBatchReaderBuilder::try_new(file).unwrap().build().unwrap();
        let back = batches.next().unwrap().unwrap();
        assert_eq!(back.columns()[..2], rows.columns()[..2]);
        let times: ArrayRef = Arc::new(TimestampMillisecondArray::from(vec![Some(1_000), None]));
        assert_eq!(back.column(2), &times);
        assert!(batches.next().is_none());
    }

    #[test]
    fn a_type_that_parquet_lacks_is_refused() {
        let interval = DataType::Interval(IntervalUnit::MonthDayNano);
        let schema = Schema::new(vec![Field::new("i", interval, true)]);
        let result = ParquetEncoder::new(Vec::new(), &schema).map(|_| ());
        assert_eq!(result.unwrap_err().kind(), millpond_core::ErrorKind::Invalid);
    }
}
