//! Quick time: three expressions over times, of which queries have one per row, by integers.
//!
//! ```text
//! ts ± INTERVAL without months and days    an addition
//! CAST(ts AS DATE)                         a division
//! CAST(date AS STRING)                     each date of a batch is written once
//! ```
//!
//! Arrow takes each value through a calendar. The results are the same; where a value is beyond the
//! range of integers the original expression decides.

use std::collections::HashMap;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Date32Array, PrimitiveArray, RecordBatch, UInt32Array};
use arrow::compute::{cast, take};
use arrow::datatypes::*;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::common::{Result, ScalarValue};
use datafusion::logical_expr::{ColumnarValue, Operator};
use datafusion::physical_expr::expressions::{BinaryExpr, CastExpr, Literal};
use datafusion::physical_plan::PhysicalExpr;

use crate::expression::Expression;

/// The expression with what can be computed by integers computed so.
pub fn quickened(expression: Expression) -> Result<Expression> {
    expression.transform_up(|node| Ok(quick(&node).map_or(Transformed::no(node), Transformed::yes))).data()
}

fn quick(node: &Expression) -> Option<Expression> {
    let any: &dyn std::any::Any = node.as_ref();
    if let Some(binary) = any.downcast_ref::<BinaryExpr>() {
        let sign = match binary.op() {
            Operator::Plus => 1,
            Operator::Minus => -1,
            _ => return None,
        };
        let literal: &dyn std::any::Any = binary.right().as_ref();
        let ScalarValue::IntervalMonthDayNano(Some(interval)) = literal.downcast_ref::<Literal>()?.value()
        else {
            return None;
        };
        if interval.months != 0 || interval.days != 0 {
            return None;
        }
        let way = Way::Shift { nanos: interval.nanoseconds.checked_mul(sign)? };
        return Some(Arc::new(Quick { argument: binary.left().clone(), original: node.clone(), way }));
    }
    let cast = any.downcast_ref::<CastExpr>()?;
    let way = match cast.cast_type() {
        DataType::Date32 => Way::Date,
        DataType::Utf8 => Way::Text,
        _ => return None,
    };
    Some(Arc::new(Quick { argument: cast.expr().clone(), original: node.clone(), way }))
}

/// An expression with a quicker way for some types of its argument.
#[derive(Debug, Clone)]
struct Quick {
    argument: Expression,
    original: Expression,
    way: Way,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Way {
    Shift { nanos: i64 },
    Date,
    Text,
}

impl Way {
    /// The result; `None` where the original expression must give it.
    fn of(self, values: &ArrayRef) -> Result<Option<ArrayRef>> {
        match (self, values.data_type()) {
            (Way::Shift { nanos }, DataType::Timestamp(unit, _)) => Ok(match unit {
                TimeUnit::Second => shifted::<TimestampSecondType>(values, nanos, 1_000_000_000),
                TimeUnit::Millisecond => shifted::<TimestampMillisecondType>(values, nanos, 1_000_000),
                TimeUnit::Microsecond => shifted::<TimestampMicrosecondType>(values, nanos, 1000),
                TimeUnit::Nanosecond => shifted::<TimestampNanosecondType>(values, nanos, 1),
            }),
            (Way::Date, DataType::Timestamp(unit, None)) => Ok(match unit {
                TimeUnit::Second => dates::<TimestampSecondType>(values, 86_400),
                TimeUnit::Millisecond => dates::<TimestampMillisecondType>(values, 86_400_000),
                TimeUnit::Microsecond => dates::<TimestampMicrosecondType>(values, 86_400_000_000),
                TimeUnit::Nanosecond => dates::<TimestampNanosecondType>(values, 86_400_000_000_000),
            }),
            (Way::Text, DataType::Date32) => texts(values.as_primitive()),
            _ => Ok(None),
        }
    }
}

fn shifted<T: ArrowTimestampType>(values: &ArrayRef, nanos: i64, unit: i64) -> Option<ArrayRef> {
    if nanos % unit != 0 {
        return None;
    }
    let values = values.as_primitive::<T>();
    let shifted: PrimitiveArray<T> =
        values.try_unary(|value| value.checked_add(nanos / unit).ok_or(())).ok()?;
    Some(Arc::new(shifted.with_data_type(values.data_type().clone())))
}

fn dates<T: ArrowTimestampType>(values: &ArrayRef, day: i64) -> Option<ArrayRef> {
    let day = |value: i64| i32::try_from(value.div_euclid(day)).map_err(|_| ());
    let dates: PrimitiveArray<Date32Type> = values.as_primitive::<T>().try_unary(day).ok()?;
    Some(Arc::new(dates))
}

/// Texts of dates, of which there are few in a batch; `None` if there are not.
fn texts(dates: &Date32Array) -> Result<Option<ArrayRef>> {
    let mut places: HashMap<i32, u32> = HashMap::new();
    let mut distinct: Vec<i32> = Vec::new();
    let mut rows: Vec<Option<u32>> = Vec::with_capacity(dates.len());
    let mut last: Option<(i32, u32)> = None;
    for date in dates {
        let Some(date) = date else {
            rows.push(None);
            continue;
        };
        let place = match last {
            Some((known, place)) if known == date => place,
            _ => *places.entry(date).or_insert_with(|| {
                distinct.push(date);
                (distinct.len() - 1) as u32
            }),
        };
        last = Some((date, place));
        rows.push(Some(place));
        if distinct.len() > 64 && distinct.len() * 2 > rows.len() {
            return Ok(None);
        }
    }
    let distinct: ArrayRef = Arc::new(Date32Array::from(distinct));
    Ok(Some(take(&cast(&distinct, &DataType::Utf8)?, &UInt32Array::from(rows), None)?))
}

impl PartialEq for Quick {
    fn eq(&self, other: &Self) -> bool {
        self.original.eq(&other.original)
    }
}

impl Eq for Quick {}

impl Hash for Quick {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.original.hash(state);
    }
}

/// What the expression was before it was quickened; `None` if it was not.
pub(crate) fn original_of(expression: &Expression) -> Option<&Expression> {
    expression.as_ref().downcast_ref::<Quick>().map(|quick| &quick.original)
}

impl fmt::Display for Quick {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.original.fmt(f)
    }
}

impl PhysicalExpr for Quick {
    fn return_field(&self, schema: &Schema) -> Result<FieldRef> {
        self.original.return_field(schema)
    }
    fn evaluate(&self, rows: &RecordBatch) -> Result<ColumnarValue> {
        if let ColumnarValue::Array(values) = self.argument.evaluate(rows)?
            && let Some(result) = self.way.of(&values)?
        {
            return Ok(ColumnarValue::Array(result));
        }
        self.original.evaluate(rows)
    }
    fn children(&self) -> Vec<&Expression> {
        vec![&self.argument]
    }
    fn with_new_children(self: Arc<Self>, mut children: Vec<Expression>) -> Result<Expression> {
        let mut of_original: Vec<Expression> = self.original.children().into_iter().cloned().collect();
        let argument = children.swap_remove(0);
        of_original[0] = argument.clone();
        let original = self.original.clone().with_new_children(of_original)?;
        Ok(Arc::new(Quick { argument, original, way: self.way }))
    }
    fn fmt_sql(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.original.fmt_sql(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow::array::{TimestampMillisecondArray, TimestampSecondArray};
    use arrow::compute::CastOptions;
    use datafusion::physical_expr::expressions::{binary, col, lit};

    fn check(expression: impl Fn(Expression, &Schema) -> Expression, values: ArrayRef) {
        let schema = Arc::new(Schema::new(vec![Field::new("x", values.data_type().clone(), true)]));
        let original = expression(col("x", &schema).unwrap(), &schema);
        let rows = RecordBatch::try_new(schema.clone(), vec![values]).unwrap();
        let quick = quickened(original.clone()).unwrap();
        assert_eq!(quick.to_string(), original.to_string());
        assert_eq!(quick.data_type(&schema).unwrap(), original.data_type(&schema).unwrap());
        let value = |expression: &Expression| {
            let value = expression.evaluate(&rows).and_then(|value| value.into_array(rows.num_rows()));
            value.map_err(|error| error.to_string())
        };
        assert_eq!(value(&quick), value(&original));
    }

    #[test]
    fn results_are_those_of_the_calendar() {
        let millis = vec![
            Some(0),
            Some(-1),
            None,
            Some(1_700_000_000_123),
            Some(-86_400_001),
            Some(253_402_300_800_000),
        ];
        let times = || -> ArrayRef { Arc::new(TimestampMillisecondArray::from(millis.clone())) };
        let zoned: ArrayRef =
            Arc::new(TimestampMillisecondArray::from(millis.clone()).with_timezone("+02:00"));
        let date = |x: Expression| -> Expression { Arc::new(CastExpr::new(x, DataType::Date32, None)) };
        let text = |x: Expression| -> Expression {
            Arc::new(CastExpr::new(x, DataType::Utf8, Some(CastOptions::default())))
        };
        for nanos in [4_000_000_000, 1_000_000, 1] {
            let shift = move |x: Expression, schema: &Schema| {
                let interval = IntervalMonthDayNano::new(0, 0, nanos);
                let interval = lit(ScalarValue::IntervalMonthDayNano(Some(interval)));
                binary(x, Operator::Minus, interval, schema).unwrap()
            };
            check(shift, times());
            check(shift, zoned.clone());
            check(shift, Arc::new(TimestampSecondArray::from(vec![5])));
        }
        check(|x, _| date(x), times());
        check(|x, _| date(x), zoned.clone());
        check(|x, _| text(date(x)), times());
        check(|x, _| text(x), zoned);
        let many: ArrayRef = Arc::new(Date32Array::from_iter_values(-300..300));
        check(|x, _| text(x), many);
    }
}
