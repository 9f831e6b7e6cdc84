//! Functions that choose among values or tell about them.

use arrow::array::{ArrayRef, BooleanArray};
use arrow::compute::kernels::cmp::{gt, lt};
use arrow::compute::kernels::zip::zip;
use arrow::compute::{is_null, or};
use arrow::datatypes::DataType;
use datafusion::logical_expr::type_coercion::binary::comparison_coercion;
use millpond_core::{Error, Result};

use super::builtin::{Call, Definition};
use super::show::shown;
use crate::sql_type::sql_type;

/// The functions of this file.
pub(super) fn functions() -> Vec<Definition> {
    let f = Definition::new;
    vec![
        f("GREATEST(value ANY, ...)", |c| extreme(c, true))
            .takes(alike)
            .gives(|types, _| Ok(types[0].clone())),
        f("LEAST(value ANY, ...)", |c| extreme(c, false)).takes(alike).gives(|types, _| Ok(types[0].clone())),
        f("NAMED_CAST(value ANY, type STRING)", |c| c.column(0)).gives(|types, _| Ok(types[0].clone())),
        f("TYPEOF(value ANY [, force BOOLEAN]) -> STRING", |c| {
            let name = sql_type(c.data_type(0));
            c.texts(|_| Some(&name))
        }),
        f("HASH_CODE(value VALUE) -> INT", |c| {
            let text = shown(c, 0)?;
            c.ints(|row| Ok(text.at(row).map(|text| i64::from(java_hash(text)))))
        }),
    ]
}

/// All values in the type that holds each of them.
fn alike(given: &[DataType]) -> Option<Vec<DataType>> {
    let (first, rest) = given.split_first()?;
    let common = |common: DataType, next: &DataType| match common.is_floating() || next.is_floating() {
        true => (common.is_numeric() && next.is_numeric()).then_some(DataType::Float64),
        false => comparison_coercion(&common, next),
    };
    let common = rest.iter().try_fold(first.clone(), common)?;
    (!common.is_nested()).then(|| vec![common; given.len()])
}

/// The largest or smallest of the arguments; NULL if any of them is, as in Flink.
fn extreme(call: &Call<'_>, largest: bool) -> Result<ArrayRef> {
    let mut best = call.column(0)?;
    for argument in 1..call.len() {
        let next = call.column(argument)?;
        if next.data_type() != best.data_type() {
            return Err(Error::internal("values to be compared have different types"));
        }
        let better = if largest { gt(&next, &best)? } else { lt(&next, &best)? };
        let unknown = or(&is_null(&next)?, &is_null(&best)?)?;
        let chosen = zip(&without_nulls(better), &next, &best)?;
        best = arrow::compute::nullif(&chosen, &unknown)?;
    }
    Ok(best)
}

/// NULL is false.
fn without_nulls(truth: BooleanArray) -> BooleanArray {
    truth.iter().map(|truth| Some(truth == Some(true))).collect()
}

/// `String.hashCode` of Java, over UTF-16.
fn java_hash(text: &str) -> i32 {
    text.encode_utf16().fold(0i32, |hash, unit| hash.wrapping_mul(31).wrapping_add(i32::from(unit)))
}
