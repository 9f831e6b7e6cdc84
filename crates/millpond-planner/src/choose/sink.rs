//! Sinks and the client: where a query's rows go.
//!
//! A query's columns are matched with the sink's by position (or by the column list of INSERT),
//! and cast where nothing is lost. Where the sink has a primary key, the changes of each of its
//! keys must reach it in order: rows are passed on as they are if one task gives all of a key,
//! and are materialised by the sink's key if not, or if several may have the same.

use std::sync::Arc;

use arrow::datatypes::{DataType, Field, SchemaRef};
use datafusion::common::{DFSchema, ScalarValue};
use datafusion::logical_expr::{Expr, ExprSchemable, LogicalPlan, cast};
use millpond_core::{ChangelogMode, Error, Result};
use millpond_operators::sink_materialize::{Conflict, SinkMaterializeFactory};

use super::update_before::Replaced;
use super::{Chooser, NewNode, NodeFacts, Operator};
use crate::catalog::{TableColumn, TableColumnKind, TableEntry};
use crate::plan_error::{from_datafusion, location_of, with_nearest};
use crate::properties::Role;
use crate::sql_type::{sql_type, with_length};
use crate::statement::Insert;
use crate::stream_plan::{NodeId, NodeKind, SinkTarget, StateBound};

impl Chooser<'_> {
    /// Gives the rows of a node to the client.
    pub(crate) fn client(&mut self, input: NodeId) -> NodeId {
        let input = self.exchange(input, Vec::new());
        let node = self.node(input);
        let client = NewNode {
            uid_prefix: "client".into(),
            semantics: "Client".into(),
            identity: None,
            kind: NodeKind::Client,
            inputs: vec![input],
            schema: Arc::clone(&node.schema),
            mode: node.properties.mode,
            upsert_keys: node.properties.upsert_keys.clone(),
            bounded: node.properties.bounded,
            state: StateBound::None,
            facts: self.facts[input].clone(),
        };
        self.add(client)
    }

    /// Writes the rows of a query to a table.
    pub(crate) fn sink(
        &mut self,
        insert: &Insert,
        table: &TableEntry,
        query: &LogicalPlan,
    ) -> Result<NodeId> {
        let takes = sink_mode(table)?;
        refuse_metadata(insert, table)?;
        let rows = self.choose(query)?;
        let exprs = self.fitted(assignments(insert, table, query.schema())?, table, query.schema())?;
        let filter = self.session.drop_nulls_at_sinks.then(|| without_nulls(&exprs, table, query.schema()));
        let filter = filter.transpose()?.flatten();
        let rows = self.calc(rows, query.schema(), &exprs, filter.as_ref(), table.bound.sink_schema())?;
        self.refuse_updates(rows, takes, table)?;
        let rows = self.by_sink_key(rows, takes, insert, table)?;
        let name = &table.bound.name;
        let node = self.node(rows);
        let sink = NewNode {
            uid_prefix: format!("sink-{name}"),
            semantics: format!("Sink {name}"),
            identity: None,
            kind: NodeKind::Sink(SinkTarget { table: name.clone() }),
            inputs: vec![rows],
            schema: Arc::clone(&node.schema),
            mode: node.properties.mode,
            upsert_keys: node.properties.upsert_keys.clone(),
            bounded: node.properties.bounded,
            state: StateBound::None,
            facts: self.facts[rows].clone(),
        };
        let sink = self.add(sink);
        let key = sink_key(table);
        if table.facts.ignores_update_before {
            self.replaced.insert(sink, Replaced::Always);
        } else if takes == ChangelogMode::Upsert && !key.is_empty() {
            self.replaced.insert(sink, Replaced::ByKey(key));
        }
        Ok(sink)
    }

    /// With casts as CAST has them, and texts with the lengths of the sink's columns if asked for.
    fn fitted(&self, exprs: Vec<Expr>, table: &TableEntry, query: &DFSchema) -> Result<Vec<Expr>> {
        let columns = table.bound.written_columns().into_iter().map(|column| &table.bound.columns[column]);
        let fitted = |(expr, column): (Expr, &TableColumn)| {
            let length = column.length.filter(|_| self.session.fit_texts_at_sinks);
            let expr = length.map_or(expr.clone(), |length| with_length(expr, length));
            self.session.coerced(expr, query)
        };
        exprs.into_iter().zip(columns).map(fitted).collect()
    }

    fn refuse_updates(&self, rows: NodeId, takes: ChangelogMode, table: &TableEntry) -> Result<()> {
        let name = &table.bound.name;
        let Some(clause) = self.updated_by(rows) else { return Ok(()) };
        match takes {
            ChangelogMode::Retract => Ok(()),
            ChangelogMode::Append => {
                Err(Error::invalid(format!("table \"{name}\" only takes new rows, because {clause} updates its results"))
                    .with_detail("the query changes rows that it has given before")
                    .with_hint(
                        "aggregate over a window (TUMBLE, HOP), or insert into a table that takes updates, such as 'connector' = 'print'",
                    ))
            }
            ChangelogMode::Upsert if table.bound.primary_key.is_empty() => {
                Err(Error::invalid(format!("table \"{name}\" has no PRIMARY KEY by which {clause} could update it")))
            }
            ChangelogMode::Upsert => Ok(()),
        }
    }

    /// Sees to it that the changes of each key of the sink reach it in order.
    fn by_sink_key(
        &mut self,
        rows: NodeId,
        takes: ChangelogMode,
        insert: &Insert,
        table: &TableEntry,
    ) -> Result<NodeId> {
        let key = sink_key(table);
        if key.is_empty() {
            return match insert.on_conflict {
                None => Ok(rows),
                Some(clause) => Err(Error::invalid(format!(
                    "ON CONFLICT needs a PRIMARY KEY, but table \"{}\" has none",
                    table.bound.name
                ))
                .with_location(Some(clause.location))),
            };
        }
        let keys = &self.node(rows).properties.upsert_keys;
        let unique = keys.iter().any(|known| known.iter().all(|column| key.contains(column)));
        let in_order = self.spread(rows).is_some_and(|spread| spread.iter().all(|c| key.contains(c)));
        let replaces = takes == ChangelogMode::Upsert || table.facts.source == Some(ChangelogMode::Upsert);
        match (self.is_append(rows), insert.on_conflict) {
            // Keys that come again replace what was there.
            (true, None) if in_order || !replaces => Ok(rows),
            (true, None) => Ok(self.exchange(rows, key)),
            (false, _) if unique && in_order => Ok(rows),
            (_, clause) => {
                let conflict = clause.map_or(Conflict::Deduplicate, |clause| clause.conflict);
                Ok(self.materialised(rows, key, conflict))
            }
        }
    }

    fn materialised(&mut self, rows: NodeId, key: Vec<usize>, conflict: Conflict) -> NodeId {
        let updated_by = self.updated_by(rows);
        let state = match self.node(rows).properties.upsert_keys.first() {
            Some(known) => StateBound::Keys(self.names(rows, known)),
            None => StateBound::Unbounded("all rows of the query are kept by the sink's key".into()),
        };
        let exchange = self.exchange(rows, key.clone());
        let node = self.node(exchange);
        let schema = Arc::clone(&node.schema);
        let operator = Operator {
            semantics: format!("{key:?} {}", conflict.name()),
            identity: None,
            state,
            inputs: vec![exchange],
            mode: ChangelogMode::Retract,
            upsert_keys: vec![key.clone()],
            facts: NodeFacts {
                updated_by,
                ..NodeFacts::new(vec![Role::Plain; schema.fields().len()], false)
            },
            factory: Arc::new(SinkMaterializeFactory { schema, keys: key, conflict }),
        };
        self.add_operator(operator)
    }

    fn names(&self, id: NodeId, columns: &[usize]) -> String {
        let schema = &self.node(id).schema;
        let names: Vec<&str> = columns.iter().map(|column| schema.field(*column).name().as_str()).collect();
        names.join(", ")
    }

    /// Columns by whose values a node's rows are spread over tasks, each row's changes in order;
    /// `None` where that is not known.
    fn spread(&self, id: NodeId) -> Option<Vec<usize>> {
        if self.facts[id].single {
            return Some(Vec::new());
        }
        let node = self.node(id);
        match &node.kind {
            // Change events are one split, hence read by one task.
            NodeKind::Source { .. } => (node.properties.mode != ChangelogMode::Append).then(Vec::new),
            NodeKind::Rows { .. } => Some(Vec::new()),
            NodeKind::Exchange(columns) => Some(columns.clone()),
            NodeKind::Operator(factory) => match factory.name() {
                "Calc" => self.spread_behind_calc(id),
                "Remember" => self.spread(node.inputs[0]),
                "GroupAggregate" => match &self.node(node.inputs[0]).kind {
                    NodeKind::Exchange(keys) => Some((0..keys.len()).collect()),
                    _ => None,
                },
                "ChangelogNormalize" => node.properties.upsert_keys.first().cloned(),
                "Deduplicate" | "TopN" => self.spread_by_name(id),
                _ => None,
            },
            NodeKind::Sink(_) | NodeKind::Client => None,
        }
    }

    /// Behind an operator that passes columns of its input on: those of its exchange, where their
    /// names leave no doubt.
    fn spread_by_name(&self, id: NodeId) -> Option<Vec<usize>> {
        let node = self.node(id);
        let input = self.node(node.inputs[0]);
        let NodeKind::Exchange(columns) = &input.kind else { return None };
        let place = |schema: &SchemaRef, name: &str| {
            let mut places = (0..schema.fields().len()).filter(|place| schema.field(*place).name() == name);
            places.next().filter(|_| places.next().is_none())
        };
        let passed = |column: &usize| {
            let field = input.schema.field(*column);
            place(&input.schema, field.name())?;
            place(&node.schema, field.name())
                .filter(|place| node.schema.field(*place).data_type() == field.data_type())
        };
        columns.iter().map(passed).collect()
    }

    fn spread_behind_calc(&self, id: NodeId) -> Option<Vec<usize>> {
        let (input, sources) = self.calcs.get(&id)?.columns();
        let place = |column: &usize| sources.iter().position(|source| *source == Some(*column));
        self.spread(input)?.iter().map(place).collect()
    }
}

/// The primary key among the columns that are written; none if it has others.
fn sink_key(table: &TableEntry) -> Vec<usize> {
    let written = table.bound.written_columns();
    let place = |column: &usize| written.iter().position(|other| other == column);
    table.bound.primary_key.iter().map(place).collect::<Option<_>>().unwrap_or_default()
}

/// No connector writes metadata yet.
fn refuse_metadata(insert: &Insert, table: &TableEntry) -> Result<()> {
    let is_written =
        |column: &&TableColumn| matches!(column.kind, TableColumnKind::Metadata { is_virtual: false, .. });
    match table.bound.columns.iter().find(is_written) {
        None => Ok(()),
        Some(column) => Err(Error::invalid(format!(
            "column \"{}\" of table \"{}\" is metadata that cannot be written",
            column.name, table.bound.name
        ))
        .with_hint("declare it METADATA … VIRTUAL: then it is only read")
        .with_location(location_of(insert.table.span))),
    }
}

/// A condition that leaves out rows with NULL where the sink takes none.
fn without_nulls(exprs: &[Expr], table: &TableEntry, query: &DFSchema) -> Result<Option<Expr>> {
    let sink = table.bound.sink_schema();
    let mut conditions = Vec::new();
    for (expr, field) in exprs.iter().zip(sink.fields()) {
        if !field.is_nullable() && expr.nullable(query).map_err(from_datafusion)? {
            conditions.push(expr.clone().is_not_null());
        }
    }
    Ok(conditions.into_iter().reduce(Expr::and))
}

fn sink_mode(table: &TableEntry) -> Result<ChangelogMode> {
    table.facts.sink.ok_or_else(|| {
        Error::invalid(format!("table \"{}\" cannot be written", table.bound.name))
            .with_hint("its connector only reads: it can stand behind FROM")
    })
}

/// An expression for each column of the sink.
fn assignments(insert: &Insert, table: &TableEntry, query: &DFSchema) -> Result<Vec<Expr>> {
    let sink = table.bound.sink_schema();
    let targets = targets(insert, table)?;
    if targets.len() != query.fields().len() {
        return Err(wrong_count(insert, &targets, query));
    }
    let columns = query.columns();
    let assign =
        |(place, field): (usize, &Arc<Field>)| match targets.iter().position(|target| *target == place) {
            Some(given) => {
                let found = query.field(given).data_type();
                let error = || wrong_type(table, field, given, query);
                converted(Expr::Column(columns[given].clone()), found, field.data_type())
                    .ok_or_else(error)
                    .map_err(|error| error.with_location(location_of(insert.table.span)))
            }
            None if field.is_nullable() => {
                Ok(cast(Expr::Literal(ScalarValue::Null, None), field.data_type().clone()))
            }
            None => Err(Error::invalid(format!(
                "column \"{}\" of table \"{}\" is NOT NULL and is given no value",
                field.name(),
                table.bound.name
            ))
            .with_location(location_of(insert.table.span))),
        };
    sink.fields().iter().enumerate().map(assign).collect()
}

/// For each column of the query, the sink's column that it fills.
fn targets(insert: &Insert, table: &TableEntry) -> Result<Vec<usize>> {
    let sink = table.bound.sink_schema();
    if insert.columns.is_empty() {
        return Ok((0..sink.fields().len()).collect());
    }
    let mut targets = Vec::new();
    for name in &insert.columns {
        let target = sink.index_of(&name.value).map_err(|_| {
            let known: Vec<&str> = sink.fields().iter().map(|field| field.name().as_str()).collect();
            let message =
                format!("column \"{}\" of table \"{}\" cannot be written", name.value, table.bound.name);
            with_nearest(Error::invalid(message), &name.value, &known).with_location(location_of(name.span))
        })?;
        if targets.contains(&target) {
            return Err(Error::invalid(format!("column \"{}\" is given twice", name.value))
                .with_location(location_of(name.span)));
        }
        targets.push(target);
    }
    Ok(targets)
}

fn wrong_count(insert: &Insert, targets: &[usize], query: &DFSchema) -> Error {
    let (name, wanted, found) = (&insert.table.value, targets.len(), query.fields().len());
    let given: Vec<&str> = query.fields().iter().map(|field| field.name().as_str()).collect();
    Error::invalid(format!("table \"{name}\" takes {wanted} columns but the query gives {found}"))
        .with_detail(format!("the query gives {}", given.join(", ")))
        .with_hint(format!("list the columns that are meant: INSERT INTO {name} (…) SELECT …"))
        .with_location(location_of(insert.table.span))
}

fn wrong_type(table: &TableEntry, field: &Field, given: usize, query: &DFSchema) -> Error {
    let (name, wanted) = (field.name(), sql_type(field.data_type()));
    let (source, found) = (query.field(given).name(), sql_type(query.field(given).data_type()));
    let target = &table.bound.name;
    Error::invalid(format!(
        "column \"{name}\" of table \"{target}\" is {wanted} but the query gives {found} (\"{source}\")"
    ))
    .with_hint(format!("use CAST({source} AS {wanted})"))
}

/// The expression as a value of type `to`, if no value of type `from` is lost by it or makes it fail
/// for want of meaning; `None` where only an explicit CAST will do.
fn converted(expr: Expr, from: &DataType, to: &DataType) -> Option<Expr> {
    if from == to {
        return Some(expr);
    }
    let fits = match (from, to) {
        (DataType::Null, _) => true,
        (from, to) if from.is_numeric() && to.is_numeric() => true,
        (DataType::Timestamp(_, _) | DataType::Date32, DataType::Timestamp(_, _)) => true,
        (DataType::Time32(_) | DataType::Time64(_), DataType::Time32(_) | DataType::Time64(_)) => true,
        (DataType::Utf8View | DataType::LargeUtf8, DataType::Utf8) => true,
        (DataType::BinaryView | DataType::LargeBinary, DataType::Binary) => true,
        (from, to) => from.is_nested() && to.is_nested() && arrow::compute::can_cast_types(from, to),
    };
    fits.then(|| cast(expr, to.clone()))
}
