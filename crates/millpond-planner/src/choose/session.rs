//! SESSION whose rows are used one by one.
//!
//! ```text
//! appended rows        SessionAggregate of each session's rows as an array, Unnest
//! rows that change     SessionWindow
//! ```
//!
//! Of appended rows a session is known when it is over; its rows wait until then. Of rows that
//! change each is given with its session as it is, and taken back when that changes.

use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Schema};
use datafusion::functions::core::named_struct;
use datafusion::logical_expr::{Expr, UserDefinedLogicalNodeCore, lit};
use millpond_core::{ChangelogMode, Result};
use millpond_operators::aggregate::{AggregateCall, AggregateFunction};
use millpond_operators::session_window::SessionWindowFactory;
use millpond_operators::unnest::UnnestFactory;
use millpond_operators::window_aggregate::WindowColumn;

use super::calc::{Calc, plain};
use super::rank::ttl_text;
use super::window::{Windowed, window_role};
use super::{Chooser, NodeFacts, Operator};
use crate::properties::{Role, Windows};
use crate::stream_plan::{NodeId, StateBound};
use crate::window_relation::{WindowTvf, seconds};

/// The columns that a window function adds.
const BOUNDS: [WindowColumn; 3] =
    [WindowColumn::WindowStart, WindowColumn::WindowEnd, WindowColumn::WindowTime];

impl Chooser<'_> {
    /// The rows of `input` with their sessions.
    pub(super) fn session_rows(
        &mut self,
        window: &WindowTvf,
        input: NodeId,
        time: usize,
        windows: Windows,
    ) -> Result<NodeId> {
        match self.mode(input) {
            ChangelogMode::Append => self.rows_of_sessions(window, input, time, windows),
            ChangelogMode::Retract | ChangelogMode::Upsert => {
                self.changing_sessions(window, input, time, windows)
            }
        }
    }

    fn rows_of_sessions(
        &mut self,
        window: &WindowTvf,
        input: NodeId,
        time: usize,
        windows: Windows,
    ) -> Result<NodeId> {
        let schema = window.input.schema();
        let own: Vec<Expr> = schema.columns().into_iter().map(Expr::Column).collect();
        let width = own.len();
        let fields =
            own.iter().enumerate().flat_map(|(place, column)| [lit(field_name(place)), column.clone()]);
        let row = named_struct().call(fields.collect());
        let mut exprs = vec![own[time].clone(), row];
        exprs.extend(window.partition.iter().cloned());
        let (input, columns) = self.columns_of(input, schema, &exprs, None)?;
        let given = Arc::clone(&self.node(input).schema);
        let row = given.field(columns[1]).data_type().clone();
        let rows = DataType::List(Arc::new(Field::new_list_field(row.clone(), true)));
        let call = AggregateCall::new(
            AggregateFunction::ArrayAgg,
            vec![plain(&given, columns[1])],
            "rows",
            rows.clone(),
        );
        let output = UserDefinedLogicalNodeCore::schema(window);
        let bounds: Vec<_> = output.fields().iter().skip(width).cloned().collect();
        // Sessions of several keys may have the same bounds.
        let keys = columns[2..].to_vec();
        let mut groups = BOUNDS.to_vec();
        groups.extend((0..keys.len()).map(WindowColumn::Key));
        let roles: Vec<Role> = groups.iter().map(|column| window_role(*column, windows)).collect();
        let mut known = bounds.clone();
        known.extend(keys.iter().map(|key| Arc::clone(&given.fields()[*key])));
        let with_rows = known.iter().cloned().chain([Arc::new(Field::new("rows", rows, true))]);
        let sessions = self.add_window_aggregate(Windowed {
            schema: Arc::new(Schema::new(with_rows.collect::<Vec<_>>())),
            spec: None,
            windows,
            input,
            time: columns[0],
            keys,
            calls: vec![call],
            groups,
            roles: roles.clone(),
        })?;
        let DataType::Struct(row) = row else { return Err(super::lost("a row")) };
        let items = known.iter().chain(row.iter()).cloned().collect::<Vec<_>>();
        let known = known.len();
        let unnested = Operator {
            semantics: "rows of sessions".into(),
            identity: None,
            mode: ChangelogMode::Append,
            upsert_keys: Vec::new(),
            state: StateBound::None,
            facts: NodeFacts {
                roles: roles.into_iter().chain(vec![Role::Plain; width]).collect(),
                ..self.facts[sessions].clone()
            },
            factory: Arc::new(UnnestFactory {
                column: known,
                width: known,
                outer: false,
                ordinality: false,
                schema: Arc::new(Schema::new(items)),
            }),
            inputs: vec![sessions],
        };
        let unnested = self.add_operator(unnested);
        let before = Arc::clone(&self.node(unnested).schema);
        let order = (known..known + width).chain(0..bounds.len());
        self.add_calc(Calc {
            input: unnested,
            projection: order.map(|column| plain(&before, column)).collect(),
            filter: None,
            schema: Arc::clone(output.inner()),
            identity: None,
        })
    }

    fn changing_sessions(
        &mut self,
        window: &WindowTvf,
        input: NodeId,
        time: usize,
        windows: Windows,
    ) -> Result<NodeId> {
        let schema = window.input.schema();
        let own: Vec<Expr> = schema.columns().into_iter().map(Expr::Column).collect();
        let width = own.len();
        let exprs: Vec<Expr> = own.iter().chain(&window.partition).cloned().collect();
        let (prepared, columns) = self.columns_of(input, schema, &exprs, None)?;
        let partition = columns[width..].to_vec();
        let exchange = self.exchange(prepared, partition.clone());
        let ttl = self.ttl_of(&window.input);
        let given = self.node(exchange);
        let output = UserDefinedLogicalNodeCore::schema(window);
        let bounds: Vec<_> = output.fields().iter().skip(width).cloned().collect();
        // The columns of the partition may stand behind those of the input.
        let fields = given.schema.fields().iter().chain(&bounds).cloned().collect::<Vec<_>>();
        let keys = given.properties.upsert_keys.iter().map(|key| {
            let mut key: Vec<usize> = key.iter().chain(&partition).copied().collect();
            key.sort_unstable();
            key.dedup();
            key
        });
        let added = given.schema.fields().len();
        let mut roles = vec![Role::Plain; added];
        roles.extend(BOUNDS.map(|column| window_role(column, windows)));
        let operator = Operator {
            semantics: format!("{} time={time} {partition:?}{}", windows.shape, ttl_text(ttl)),
            identity: None,
            mode: ChangelogMode::Retract,
            upsert_keys: keys.collect(),
            state: match ttl {
                Some(ttl) => StateBound::Ttl(seconds(ttl)),
                None => {
                    StateBound::Unbounded("SESSION keeps all rows of its input, since they may change".into())
                }
            },
            facts: NodeFacts { roles, ..self.facts[exchange].clone() },
            factory: Arc::new(SessionWindowFactory {
                gap: windows.shape.size(),
                time_zone: windows.time_zone,
                time_column: columns[time],
                partition,
                ttl,
                input_schema: Arc::clone(&given.schema),
                schema: Arc::new(Schema::new(fields)),
            }),
            inputs: vec![exchange],
        };
        let sessions = self.add_operator(operator);
        if added == width {
            return Ok(sessions);
        }
        let before = Arc::clone(&self.node(sessions).schema);
        let order = columns[..width].iter().copied().chain(added..added + bounds.len());
        self.add_calc(Calc {
            input: sessions,
            projection: order.map(|column| plain(&before, column)).collect(),
            filter: None,
            schema: Arc::clone(output.inner()),
            identity: None,
        })
    }
}

/// The name of a column in the row of a session.
fn field_name(place: usize) -> String {
    format!("c{place}")
}
