//! Scalar functions with Flink's names and meaning; those that are not here are DataFusion's.
//!
//! Each file has the functions of one sort of values. What has a syntax of its own (`EXTRACT(… FROM
//! …)`, `POSITION(… IN …)`) is called by name when it gets here.

mod arithmetic;
mod builtin;
mod cast;
mod collection;
mod condition;
mod digest;
mod items;
mod json;
mod json_path;
mod json_value;
mod marker;
mod number;
mod regex;
mod show;
mod text;
mod time;
mod time_pattern;
mod time_text;
mod time_unit;
mod zone;

use chrono_tz::Tz;
use datafusion::logical_expr::ScalarUDF;
use sqlparser::ast;

pub(crate) use arithmetic::{Operation, are_numbers, operation};
pub(crate) use cast::special_cast;
pub(crate) use items::item_rows;
pub(crate) use marker::marker_value;

/// Whether the text of a DATE, TIME or TIMESTAMP literal is one.
pub(crate) fn is_time_text(text: &str, data_type: &ast::DataType) -> bool {
    match data_type {
        ast::DataType::Date => time_text::date(text.trim()).is_some(),
        ast::DataType::Time(..) => time_text::time(text.trim()).is_some(),
        ast::DataType::Timestamp(..) => time_text::timestamp(text).is_some(),
        _ => true,
    }
}

/// All functions that replace or add to DataFusion's, with local times in this zone.
pub(crate) fn all(zone: Option<Tz>) -> Vec<ScalarUDF> {
    let builtins = [
        text::functions(),
        regex::functions(),
        number::functions(),
        digest::functions(),
        time::functions(),
        condition::functions(),
        collection::functions(),
        json::functions(),
    ];
    let builtins = builtins.into_iter().flatten().map(|definition| definition.function(zone));
    let arithmetic = [arithmetic::remainder(), arithmetic::negation()];
    marker::functions().chain(builtins).chain(arithmetic).collect()
}
