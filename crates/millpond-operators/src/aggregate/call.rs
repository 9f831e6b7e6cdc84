//! The call of an aggregate function.

use std::sync::Arc;

use arrow::compute::SortOptions;
use arrow::datatypes::{DataType, Schema};
use datafusion::physical_plan::PhysicalExpr;
use millpond_core::{Error, Result};

use super::function::{AggregateFunction, output_type};
use crate::sql_text::sql_text;

/// One aggregate of a query.
#[derive(Debug, Clone)]
pub struct AggregateCall {
    /// The function.
    pub function: AggregateFunction,
    /// Its arguments; none for `COUNT(*)` only.
    pub arguments: Vec<Arc<dyn PhysicalExpr>>,
    /// `FILTER (WHERE …)`.
    pub filter: Option<Arc<dyn PhysicalExpr>>,
    /// `DISTINCT`.
    pub distinct: bool,
    /// `ORDER BY` within the call; equal rows stay in order of arrival.
    pub order_by: Vec<(Arc<dyn PhysicalExpr>, SortOptions)>,
    /// `IGNORE NULLS` or `RESPECT NULLS`, where it is said.
    pub ignore_nulls: Option<bool>,
    /// The output column's name, which also names the call in messages and state columns.
    pub name: String,
    /// The type of the result, as [`output_type`] tells it.
    pub output_type: DataType,
}

impl AggregateCall {
    /// A call of a function over arguments, without any clause.
    pub fn new(
        function: AggregateFunction,
        arguments: Vec<Arc<dyn PhysicalExpr>>,
        name: impl Into<String>,
        output_type: DataType,
    ) -> Self {
        Self {
            function,
            arguments,
            filter: None,
            distinct: false,
            order_by: Vec::new(),
            ignore_nulls: None,
            name: name.into(),
            output_type,
        }
    }

    /// Whether distinct values must be told apart.
    pub fn needs_distinct(&self) -> bool {
        self.function == AggregateFunction::ApproxCountDistinct
            || self.distinct && !self.function.ignores_repetition()
    }

    /// Whether rows count in which an argument is NULL.
    pub(super) fn keeps_nulls(&self) -> bool {
        !self.ignore_nulls.unwrap_or(!self.function.respects_nulls())
    }

    /// Checks the call against the columns that it will see.
    ///
    /// Errors: *Invalid* for a missing argument or types that do not fit.
    pub fn check(&self, input: &Schema) -> Result<()> {
        let output = output_type(&self.function, &self.argument_types(input)?)?;
        if output != self.output_type {
            return Err(Error::internal(format!(
                "{} is {output} and was planned as {}",
                self.name, self.output_type
            )));
        }
        Ok(())
    }

    /// The types of the arguments.
    pub fn argument_types(&self, input: &Schema) -> Result<Vec<DataType>> {
        if self.arguments.is_empty() && self.function != AggregateFunction::CountStar {
            return Err(Error::internal(format!("{} without an argument", self.function)));
        }
        let data_type = |argument: &Arc<dyn PhysicalExpr>| {
            argument.data_type(input).map_err(super::state::expression_error)
        };
        self.arguments.iter().map(data_type).collect()
    }

    /// The call as EXPLAIN shows it, e.g. `SUM(DISTINCT price)`.
    pub fn describe(&self) -> String {
        self.text(sql_text)
    }

    /// The call as what makes an operator what it is, with the places of columns: `SUM(DISTINCT price@1)`.
    pub fn semantics(&self) -> String {
        self.text(|expr| expr.to_string())
    }

    fn text(&self, shown: impl Fn(&Arc<dyn PhysicalExpr>) -> String) -> String {
        let arguments: Vec<String> = self.arguments.iter().map(&shown).collect();
        let mut inside = if arguments.is_empty() { "*".to_string() } else { arguments.join(", ") };
        match &self.function {
            AggregateFunction::ListAgg(separator) => inside.push_str(&format!(", '{separator}'")),
            AggregateFunction::Percentile(percentile) => {
                let fraction = |parts: &u64| (*parts as f64 / super::function::FRACTION_PARTS).to_string();
                let fractions: Vec<String> = percentile.fractions.iter().map(fraction).collect();
                inside.push_str(&format!(", {}", fractions.join(", ")));
                if percentile.descending {
                    inside.push_str(" DESC");
                }
            }
            _ => {}
        }
        let order: Vec<String> = self
            .order_by
            .iter()
            .map(|(expr, options)| format!("{}{}", shown(expr), direction(*options)))
            .collect();
        let order = if order.is_empty() { String::new() } else { format!(" ORDER BY {}", order.join(", ")) };
        let nulls = match self.ignore_nulls {
            None => "",
            Some(true) => " IGNORE NULLS",
            Some(false) => " RESPECT NULLS",
        };
        let distinct = if self.distinct { "DISTINCT " } else { "" };
        let filter =
            self.filter.as_ref().map_or(String::new(), |filter| format!(" FILTER ({})", shown(filter)));
        format!("{}({distinct}{inside}{order}){nulls}{filter}", self.function)
    }
}

fn direction(options: SortOptions) -> &'static str {
    match (options.descending, options.nulls_first) {
        (false, true) => "",
        (false, false) => " NULLS LAST",
        (true, false) => " DESC",
        (true, true) => " DESC NULLS FIRST",
    }
}
