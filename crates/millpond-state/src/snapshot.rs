//! Snapshot parts: a delta as sorted rows, and those rows as a Parquet file.
//!
//! A part has the columns `_kg` (key group), `_op` (0 upsert, 1 delete), then the table's own;
//! value columns are NULL for deletes. It is sorted by (`_kg`, identity), so that a task reads
//! only its key groups, and the same order serves RocksDB.
//!
//! ```text
//! Delta ──from_delta──▶ PartRows ──write_part──▶ Parquet
//!                        ▲    └── fold (fold.rs) ──▶ live rows
//!                        └──────── read_part ◀── Parquet
//! ```
//!
//!  1. A part holds at most one row per identity.
//!  2. `expired_through` of a part speaks of *earlier* parts; its own rows are live by it.
//!  3. Bytes are checked against their CRC32C before they are decoded.

use std::collections::HashSet;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, FixedSizeBinaryArray, Float32Array, Float64Array, Int8Array, Int64Array,
    IntervalMonthDayNanoArray, RecordBatch, RecordBatchOptions, UInt16Array, new_null_array,
};
use arrow::buffer::NullBuffer;
use arrow::datatypes::{
    DataType, Field, Float32Type, Float64Type, Int8Type, Int64Type, IntervalMonthDayNano,
    IntervalMonthDayNanoType, IntervalUnit, Schema, SchemaRef, UInt16Type,
};
use bytes::Bytes;
use millpond_core::key::{canonical_f64, key_group, stable_hashes};
use millpond_core::{Error, KeyGroup, KeyGroupRange, Result};
use parquet::arrow::ArrowWriter;
use parquet::arrow::arrow_reader::{ParquetRecordBatchReader, ParquetRecordBatchReaderBuilder};
use parquet::basic::{Compression, Encoding, ZstdLevel};
use parquet::errors::ParquetError;
use parquet::file::metadata::{KeyValue, RowGroupMetaData};
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use parquet::file::statistics::Statistics;
use parquet::schema::types::ColumnPath;

use crate::files::{self, Checked};
use crate::table::{Delta, TableDef, TableKind};

mod fold;

#[cfg(feature = "rocksdb")]
pub(crate) use fold::Identities;
pub(crate) use fold::{fold, restrict};

/// Rows of a batch read or made here: large enough to be fast, small enough for memory.
pub(crate) const ROWS_MAX: usize = 1 << 16;
/// Rows of a row group: the unit that a task with a part of the key groups can skip.
const ROW_GROUP_ROWS: usize = 1 << 17;

const KEY_GROUP: usize = 0;
const OP: usize = 1;
const FIRST: usize = 2;

/// The rows of a part, in order.
#[derive(Debug, Clone, Default)]
pub(crate) struct PartRows {
    /// Sorted, with the columns of [`part_schema`].
    pub(crate) batches: Vec<RecordBatch>,
    /// Whether it is everything, so that earlier parts are not needed.
    pub(crate) base: bool,
    /// Rows of earlier parts whose window end is at or below this are gone.
    pub(crate) expired_through: Option<i64>,
}

impl PartRows {
    /// A delta in storage order; of a base, deletes are left out.
    pub(crate) fn from_delta(
        def: &TableDef,
        max_parallelism: u16,
        delta: &Delta,
        base: bool,
    ) -> Result<Self> {
        check_delta(def, delta)?;
        let mut batches = vec![part_batch(def, max_parallelism, &delta.upserts, Op::Upsert)?];
        if !base && delta.deletes.num_rows() > 0 {
            batches.push(part_batch(def, max_parallelism, &delta.deletes, Op::Delete)?);
        }
        let own = fold::Source { batches: &batches, expired: delta.expired_through };
        let batches = fold::arrange(def, &[own], true, None)?;
        Ok(Self { batches, base, expired_through: delta.expired_through.filter(|_| !base) })
    }
    /// Number of rows, deletes included.
    pub(crate) fn rows(&self) -> u64 {
        self.batches.iter().map(|batch| batch.num_rows() as u64).sum()
    }
    /// Whether it says nothing.
    pub(crate) fn is_empty(&self) -> bool {
        self.rows() == 0 && self.expired_through.is_none()
    }
    /// The largest window end of a window table's rows.
    pub(crate) fn window_max(&self, def: &TableDef) -> Option<i64> {
        let batches = self.batches.iter().filter(|_| def.kind == TableKind::Window);
        batches.filter_map(|batch| arrow::compute::max(window_ends(batch))).max()
    }
    /// The key groups between which the rows lie; the rows are sorted by them.
    pub(crate) fn key_groups(&self) -> Option<KeyGroupRange> {
        let first = *key_groups(self.batches.first()?).values().first()?;
        let last = *key_groups(self.batches.last()?).values().last()?;
        Some(KeyGroupRange { start: first, end: last + 1 })
    }
    /// The table's own columns of the rows, which must all be upserts.
    pub(crate) fn table_batches(&self, def: &TableDef) -> Result<Vec<RecordBatch>> {
        let batches = self.batches.iter().filter(|batch| batch.num_rows() > 0);
        let table = |batch: &RecordBatch| {
            RecordBatch::try_new(def.schema.clone(), batch.columns()[FIRST..].to_vec()).map_err(|e| {
                Error::corrupt(format!("rows of state table {:?} are not its own: {e}", def.name))
            })
        };
        batches.map(table).collect()
    }
}

/// Whether a row of a part is there or gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Op {
    Upsert = 0,
    Delete = 1,
}

/// The key groups of a part's rows.
pub(crate) fn key_groups(batch: &RecordBatch) -> &UInt16Array {
    batch.column(KEY_GROUP).as_primitive::<UInt16Type>()
}

/// What the rows of a part are: values of [`Op`].
pub(crate) fn ops(batch: &RecordBatch) -> &Int8Array {
    batch.column(OP).as_primitive::<Int8Type>()
}

/// The window ends of a window table's part.
pub(crate) fn window_ends(batch: &RecordBatch) -> &Int64Array {
    batch.column(FIRST).as_primitive::<Int64Type>()
}

/// The identity columns of a part.
pub(crate) fn identity<'a>(def: &TableDef, batch: &'a RecordBatch) -> &'a [ArrayRef] {
    &batch.columns()[FIRST..FIRST + def.identity_columns]
}

/// The value columns of a part.
#[cfg_attr(not(feature = "rocksdb"), expect(dead_code, reason = "only RocksDB keeps values apart"))]
pub(crate) fn values<'a>(def: &TableDef, batch: &'a RecordBatch) -> &'a [ArrayRef] {
    &batch.columns()[FIRST + def.identity_columns..]
}

/// Puts a part's batch together from its key groups and the table's columns.
pub(crate) fn assemble(
    def: &TableDef,
    groups: UInt16Array,
    op: Op,
    columns: Vec<ArrayRef>,
) -> Result<RecordBatch> {
    let ops = Int8Array::from_value(op as i8, groups.len());
    let mut all: Vec<ArrayRef> = vec![Arc::new(groups), Arc::new(ops)];
    all.extend(columns);
    RecordBatch::try_new(part_schema(def), all)
        .map_err(|e| Error::internal(format!("rows do not fit state table {:?}: {e}", def.name)))
}

/// The columns of a part. Value columns can be NULL: a delete has none.
pub(crate) fn part_schema(def: &TableDef) -> SchemaRef {
    let own = def.schema.fields().iter().enumerate().map(|(index, field)| {
        let nullable = field.is_nullable() || index >= def.identity_columns;
        Arc::new(field.as_ref().clone().with_nullable(nullable))
    });
    let mut fields = vec![
        Arc::new(Field::new("_kg", DataType::UInt16, false)),
        Arc::new(Field::new("_op", DataType::Int8, false)),
    ];
    fields.extend(own);
    Arc::new(Schema::new(fields))
}

fn check_delta(def: &TableDef, delta: &Delta) -> Result<()> {
    let types = |batch: &RecordBatch| -> Vec<DataType> {
        batch.columns().iter().map(|column| column.data_type().clone()).collect()
    };
    let own: Vec<DataType> = def.schema.fields().iter().map(|field| field.data_type().clone()).collect();
    let deletes = types(&delta.deletes);
    let fits = types(&delta.upserts) == own
        && (delta.deletes.num_rows() == 0 || deletes == own[..def.identity_columns])
        && (def.kind != TableKind::Window || own.first() == Some(&DataType::Int64));
    if fits {
        return Ok(());
    }
    Err(Error::internal(format!("a delta of state table {:?} does not have its columns", def.name)))
}

fn part_batch(def: &TableDef, max_parallelism: u16, rows: &RecordBatch, op: Op) -> Result<RecordBatch> {
    let given = rows.columns().iter().enumerate();
    let mut columns: Vec<ArrayRef> = given
        .map(|(index, column)| if index < def.identity_columns { canonical(column) } else { column.clone() })
        .collect();
    let missing = &def.schema.fields()[columns.len()..];
    columns.extend(missing.iter().map(|field| new_null_array(field.data_type(), rows.num_rows())));
    let partition: Vec<ArrayRef> =
        def.partition_columns.iter().map(|index| columns[*index].clone()).collect();
    let hashes = stable_hashes(&partition, rows.num_rows())?;
    let groups = hashes.iter().map(|hash| key_group(*hash, max_parallelism)).collect();
    assemble(def, groups, op, columns)
}

/// A key has one notation: −0.0 and 0.0 are one identity, and so are all NaNs.
fn canonical(column: &ArrayRef) -> ArrayRef {
    match column.data_type() {
        DataType::Float32 => {
            let values: Float32Array =
                column.as_primitive::<Float32Type>().unary(|value| canonical_f64(f64::from(value)) as f32);
            Arc::new(values)
        }
        DataType::Float64 => {
            let values: Float64Array = column.as_primitive::<Float64Type>().unary(canonical_f64);
            Arc::new(values)
        }
        _other => column.clone(),
    }
}

/// Writes a part as a Parquet file, durably; `notes` go into the file's own metadata.
pub(crate) fn write_part(
    path: &Path,
    def: &TableDef,
    rows: &PartRows,
    notes: &[(&str, String)],
) -> Result<Checked> {
    let schema = stored_schema(def);
    let failed = |error: ParquetError| write_failure(path, def, &error);
    files::write_durably(path, |file| {
        let properties = writer_properties(&schema, notes);
        let mut writer =
            ArrowWriter::try_new(file as &mut (dyn Write + Send), schema.clone(), Some(properties))
                .map_err(failed)?;
        for batch in &rows.batches {
            writer.write(&encode(&schema, batch)?).map_err(failed)?;
        }
        writer.close().map_err(failed)?;
        Ok(())
    })
}

fn write_failure(path: &Path, def: &TableDef, error: &ParquetError) -> Error {
    match error {
        ParquetError::NYI(_) | ParquetError::ArrowError(_) => {
            Error::invalid(format!("state table {:?} has a column that cannot be stored: {error}", def.name))
        }
        _other => Error::unavailable(format!("cannot write {path:?}: {error}")),
    }
}

/// Measured: a third of the bytes of dictionaries, and four times as fast.
fn writer_properties(schema: &Schema, notes: &[(&str, String)]) -> WriterProperties {
    let notes = notes.iter().map(|(key, value)| KeyValue::new(format!("millpond.{key}"), value.clone()));
    let level = ZstdLevel::try_new(1).expect("zstd has a level 1");
    let mut properties = WriterProperties::builder()
        .set_compression(Compression::ZSTD(level))
        .set_dictionary_enabled(false)
        .set_statistics_enabled(EnabledStatistics::Chunk)
        .set_max_row_group_row_count(Some(ROW_GROUP_ROWS))
        .set_key_value_metadata(Some(notes.collect()));
    for field in schema.fields() {
        if let Some(encoding) = encoding_of(field.data_type()) {
            properties =
                properties.set_column_encoding(ColumnPath::new(vec![field.name().clone()]), encoding);
        }
    }
    properties.build()
}

fn encoding_of(data_type: &DataType) -> Option<Encoding> {
    match data_type {
        whole if whole.is_integer() => Some(Encoding::DELTA_BINARY_PACKED),
        DataType::Date32
        | DataType::Date64
        | DataType::Time32(_)
        | DataType::Time64(_)
        | DataType::Timestamp(_, _)
        | DataType::Duration(_) => Some(Encoding::DELTA_BINARY_PACKED),
        DataType::Utf8
        | DataType::LargeUtf8
        | DataType::Utf8View
        | DataType::Binary
        | DataType::LargeBinary
        | DataType::BinaryView => Some(Encoding::DELTA_LENGTH_BYTE_ARRAY),
        _other => None,
    }
}

const MONTH_DAY_NANO: DataType = DataType::Interval(IntervalUnit::MonthDayNano);

/// The columns as the file has them: distinct names (a join's two sides may share some), and a
/// month-day-nanosecond interval, which Parquet lacks, as its 16 little-endian bytes.
fn stored_schema(def: &TableDef) -> SchemaRef {
    let mut taken = HashSet::new();
    let schema = part_schema(def);
    let stored = schema.fields().iter().map(|field| {
        let mut name = field.name().clone();
        while !taken.insert(name.clone()) {
            name.push('_');
        }
        let data_type = field.data_type();
        let data_type = if *data_type == MONTH_DAY_NANO { &DataType::FixedSizeBinary(16) } else { data_type };
        Field::new(name, data_type.clone(), field.is_nullable())
    });
    Arc::new(Schema::new(stored.collect::<Vec<Field>>()))
}

fn encode(schema: &SchemaRef, batch: &RecordBatch) -> Result<RecordBatch> {
    let columns = batch.columns().iter().map(|column| match column.data_type() {
        interval if *interval == MONTH_DAY_NANO => interval_bytes(column.as_primitive()),
        _other => column.clone(),
    });
    RecordBatch::try_new(schema.clone(), columns.collect()).map_err(|e| Error::internal(e.to_string()))
}

fn interval_bytes(column: &IntervalMonthDayNanoArray) -> ArrayRef {
    let mut bytes = Vec::with_capacity(column.len() * 16);
    for value in column.values() {
        bytes.extend_from_slice(&value.months.to_le_bytes());
        bytes.extend_from_slice(&value.days.to_le_bytes());
        bytes.extend_from_slice(&value.nanoseconds.to_le_bytes());
    }
    Arc::new(FixedSizeBinaryArray::new(16, bytes.into(), column.nulls().cloned()))
}

fn interval_values(column: &FixedSizeBinaryArray) -> ArrayRef {
    let value = |row: usize| {
        let bytes = column.value(row);
        let part = |at: usize| i32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let nanoseconds = (i64::from(part(12)) << 32) | i64::from(part(8) as u32);
        IntervalMonthDayNano { months: part(0), days: part(4), nanoseconds }
    };
    let values: Vec<IntervalMonthDayNano> = (0..column.len()).map(value).collect();
    let nulls: Option<NullBuffer> = column.nulls().cloned();
    Arc::new(arrow::array::PrimitiveArray::<IntervalMonthDayNanoType>::new(values.into(), nulls))
}

/// Decodes a part whose bytes were checked, skipping row groups outside `range`; rows outside it
/// may remain.
///
/// Errors: *Invalid* when the part has other columns than the table, *Corrupt* when it cannot be
/// decoded although its checksum is right.
pub(crate) fn read_part(def: &TableDef, content: Bytes, range: KeyGroupRange) -> Result<Vec<RecordBatch>> {
    let undecodable =
        |e: String| Error::corrupt(format!("a part of state table {:?} cannot be decoded: {e}", def.name));
    let builder =
        ParquetRecordBatchReaderBuilder::try_new(content).map_err(|error| undecodable(error.to_string()))?;
    check_columns(def, builder.schema())?;
    let groups = builder.metadata().row_groups().iter().enumerate();
    let wanted = groups.filter(|(_, group)| may_hold(group, range)).map(|(index, _)| index).collect();
    let reader: ParquetRecordBatchReader = builder
        .with_row_groups(wanted)
        .with_batch_size(ROWS_MAX)
        .build()
        .map_err(|error| undecodable(error.to_string()))?;
    let schema = part_schema(def);
    reader.map(|batch| decode(&schema, &batch.map_err(|error| undecodable(error.to_string()))?)).collect()
}

/// The table's columns as a part has them.
pub(crate) fn table_columns(content: Bytes) -> Result<SchemaRef> {
    let builder = ParquetRecordBatchReaderBuilder::try_new(content)
        .map_err(|e| Error::corrupt(format!("a part of a state table cannot be decoded: {e}")))?;
    let fields: Vec<_> = builder.schema().fields().iter().skip(FIRST).cloned().collect();
    Ok(std::sync::Arc::new(Schema::new(fields)))
}

fn check_columns(def: &TableDef, found: &Schema) -> Result<()> {
    let describe = |schema: &Schema| -> Vec<String> {
        schema
            .fields()
            .iter()
            .skip(FIRST)
            .map(|field| format!("{} {}", field.name(), field.data_type()))
            .collect()
    };
    let (found, wanted) = (describe(found), describe(&stored_schema(def)));
    if found == wanted {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "the stored state of table {:?} has other columns than the query needs",
        def.name
    ))
    .with_detail(format!("stored: {}; needed: {}", found.join(", "), wanted.join(", ")))
    .with_hint("the query has changed: give the job another name, or discard its state"))
}

fn may_hold(group: &RowGroupMetaData, range: KeyGroupRange) -> bool {
    let Some(Statistics::Int32(statistics)) = group.column(KEY_GROUP).statistics() else {
        return true;
    };
    let (min, max) = (statistics.min_opt(), statistics.max_opt());
    min.is_none_or(|min| *min < i32::from(range.end)) && max.is_none_or(|max| *max >= i32::from(range.start))
}

fn decode(schema: &SchemaRef, batch: &RecordBatch) -> Result<RecordBatch> {
    let columns = batch.columns().iter().zip(schema.fields()).map(|(column, field)| {
        if *field.data_type() == MONTH_DAY_NANO {
            interval_values(column.as_fixed_size_binary())
        } else {
            column.clone()
        }
    });
    let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
    RecordBatch::try_new_with_options(schema.clone(), columns.collect(), &options)
        .map_err(|e| Error::corrupt(format!("a part's columns do not fit its table: {e}")))
}

/// Whether two ranges share a key group.
pub(crate) fn intersects(one: KeyGroupRange, other: KeyGroupRange) -> bool {
    let (start, end): (KeyGroup, KeyGroup) = (one.start.max(other.start), one.end.min(other.end));
    start < end
}

#[cfg(test)]
pub(crate) mod tests;
