//! UNNEST: an operator that repeats each row for the items of an array or map.

use std::sync::Arc;

use arrow::datatypes::{Field, Schema};
use datafusion::logical_expr::{Expr, ExprSchemable};
use millpond_core::{ChangelogMode, Result};
use millpond_operators::unnest::UnnestFactory;

use super::{Chooser, NodeFacts, Operator, column_index};
use crate::plan_error::{from_datafusion, unsupported};
use crate::properties::Role;
use crate::stream_plan::{NodeId, StateBound};
use crate::unnest_relation::Unnest;

impl Chooser<'_> {
    pub(super) fn unnest(&mut self, unnest: &Unnest) -> Result<NodeId> {
        let input = self.choose(&unnest.input)?;
        if self.mode(input) == ChangelogMode::Upsert {
            return Err(unsupported("UNNEST of rows that replace each other by key"));
        }
        let schema = unnest.input.schema();
        let width = unnest.width();
        let (input, column) = match column_index(schema, &unnest.items) {
            Some(column) => (input, column),
            None => {
                let items = unnest.items.get_type(schema.as_ref()).map_err(from_datafusion)?;
                let mut fields: Vec<_> = schema.fields().iter().cloned().collect();
                fields.push(Arc::new(Field::new("$items", items, true)));
                let mut exprs: Vec<Expr> = schema.columns().into_iter().map(Expr::Column).collect();
                exprs.push(unnest.items.clone());
                (self.calc(input, schema, &exprs, None, Arc::new(Schema::new(fields)))?, width)
            }
        };
        let before = self.node(input);
        let own = before.schema.fields().iter().take(width).cloned();
        let items = unnest.item_fields().into_iter().map(|(_, field)| field);
        let schema = Arc::new(Schema::new(own.chain(items).collect::<Vec<_>>()));
        // A row comes once for each item, which only its number tells apart.
        let keys = match unnest.ordinality {
            false => Vec::new(),
            true => {
                let number = schema.fields().len() - 1;
                let inner = before.properties.upsert_keys.iter().filter(|key| key.iter().all(|c| *c < width));
                inner.map(|key| key.iter().copied().chain([number]).collect()).collect()
            }
        };
        let mut roles: Vec<Role> = self.facts[input].roles.iter().take(width).copied().collect();
        roles.resize(schema.fields().len(), Role::Plain);
        let operator = Operator {
            semantics: format!("{column} outer={} ordinality={}", unnest.outer, unnest.ordinality),
            identity: None,
            mode: before.properties.mode,
            upsert_keys: keys,
            state: StateBound::None,
            facts: NodeFacts { roles, ..self.facts[input].clone() },
            factory: Arc::new(UnnestFactory {
                column,
                width,
                outer: unnest.outer,
                ordinality: unnest.ordinality,
                schema,
            }),
            inputs: vec![input],
        };
        Ok(self.add_operator(operator))
    }
}
