//! Tests of `text`.

use std::sync::Arc;

use arrow::array::*;
use arrow::buffer::{OffsetBuffer, ScalarBuffer};
use arrow::datatypes::{Field, Fields, Int32Type};
use chrono_tz::{Europe, UTC};

use super::*;

fn texts_in(format: TextFormat, array: ArrayRef) -> Vec<String> {
    let column = format.formatter(&array).unwrap();
    let write = |row| {
        let mut out = String::new();
        match column.is_null(row) {
            true => out.push_str("NULL"),
            false => column.write(row, &mut out),
        }
        out
    };
    (0..array.len()).map(write).collect()
}

fn texts(array: impl Array + 'static) -> Vec<String> {
    texts_in(TextFormat::display(UTC), Arc::new(array))
}

fn json(array: impl Array + 'static) -> Vec<String> {
    let array: ArrayRef = Arc::new(array);
    let column = TextFormat::file().formatter(&array).unwrap();
    let write = |row| {
        let mut out = String::new();
        column.write_json(row, &mut out);
        out
    };
    (0..array.len()).map(write).collect()
}

#[test]
fn numbers_are_exact() {
    assert_eq!(
        texts(Int64Array::from(vec![Some(i64::MIN), None, Some(0)])),
        ["-9223372036854775808", "NULL", "0"]
    );
    assert_eq!(texts(UInt8Array::from(vec![255])), ["255"]);
    assert_eq!(texts(BooleanArray::from(vec![true, false])), ["true", "false"]);
    let floats = vec![1.0, 0.1, -0.0, 1e16, 123_456_789.5, f64::NAN, f64::NEG_INFINITY];
    assert_eq!(
        texts(Float64Array::from(floats)),
        ["1.0", "0.1", "-0.0", "1e16", "123456789.5", "NaN", "-Infinity"]
    );
    assert_eq!(texts(Float32Array::from(vec![0.1f32])), ["0.1"]);
}

#[test]
fn decimals_keep_their_scale() {
    let decimals =
        |values: Vec<i128>, scale| Decimal128Array::from(values).with_precision_and_scale(38, scale).unwrap();
    assert_eq!(texts(decimals(vec![5, -5, 12_345, 0], 2)), ["0.05", "-0.05", "123.45", "0.00"]);
    assert_eq!(texts(decimals(vec![7, 0], 0)), ["7", "0"]);
    assert_eq!(texts(decimals(vec![7, 0], -2)), ["700", "0"]);
    assert_eq!(texts(decimals(vec![-(10i128.pow(38) - 1)], 38)), [format!("-0.{}", "9".repeat(38))]);
    let wide = Decimal256Array::from(vec![i256::from_i128(-1_234)]).with_precision_and_scale(76, 3).unwrap();
    assert_eq!(texts(wide), ["-1.234"]);
}

#[test]
fn timestamps_have_no_trailing_zeros() {
    let ms = vec![1_704_103_200_000, 1_704_103_200_120, -1, 253_402_300_800_000];
    let expected =
        ["2024-01-01 10:00:00", "2024-01-01 10:00:00.12", "1969-12-31 23:59:59.999", "10000-01-01 00:00:00"];
    assert_eq!(texts(TimestampMillisecondArray::from(ms)), expected);
    assert_eq!(texts(TimestampNanosecondArray::from(vec![1])), ["1970-01-01 00:00:00.000000001"]);
    assert_eq!(texts(TimestampSecondArray::from(vec![-62_167_219_200])), ["0000-01-01 00:00:00"]);
    for extreme in [i64::MIN, i64::MAX] {
        assert_eq!(texts(TimestampSecondArray::from(vec![extreme])).len(), 1);
    }
}

#[test]
fn instants_are_shown_in_a_zone_and_stored_in_utc() {
    // An hour before and an hour after summer time begins in Berlin.
    let instants =
        TimestampMillisecondArray::from(vec![1_711_843_200_000, 1_711_850_400_000]).with_timezone("UTC");
    let array: ArrayRef = Arc::new(instants);
    let berlin = texts_in(TextFormat::display(Europe::Berlin), array.clone());
    assert_eq!(berlin, ["2024-03-31 01:00:00", "2024-03-31 04:00:00"]);
    assert_eq!(texts_in(TextFormat::file(), array)[1], "2024-03-31 02:00:00Z");
}

#[test]
fn zones_have_names_or_whole_hours() {
    let noon: ArrayRef = Arc::new(TimestampSecondArray::from(vec![43_200]).with_timezone("UTC"));
    let shown = |zone: &str| {
        TextFormat::display_in(zone)
            .map(|format| texts_in(format, noon.clone()).remove(0)[11..13].to_string())
    };
    assert_eq!(
        [shown("UTC"), shown("+02:00"), shown("-05:00")].map(|hour| hour.unwrap()),
        ["12", "14", "07"]
    );
    assert_eq!(shown("America/New_York").unwrap(), "07");
    assert!(shown("Mars/Olympus").unwrap_err().hint().is_some());
    assert!(shown("+02:30").is_err());
}

#[test]
fn dates_times_and_intervals() {
    assert_eq!(
        texts(Date32Array::from(vec![0, 19_782, -719_528])),
        ["1970-01-01", "2024-02-29", "0000-01-01"]
    );
    assert_eq!(texts(Date64Array::from(vec![-1])), ["1969-12-31"]);
    assert_eq!(texts(Time32MillisecondArray::from(vec![36_000_500])), ["10:00:00.5"]);
    assert_eq!(texts(Time64NanosecondArray::from(vec![86_399_999_999_999])), ["23:59:59.999999999"]);
    assert_eq!(texts(IntervalYearMonthArray::from(vec![14, -1])), ["+1-02", "-0-01"]);
    let mixed = vec![IntervalMonthDayNano::new(1, 2, 3_500_000_000), IntervalMonthDayNano::new(0, -1, 0)];
    assert_eq!(texts(IntervalMonthDayNanoArray::from(mixed)), ["+0-01 +2 00:00:03.5", "-1 00:00:00"]);
    assert_eq!(texts(DurationMillisecondArray::from(vec![90_061_001])), ["+1 01:01:01.001"]);
    assert_eq!(texts(DurationSecondArray::from(vec![i64::MIN])).len(), 1);
}

#[test]
fn texts_and_bytes() {
    assert_eq!(texts(StringArray::from(vec![Some("a,\"b"), Some(""), None])), ["a,\"b", "", "NULL"]);
    assert_eq!(texts(StringViewArray::from(vec!["a long text that is not held inline"])).len(), 1);
    assert_eq!(texts(BinaryArray::from(vec![&b"\x00\xff"[..], b""])), ["x'00ff'", "x''"]);
    assert_eq!(
        json(BinaryArray::from(vec![&b"M"[..], b"Ma", b"Man", b""])),
        ["\"TQ==\"", "\"TWE=\"", "\"TWFu\"", "\"\""]
    );
    let dictionary: DictionaryArray<Int32Type> = vec![Some("x"), None, Some("x")].into_iter().collect();
    assert_eq!(texts(dictionary.clone()), ["x", "NULL", "x"]);
    assert_eq!(json(dictionary), ["\"x\"", "null", "\"x\""]);
    let empty: DictionaryArray<Int32Type> = vec![None::<&str>].into_iter().collect();
    assert_eq!(texts(empty), ["NULL"]);
}

#[test]
fn json_strings_are_escaped() {
    let odd = StringArray::from(vec![Some("a\"b\\c\n\u{1}\u{7f}é"), None]);
    assert_eq!(json(odd), ["\"a\\\"b\\\\c\\n\\u0001\u{7f}é\"", "null"]);
    assert_eq!(json(Float64Array::from(vec![f64::NAN, 1.5])), ["\"NaN\"", "1.5"]);
    assert_eq!(json(Date32Array::from(vec![0])), ["\"1970-01-01\""]);
}

#[test]
fn nested_values_are_json() {
    let list = ListArray::from_iter_primitive::<Int32Type, _, _>(vec![
        Some(vec![Some(1), None]),
        None,
        Some(vec![]),
    ]);
    assert_eq!(texts(list.clone()), ["[1,null]", "NULL", "[]"]);
    assert_eq!(texts(list.slice(2, 1)), ["[]"]);
    let fields = Fields::from(vec![
        Field::new("a \"quoted\"", DataType::Int32, true),
        Field::new("l", list.data_type().clone(), true),
    ]);
    let row = StructArray::new(fields, vec![Arc::new(Int32Array::from(vec![7, 8, 9])), Arc::new(list)], None);
    assert_eq!(texts(row.slice(1, 1)), ["{\"a \\\"quoted\\\"\":8,\"l\":null}"]);
}

#[test]
fn keys_of_a_map_are_strings() {
    let fields = Fields::from(vec![
        Field::new("key", DataType::Int32, false),
        Field::new("value", DataType::Utf8, true),
    ]);
    let columns: Vec<ArrayRef> =
        vec![Arc::new(Int32Array::from(vec![1, 2])), Arc::new(StringArray::from(vec![Some("x"), None]))];
    let entries = StructArray::new(fields.clone(), columns, None);
    let field = Arc::new(Field::new("entries", DataType::Struct(fields), false));
    let map =
        MapArray::new(field, OffsetBuffer::new(ScalarBuffer::from(vec![0, 2, 2])), entries, None, false);
    assert_eq!(texts(map), ["{\"1\":\"x\",\"2\":null}", "{}"]);
}

#[test]
fn a_type_without_text_is_refused() {
    let array: ArrayRef =
        new_empty_array(&DataType::ListView(Arc::new(Field::new("item", DataType::Int32, true))));
    assert!(TextFormat::file().formatter(&array).is_err());
}
