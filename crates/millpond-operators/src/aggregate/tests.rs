//! Tests of `aggregate`.

use super::*;
use std::sync::Arc;

use arrow::array::*;
use arrow::datatypes::{DataType, Field, Schema};
use arrow::util::display::array_value_to_string;
use datafusion::physical_expr::expressions::col;
use millpond_core::ChangelogMode;
use millpond_core::key::stable_hashes;
use millpond_state::KeyedRows;

/// The result of a function over one column, all rows in one group.
fn result(function: AggregateFunction, values: ArrayRef) -> String {
    let schema = Arc::new(Schema::new(vec![Field::new("x", values.data_type().clone(), true)]));
    let output_type = output_type(&function, &[values.data_type().clone()]).unwrap();
    let call = AggregateCall::new(function, vec![col("x", &schema).unwrap()], "a", output_type);
    let set = AggregateSet::new(&[call], &schema, ChangelogMode::Append).unwrap();
    let rows = values.len();
    let batch = RecordBatch::try_new(schema, vec![values]).unwrap();
    // The second half goes through a merge, as the panes of a HOP do.
    let half = |from: usize, length: usize| {
        let mut groups = KeyedRows::new(&[], set.state_fields()).unwrap();
        let mut slots = Vec::new();
        groups.slots_for(&[], &stable_hashes(&[], length).unwrap(), &mut slots).unwrap();
        let inputs = set.evaluate(&batch.slice(from, length)).unwrap();
        let hashes = stable_hashes(&[], length).unwrap();
        let rows = GroupedRows { keys: &[], hashes: &hashes, slots: &slots, signs: None, arrivals: &[] };
        set.update(groups.columns_mut(), &mut [], rows, &inputs).unwrap();
        groups
    };
    let mut first = half(0, rows / 2);
    let second = half(rows / 2, rows - rows / 2);
    set.merge(first.columns_mut(), &[0], second.columns(), &[0]);
    let results = set.results(first.columns(), &[], &[0], |_| Ok(vec![])).unwrap();
    let result = &results[0];
    if result.is_null(0) { "NULL".into() } else { array_value_to_string(result, 0).unwrap() }
}

#[test]
fn extremes_of_every_type() {
    use AggregateFunction::{Max, Min};
    let check = |values: ArrayRef, min: &str, max: &str| {
        let types = values.data_type().clone();
        assert_eq!(
            (result(Min, values.clone()).as_str(), result(Max, values).as_str()),
            (min, max),
            "{types}"
        );
    };
    check(Arc::new(Int8Array::from(vec![Some(3), None, Some(-4), Some(1)])), "-4", "3");
    check(Arc::new(Int64Array::from(vec![None::<i64>, None])), "NULL", "NULL");
    check(Arc::new(Float64Array::from(vec![1.0, f64::NAN, -2.0, f64::INFINITY])), "-2.0", "NaN");
    check(Arc::new(Float32Array::from(vec![f32::NAN, f32::NAN])), "NaN", "NaN");
    check(Arc::new(Date32Array::from(vec![1, 0, 31])), "1970-01-01", "1970-02-01");
    check(
        Arc::new(TimestampMillisecondArray::from(vec![0, -1])),
        "1969-12-31T23:59:59.999",
        "1970-01-01T00:00:00",
    );
    check(Arc::new(StringArray::from(vec![Some("b"), Some("ab"), None, Some("é")])), "ab", "é");
    check(Arc::new(StringViewArray::from(vec!["b", "", "a long string beyond the view"])), "", "b");
    check(Arc::new(BooleanArray::from(vec![true, false, true])), "false", "true");
    let decimals = Decimal128Array::from(vec![150, -7, 20]).with_precision_and_scale(5, 2).unwrap();
    check(Arc::new(decimals), "-0.07", "1.50");
}

#[test]
fn sums_and_averages_have_flinks_types() {
    use AggregateFunction::{Avg, Sum};
    let ints: ArrayRef = Arc::new(Int32Array::from(vec![Some(-7), None, Some(2)]));
    assert_eq!((result(Sum, ints.clone()), result(Avg, ints)), ("-5".into(), "-2".into()), "AVG truncates");
    let floats: ArrayRef = Arc::new(Float64Array::from(vec![1e100, 1.0, -1e100, 1.0]));
    assert_eq!(
        (result(Sum, floats.clone()), result(Avg, floats)),
        ("2.0".into(), "0.5".into()),
        "compensated"
    );
    let decimals = Decimal128Array::from(vec![100, 100, 0]).with_precision_and_scale(5, 2).unwrap();
    let decimals: ArrayRef = Arc::new(decimals);
    assert_eq!((result(Sum, decimals.clone()), result(Avg, decimals)), ("2.00".into(), "0.666667".into()));
    let negative = Decimal128Array::from(vec![-1, -1, 0]).with_precision_and_scale(10, 6).unwrap();
    assert_eq!(result(Avg, Arc::new(negative)), "-0.000001", "halves and more round away from zero");
    assert_eq!(output_type(&Sum, &[DataType::Decimal128(10, 2)]).unwrap(), DataType::Decimal128(38, 2));
    assert_eq!(output_type(&Avg, &[DataType::Decimal128(10, 8)]).unwrap(), DataType::Decimal128(38, 8));
    assert!(output_type(&Sum, &[DataType::Utf8]).is_err());
}
