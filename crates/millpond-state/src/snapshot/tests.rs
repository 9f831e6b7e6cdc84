//! Parts come back as they were written, and folds keep what is newest.

use arrow::array::*;
use arrow::datatypes::*;
use millpond_core::ErrorKind;

use super::*;

const GROUPS: u16 = 16;

fn def(kind: TableKind, fields: Vec<Field>, identity: usize, partition: Vec<usize>) -> TableDef {
    let schema = Arc::new(Schema::new(fields));
    TableDef { name: "t".into(), kind, schema, identity_columns: identity, partition_columns: partition }
}

fn numbers() -> TableDef {
    let fields = vec![Field::new("k", DataType::Int64, false), Field::new("v", DataType::Int64, false)];
    def(TableKind::Value, fields, 1, vec![0])
}

fn windows() -> TableDef {
    let fields = vec![
        Field::new("window_end", DataType::Int64, false),
        Field::new("k", DataType::Int64, false),
        Field::new("v", DataType::Int64, false),
    ];
    def(TableKind::Window, fields, 2, vec![1])
}

fn ints(columns: &[&[i64]]) -> Vec<ArrayRef> {
    columns.iter().map(|values| Arc::new(Int64Array::from(values.to_vec())) as ArrayRef).collect()
}

fn delta(def: &TableDef, upserts: &[&[i64]], deletes: &[&[i64]], expired_through: Option<i64>) -> Delta {
    let identity = Arc::new(def.schema.project(&(0..def.identity_columns).collect::<Vec<_>>()).unwrap());
    Delta {
        upserts: RecordBatch::try_new(def.schema.clone(), ints(upserts)).unwrap(),
        deletes: RecordBatch::try_new(identity, ints(deletes)).unwrap(),
        expired_through,
    }
}

fn part(def: &TableDef, delta: &Delta, base: bool) -> PartRows {
    PartRows::from_delta(def, GROUPS, delta, base).unwrap()
}

/// Writes a part as a file and reads it back.
fn through_file(def: &TableDef, rows: &PartRows, range: KeyGroupRange) -> Result<PartRows> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("part.parquet");
    let checked = write_part(&path, def, rows, &[("table", "t".into())])?;
    let content = std::fs::read(&path).unwrap();
    assert_eq!((content.len() as u64, crc32c::crc32c(&content)), (checked.bytes, checked.crc32c));
    Ok(PartRows { batches: read_part(def, content.into(), range)?, ..rows.clone() })
}

fn sorted_ints(def: &TableDef, rows: &PartRows) -> Vec<Vec<i64>> {
    let mut found = Vec::new();
    for batch in rows.table_batches(def).unwrap() {
        let columns: Vec<&Int64Array> = batch.columns().iter().map(|column| column.as_primitive()).collect();
        found.extend(
            (0..batch.num_rows()).map(|row| columns.iter().map(|c| c.value(row)).collect::<Vec<_>>()),
        );
    }
    found.sort_unstable();
    found
}

fn every_type() -> Vec<ArrayRef> {
    let month = |months, days, nanoseconds| IntervalMonthDayNano { months, days, nanoseconds };
    vec![
        Arc::new(NullArray::new(4)),
        Arc::new(BooleanArray::from(vec![Some(true), None, Some(false), Some(true)])),
        Arc::new(Int8Array::from(vec![Some(i8::MIN), None, Some(0), Some(i8::MAX)])),
        Arc::new(Int16Array::from(vec![Some(i16::MIN), None, Some(0), Some(i16::MAX)])),
        Arc::new(Int32Array::from(vec![Some(i32::MIN), None, Some(0), Some(i32::MAX)])),
        Arc::new(Int64Array::from(vec![Some(i64::MIN), None, Some(0), Some(i64::MAX)])),
        Arc::new(UInt8Array::from(vec![Some(0), None, Some(1), Some(u8::MAX)])),
        Arc::new(UInt16Array::from(vec![Some(0), None, Some(1), Some(u16::MAX)])),
        Arc::new(UInt32Array::from(vec![Some(0), None, Some(1), Some(u32::MAX)])),
        Arc::new(UInt64Array::from(vec![Some(0), None, Some(1), Some(u64::MAX)])),
        Arc::new(Float32Array::from(vec![Some(-0.0), None, Some(f32::INFINITY), Some(f32::MIN_POSITIVE)])),
        Arc::new(Float64Array::from(vec![Some(-0.0), None, Some(f64::NEG_INFINITY), Some(5e-324)])),
        Arc::new(StringArray::from(vec![Some(""), None, Some("mühle"), Some("\0")])),
        Arc::new(LargeStringArray::from(vec![Some(""), None, Some("b"), Some("c")])),
        Arc::new(StringViewArray::from(vec![Some(""), None, Some("longer than twelve bytes"), Some("c")])),
        Arc::new(BinaryArray::from(vec![Some(&b""[..]), None, Some(b"\xff\x00"), Some(b"x")])),
        Arc::new(BinaryViewArray::from(vec![Some(&b""[..]), None, Some(b"\xff\x00"), Some(b"x")])),
        Arc::new(FixedSizeBinaryArray::try_from_iter(["ab", "cd", "ef", "gh"].iter()).unwrap()),
        Arc::new(
            Decimal128Array::from(vec![Some(1), None, Some(-1), Some(99)])
                .with_precision_and_scale(5, 2)
                .unwrap(),
        ),
        Arc::new(Decimal128Array::from(vec![Some(i128::from(i64::MAX) * 9), None, Some(-1), Some(0)])),
        Arc::new(Date32Array::from(vec![Some(-1), None, Some(0), Some(99999)])),
        Arc::new(Date64Array::from(vec![Some(-86_400_000), None, Some(0), Some(86_400_000)])),
        Arc::new(Time32MillisecondArray::from(vec![Some(0), None, Some(1), Some(86_399_999)])),
        Arc::new(Time64MicrosecondArray::from(vec![Some(0), None, Some(1), Some(2)])),
        Arc::new(Time64NanosecondArray::from(vec![Some(0), None, Some(1), Some(2)])),
        Arc::new(TimestampSecondArray::from(vec![Some(-1), None, Some(1), Some(2)])),
        Arc::new(TimestampMillisecondArray::from(vec![Some(i64::MIN), None, Some(1), Some(i64::MAX)])),
        Arc::new(
            TimestampMicrosecondArray::from(vec![Some(-1), None, Some(1), Some(2)]).with_timezone("UTC"),
        ),
        Arc::new(TimestampNanosecondArray::from(vec![Some(-1), None, Some(1), Some(2)])),
        Arc::new(DurationMicrosecondArray::from(vec![Some(-1), None, Some(1), Some(2)])),
        Arc::new(IntervalYearMonthArray::from(vec![Some(-1), None, Some(1), Some(2)])),
        Arc::new(IntervalDayTimeArray::from(vec![Some(IntervalDayTime::new(-1, 5)), None, None, None])),
        Arc::new(IntervalMonthDayNanoArray::from(vec![
            Some(month(-1, 2, i64::MIN)),
            None,
            Some(month(i32::MAX, i32::MIN, i64::MAX)),
            Some(month(0, 0, -1)),
        ])),
        Arc::new(ListArray::from_iter_primitive::<Int64Type, _, _>(vec![
            Some(vec![Some(1), None]),
            None,
            Some(vec![]),
            Some(vec![Some(2)]),
        ])),
    ]
}

pub(crate) fn table_of_every_type() -> (TableDef, RecordBatch) {
    let mut columns: Vec<ArrayRef> = vec![Arc::new(Int64Array::from(vec![1, 2, 3, 4]))];
    columns.extend(every_type());
    let fields =
        columns.iter().enumerate().map(|(i, c)| Field::new(format!("c{i}"), c.data_type().clone(), i > 0));
    let def = def(TableKind::Value, fields.collect(), 1, vec![0]);
    let batch = RecordBatch::try_new(def.schema.clone(), columns).unwrap();
    (def, batch)
}

#[test]
fn every_type_and_null_comes_back() {
    let (def, upserts) = table_of_every_type();
    let deletes = upserts.project(&[0]).unwrap().slice(0, 0);
    let rows = part(&def, &Delta { upserts: upserts.clone(), deletes, expired_through: None }, false);
    let read = through_file(&def, &rows, KeyGroupRange::all(GROUPS)).unwrap();
    assert_eq!(read.batches, rows.batches);
    let order =
        arrow::compute::sort_to_indices(read.table_batches(&def).unwrap()[0].column(0), None, None).unwrap();
    let sorted = arrow::compute::take_record_batch(&read.table_batches(&def).unwrap()[0], &order).unwrap();
    assert_eq!(sorted, upserts);
}

#[test]
fn keys_of_every_supported_type_are_told_apart() {
    for column in every_type() {
        let fields =
            vec![Field::new("k", column.data_type().clone(), true), Field::new("n", DataType::Int64, false)];
        let def = def(TableKind::Multimap, fields, 2, vec![0]);
        let numbers: ArrayRef = Arc::new(Int64Array::from(vec![0; 4]));
        let upserts = RecordBatch::try_new(def.schema.clone(), vec![column.clone(), numbers]).unwrap();
        let deletes = upserts.slice(0, 0);
        let made =
            PartRows::from_delta(&def, GROUPS, &Delta { upserts, deletes, expired_through: None }, true);
        match made {
            Ok(rows) => {
                let distinct = match column.data_type() {
                    DataType::Null => 1,
                    DataType::Boolean => 3,
                    _other => 4,
                };
                let read = through_file(&def, &rows, KeyGroupRange::all(GROUPS)).unwrap();
                assert_eq!((rows.rows(), &read.batches), (distinct, &rows.batches), "{}", column.data_type());
            }
            Err(error) => assert_eq!(error.kind(), ErrorKind::Invalid, "{}", column.data_type()),
        }
    }
}

#[test]
fn a_table_without_a_key_has_one_row() {
    let def = def(TableKind::Value, vec![Field::new("sum", DataType::Int64, true)], 0, vec![]);
    let empty = RecordBatch::try_new_with_options(
        Arc::new(Schema::empty()),
        vec![],
        &RecordBatchOptions::new().with_row_count(Some(1)),
    );
    let empty = empty.unwrap();
    let upserts = |value| RecordBatch::try_new(def.schema.clone(), ints(&[&[value]])).unwrap();
    let first = Delta { upserts: upserts(1), deletes: empty.slice(0, 0), expired_through: None };
    let second = Delta { upserts: upserts(2), ..first.clone() };
    let gone = Delta { upserts: upserts(0).slice(0, 0), deletes: empty, expired_through: None };
    let parts = [part(&def, &first, true), part(&def, &second, false)];
    assert_eq!(sorted_ints(&def, &fold(&def, &parts, true, None).unwrap()), [[2]]);
    let gone = through_file(&def, &part(&def, &gone, false), KeyGroupRange::all(GROUPS)).unwrap();
    let [one, two] = parts;
    assert_eq!(fold(&def, &[one, two, gone], true, None).unwrap().rows(), 0);
}

#[test]
fn of_each_identity_the_newest_row_wins() {
    let def = numbers();
    let parts = [
        part(&def, &delta(&def, &[&[1, 2, 3], &[10, 10, 10]], &[&[]], None), true),
        part(&def, &delta(&def, &[&[2], &[20]], &[&[3]], None), false),
        part(&def, &delta(&def, &[&[3, 4], &[30, 30]], &[&[1]], None), false),
    ];
    assert_eq!(sorted_ints(&def, &fold(&def, &parts, false, None).unwrap()), [[2, 20], [3, 30], [4, 30]]);
    let deltas = fold(&def, &parts[1..], false, None).unwrap();
    assert_eq!((deltas.rows(), deltas.base), (4, false));
    let [base, ..] = parts;
    assert_eq!(
        sorted_ints(&def, &fold(&def, &[base, deltas], false, None).unwrap()),
        [[2, 20], [3, 30], [4, 30]]
    );
}

#[test]
fn an_expiry_speaks_of_earlier_parts() {
    let def = windows();
    let base = part(&def, &delta(&def, &[&[10, 20, 30], &[1, 1, 1], &[7, 7, 7]], &[&[], &[]], None), true);
    let expiry = part(&def, &delta(&def, &[&[40], &[1], &[8]], &[&[], &[]], Some(20)), false);
    let again = part(&def, &delta(&def, &[&[20], &[1], &[9]], &[&[], &[]], None), false);
    assert_eq!((base.window_max(&def), expiry.expired_through), (Some(30), Some(20)));
    let expected = vec![vec![20, 1, 9], vec![30, 1, 7], vec![40, 1, 8]];
    let late = fold(&def, &[expiry.clone(), again.clone()], false, None).unwrap();
    assert_eq!(sorted_ints(&def, &fold(&def, &[base.clone(), late], false, None).unwrap()), expected);
    assert_eq!(sorted_ints(&def, &fold(&def, &[base, expiry, again], false, None).unwrap()), expected);
}

#[test]
fn a_delta_holds_no_window_that_it_expires() {
    let def = windows();
    let rows = part(&def, &delta(&def, &[&[10, 20], &[1, 1], &[7, 7]], &[&[5], &[1]], Some(10)), false);
    assert_eq!((rows.rows(), rows.window_max(&def)), (1, Some(20)));
}

#[test]
fn ranges_of_key_groups_share_out_the_rows() {
    let def = numbers();
    let keys: Vec<i64> = (0..1000).collect();
    let rows = part(&def, &delta(&def, &[&keys, &keys], &[&[]], None), true);
    let mut all = Vec::new();
    for task in 0..3 {
        let range = KeyGroupRange::of_task(task, 3, GROUPS);
        let read = restrict(through_file(&def, &rows, range).unwrap(), range);
        let folded = fold(&def, std::slice::from_ref(&rows), false, Some(range)).unwrap();
        assert_eq!(sorted_ints(&def, &read), sorted_ints(&def, &folded));
        assert!(
            read.key_groups().is_some_and(|groups| groups.start >= range.start && groups.end <= range.end)
        );
        all.extend(sorted_ints(&def, &read));
    }
    assert_eq!(all.len(), 1000);
}

#[test]
fn row_groups_outside_the_range_are_not_decoded() {
    let def = numbers();
    let keys: Vec<i64> = (0..3 * ROW_GROUP_ROWS as i64).collect();
    let rows = part(&def, &delta(&def, &[&keys, &keys], &[&[]], None), true);
    let last = KeyGroupRange { start: GROUPS - 1, end: GROUPS };
    let read = through_file(&def, &rows, last).unwrap();
    assert_eq!(read.rows(), ROW_GROUP_ROWS as u64);
    let (read, all) = (restrict(read, last), restrict(rows, last));
    assert_eq!(sorted_ints(&def, &read), sorted_ints(&def, &all));
}

#[test]
fn a_changed_table_is_refused() {
    let rows = part(&numbers(), &delta(&numbers(), &[&[1], &[2]], &[&[]], None), true);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("p");
    write_part(&path, &numbers(), &rows, &[]).unwrap();
    let fields = vec![Field::new("k", DataType::Int64, false), Field::new("v", DataType::Utf8, false)];
    let changed = def(TableKind::Value, fields, 1, vec![0]);
    let content = std::fs::read(&path).unwrap();
    let error = read_part(&changed, content.into(), KeyGroupRange::all(GROUPS)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
}

#[test]
fn columns_may_share_a_name() {
    let fields = vec![Field::new("x", DataType::Int64, false), Field::new("x", DataType::Int64, false)];
    let def = def(TableKind::Value, fields, 1, vec![0]);
    let rows = part(&def, &delta(&def, &[&[1], &[2]], &[&[]], None), true);
    let read = through_file(&def, &rows, KeyGroupRange::all(GROUPS)).unwrap();
    assert_eq!(sorted_ints(&def, &read), [[1, 2]]);
}

#[test]
fn zeros_and_nans_are_one_identity() {
    let fields = vec![Field::new("k", DataType::Float64, false), Field::new("v", DataType::Int64, false)];
    let def = def(TableKind::Value, fields, 1, vec![0]);
    let make = |keys: Vec<f64>, value| {
        let values = vec![value; keys.len()];
        let columns: Vec<ArrayRef> =
            vec![Arc::new(Float64Array::from(keys)), Arc::new(Int64Array::from(values))];
        let upserts = RecordBatch::try_new(def.schema.clone(), columns).unwrap();
        let deletes = upserts.project(&[0]).unwrap().slice(0, 0);
        part(&def, &Delta { upserts, deletes, expired_through: None }, false)
    };
    let folded =
        fold(&def, &[make(vec![-0.0, f64::NAN], 1), make(vec![0.0, -f64::NAN], 2)], true, None).unwrap();
    assert_eq!(folded.rows(), 2);
    assert_eq!(folded.batches[0].column(3).as_primitive::<Int64Type>().values(), &[2, 2]);
}
