//! Values that are others the next time (RAND, UUID, NOW), computed from rows that change.
//!
//! They are computed once for each row as it comes, and stand in its retraction. What is remembered
//! is a column to the projection, and so is a condition on such values to the filter.
//!
//! ```text
//! Calc select=[v, RAND()] where=[v > 1]     Calc select=[v, $value0]
//!                                           └─ Remember values=[RAND()]
//!                                              └─ Exchange by the key of the rows
//!                                                 └─ Calc select=[v, key] where=[v > 1]
//! ```

use std::collections::BTreeSet;
use std::sync::Arc;

use arrow::datatypes::{DataType, Field, FieldRef, Schema};
use datafusion::physical_plan::PhysicalExpr;
use datafusion::physical_plan::expressions::Column;
use millpond_core::Result;
use millpond_operators::expression::{columns_of, over_columns};
use millpond_operators::remember::RememberFactory;

use super::calc::{Calc, plain, texts, volatile_function};
use super::{Chooser, NodeFacts, Operator};
use crate::plan_error::from_datafusion;
use crate::properties::Role;
use crate::stream_plan::{NodeId, StateBound};

type PhysicalExpression = Arc<dyn PhysicalExpr>;

impl Chooser<'_> {
    /// The Calc over rows that change, with its volatile values remembered.
    pub(super) fn remembered(&mut self, calc: Calc) -> Result<NodeId> {
        let volatile = |expr: &&PhysicalExpression| volatile_function(expr).is_some();
        let (before, mut after) = match calc.filter.clone() {
            Some(filter) if volatile(&&filter) => (None, Some(filter)),
            filter => (filter, None),
        };
        let values: Vec<PhysicalExpression> =
            calc.projection.iter().chain(&after).filter(volatile).cloned().collect();
        let key = self.memory_key(calc.input);
        let read = calc.projection.iter().chain(&after).flat_map(columns_of);
        let columns: Vec<usize> =
            read.chain(key.iter().copied()).collect::<BTreeSet<_>>().into_iter().collect();
        let place = |column: &usize| columns.iter().position(|other| other == column);
        let key: Vec<usize> = key.iter().filter_map(place).collect();
        let rows = self.narrowed(calc.input, &columns, before)?;
        let values =
            values.into_iter().map(|value| over_columns(value, &columns)).collect::<Result<Vec<_>>>()?;
        let node = self.add_remember(rows, key, values)?;
        // The first of the remembered columns.
        let mut next = columns.len();
        let schema = Arc::clone(&self.node(node).schema);
        let mut moved = |expr: PhysicalExpression| -> Result<PhysicalExpression> {
            if volatile_function(&expr).is_none() {
                return over_columns(expr, &columns);
            }
            next += 1;
            Ok(Arc::new(Column::new(schema.field(next - 1).name(), next - 1)))
        };
        let projection = calc.projection.into_iter().map(&mut moved).collect::<Result<_>>()?;
        after = after.map(&mut moved).transpose()?;
        self.add_calc(Calc {
            input: node,
            projection,
            filter: after,
            schema: calc.schema,
            identity: calc.identity,
        })
    }

    /// By which columns rows are spread so that each meets its retraction: as they are spread
    /// already, by a key of theirs, or by all that can be hashed.
    fn memory_key(&self, input: NodeId) -> Vec<usize> {
        let node = self.node(input);
        let spread = self.spread.get(&input).and_then(|spread| spread.first());
        if let Some(key) = spread.or_else(|| node.properties.upsert_keys.first()) {
            return key.clone();
        }
        let is_key = |field: &Field| {
            !field.data_type().is_nested() && !matches!(field.data_type(), DataType::Interval(_))
        };
        (0..node.schema.fields().len()).filter(|column| is_key(node.schema.field(*column))).collect()
    }

    /// Only these columns of the rows that pass the filter.
    fn narrowed(
        &mut self,
        input: NodeId,
        columns: &[usize],
        filter: Option<PhysicalExpression>,
    ) -> Result<NodeId> {
        let fields = Arc::clone(&self.node(input).schema);
        let projection = columns.iter().map(|column| plain(&fields, *column)).collect();
        let schema = columns.iter().map(|column| Arc::clone(&fields.fields()[*column])).collect::<Vec<_>>();
        let schema = Arc::new(Schema::new(schema));
        self.add_calc(Calc { input, projection, filter, schema, identity: None })
    }

    fn add_remember(
        &mut self,
        rows: NodeId,
        key: Vec<usize>,
        computed: Vec<PhysicalExpression>,
    ) -> Result<NodeId> {
        let exchange = self.exchange(rows, key.clone());
        let node = self.node(exchange);
        let input_schema = Arc::clone(&node.schema);
        let field = |(number, value): (usize, &PhysicalExpression)| -> Result<FieldRef> {
            let data_type = value.data_type(&input_schema).map_err(from_datafusion)?;
            Ok(Arc::new(Field::new(format!("$value{number}"), data_type, true)))
        };
        let values = computed.iter().enumerate().map(field).collect::<Result<Vec<_>>>()?;
        let mut roles = self.facts[exchange].roles.clone();
        roles.extend(vec![Role::Plain; values.len()]);
        let names: Vec<&str> = key.iter().map(|column| input_schema.field(*column).name().as_str()).collect();
        let state = match node.properties.upsert_keys.first() {
            Some(_) if names.is_empty() => StateBound::Keys("one row".into()),
            Some(_) => StateBound::Keys(names.join(", ")),
            None => StateBound::Unbounded("the values of all rows are kept until they are taken back".into()),
        };
        let fields = input_schema.fields().iter().cloned().chain(values).collect::<Vec<_>>();
        let operator = Operator {
            semantics: format!("{key:?} {}", texts(&computed)),
            identity: None,
            inputs: vec![exchange],
            mode: node.properties.mode,
            upsert_keys: node.properties.upsert_keys.clone(),
            state,
            facts: NodeFacts { roles, ..self.facts[exchange].clone() },
            factory: Arc::new(RememberFactory {
                key: key.clone(),
                computed,
                schema: Arc::new(Schema::new(fields)),
                input_schema,
            }),
        };
        let id = self.add_operator(operator);
        self.spread_by(id, vec![key]);
        Ok(id)
    }
}
