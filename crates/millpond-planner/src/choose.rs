//! The choice of operators: an optimised logical plan becomes nodes of a StreamPlan.
//!
//! Each logical node gives one node (or a few with an exchange between them); equal nodes over
//! equal inputs are one node, so that what several sinks or both sides of a join have in common is
//! computed once. A node's uid depends only on what it computes and on its inputs' uids, hence not
//! on parallelism or on unrelated parts of the script.

mod aggregate;
mod calc;
mod join;
mod processing_time;
mod rank;
mod remember;
mod rows;
mod session;
mod sink;
mod source;
mod state_ttl;
mod temporal;
mod unnest;
mod update_before;
mod window;
mod window_sets;

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use arrow::datatypes::{DataType, Field, SchemaRef};
use datafusion::common::DFSchema;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::logical_expr::{Expr, LogicalPlan};
use millpond_core::{ChangelogMode, Error, OperatorUid, Result};
use millpond_operators::OperatorFactory;
use xxhash_rust::xxh3::xxh3_64;

use crate::plan_error::{from_datafusion, unsupported};
use crate::properties::{Role, kinds_of};
use crate::session::{Session, StreamTable};
use crate::sql_type::sql_type;
use crate::stream_plan::{
    ChangeKinds, NodeId, NodeKind, StateBound, StreamNode, StreamPlan, StreamProperties,
};
use crate::unnest_relation::Unnest;
use crate::window_relation::WindowTvf;

/// Builds one StreamPlan from one or several logical plans.
pub(crate) struct Chooser<'a> {
    session: &'a Session,
    plan: StreamPlan,
    /// Beside each node of the plan: what EXPLAIN does not show.
    facts: Vec<NodeFacts>,
    /// Nodes by what they compute.
    known: HashMap<String, NodeId>,
    uids: HashMap<String, usize>,
    /// What the Calcs of the plan compute, so that one on top of another becomes one.
    calcs: HashMap<NodeId, calc::Calc>,
    /// By which columns the rows of a node are spread over tasks; there may be several ways to say it.
    spread: HashMap<NodeId, Vec<Vec<usize>>>,
    /// What the sinks replace.
    replaced: update_before::ReplacedBySinks,
    /// Per table, the columns that any of the queries reads: each table is read once.
    reads: HashMap<String, BTreeSet<usize>>,
    /// The tables that hints name, and those of them whose state is kept as they say.
    hints: state_ttl::Hints,
}

/// What is known of a node beside its properties.
#[derive(Debug, Clone)]
struct NodeFacts {
    roles: Vec<Role>,
    /// All rows come from one task.
    single: bool,
    /// Stands for what the node computes in the uids of its consumers; set as it is added.
    identity: u64,
    /// The name of the clause that makes the stream change its rows, for messages.
    updated_by: Option<&'static str>,
}

/// From which uids are built, where it is less than all that a node computes.
#[derive(Debug, Clone)]
struct Identity {
    /// For the node's own uid.
    own: String,
    /// For the uids of its consumers.
    output: String,
}

/// A node about to be added.
struct NewNode {
    /// First part of the uid.
    uid_prefix: String,
    /// What it computes, in full.
    semantics: String,
    /// What uids are built from, if not all of that.
    identity: Option<Identity>,
    kind: NodeKind,
    inputs: Vec<NodeId>,
    schema: SchemaRef,
    mode: ChangelogMode,
    upsert_keys: Vec<Vec<usize>>,
    bounded: bool,
    state: StateBound,
    facts: NodeFacts,
}

/// Whether rows can be grouped, joined or made distinct by a column.
fn check_key(field: &Field) -> Result<()> {
    fn is_key(data_type: &DataType) -> bool {
        match data_type {
            DataType::Map(..) | DataType::Interval(_) | DataType::Duration(_) => false,
            DataType::List(item) | DataType::LargeList(item) => is_key(item.data_type()),
            DataType::Struct(fields) => fields.iter().all(|field| is_key(field.data_type())),
            _ => true,
        }
    }
    if is_key(field.data_type()) {
        return Ok(());
    }
    let what = format!(
        "cannot group, join or make distinct by {}, which is a {}",
        millpond_operators::sql_text::readable(field.name()),
        sql_type(field.data_type())
    );
    Err(Error::invalid(what).with_hint("do so by its fields or elements, or by CAST(... AS STRING)"))
}

impl<'a> Chooser<'a> {
    /// A chooser for these queries.
    pub(crate) fn new(session: &'a Session, queries: &[&LogicalPlan]) -> Result<Self> {
        let mut reads = HashMap::new();
        for query in queries {
            collect_reads(query, &mut reads)?;
        }
        Ok(Self {
            session,
            plan: StreamPlan::default(),
            facts: Vec::new(),
            known: HashMap::new(),
            uids: HashMap::new(),
            calcs: HashMap::new(),
            spread: HashMap::new(),
            replaced: HashMap::new(),
            reads,
            hints: state_ttl::Hints::default(),
        })
    }

    /// Whether any table is read.
    pub(crate) fn reads_tables(&self) -> bool {
        !self.reads.is_empty()
    }

    /// The finished plan.
    ///
    /// Errors: *Invalid* where rows are spread by a value that is no key, or a hint has no effect.
    pub(crate) fn finish(mut self) -> Result<StreamPlan> {
        self.hints.check()?;
        for node in &self.plan.nodes {
            if let NodeKind::Exchange(keys) = &node.kind {
                keys.iter().try_for_each(|key| check_key(node.schema.field(*key)))?;
            }
        }
        let plan = std::mem::take(&mut self.plan);
        Ok(without_orphans(self.without_update_before(plan)))
    }

    /// Chooses the operators of a logical plan; gives the last one.
    pub(crate) fn choose(&mut self, plan: &LogicalPlan) -> Result<NodeId> {
        match plan {
            LogicalPlan::TableScan(scan) => self.source(scan),
            LogicalPlan::SubqueryAlias(alias) => self.alias(alias),
            LogicalPlan::Projection(projection) => self.projection(projection),
            LogicalPlan::Filter(filter) => self.filter(filter),
            LogicalPlan::Aggregate(aggregate) => self.aggregate(aggregate),
            LogicalPlan::Limit(limit) => self.limit(limit),
            LogicalPlan::Window(window) => Err(rank::refused_window(window)),
            LogicalPlan::Union(union) => self.union(union),
            LogicalPlan::Join(join) => self.join(join),
            LogicalPlan::Values(values) => self.values(values),
            LogicalPlan::EmptyRelation(empty) => Ok(self.empty_relation(empty)),
            // The order of a subquery's rows is not kept, as in SQL.
            LogicalPlan::Sort(sort) if sort.fetch.is_none() => self.choose(&sort.input),
            LogicalPlan::Extension(extension) => {
                if let Some(unnest) = extension.node.as_any().downcast_ref::<Unnest>() {
                    return self.unnest(unnest);
                }
                let node = extension.node.as_any().downcast_ref::<WindowTvf>();
                self.window_tvf(node.ok_or_else(|| unsupported(extension.node.name()))?)
            }
            other => Err(unsupported(clause_of(other))),
        }
    }

    /// Adds a node unless one that computes the same is there already.
    fn add(&mut self, node: NewNode) -> NodeId {
        let key = format!(
            "{} {:?} {:?} {:?} {:?}",
            node.semantics,
            node.kind.label(),
            node.inputs,
            node.schema.fields(),
            node.state
        );
        // Two equal INSERTs into one table write their rows twice.
        let shared = !matches!(node.kind, NodeKind::Sink(_));
        if let (true, Some(known)) = (shared, self.known.get(&key)) {
            return *known;
        }
        assert_eq!(node.facts.roles.len(), node.schema.fields().len(), "one role per column");
        let (own, identity) = self.identities(&node);
        let uid = self.uid(&node.uid_prefix, own);
        let time_columns =
            (0..node.facts.roles.len()).filter(|i| node.facts.roles[*i].is_time_attribute()).collect();
        let id = self.plan.nodes.len();
        let inputs: Vec<ChangeKinds> =
            node.inputs.iter().map(|input| self.node(*input).properties.kinds).collect();
        let kinds = kinds_of(&node.kind, node.mode, &inputs);
        self.plan.nodes.push(StreamNode {
            uid,
            kind: node.kind,
            inputs: node.inputs,
            schema: node.schema,
            properties: StreamProperties {
                mode: node.mode,
                kinds,
                upsert_keys: node.upsert_keys,
                time_columns,
                bounded: node.bounded,
                state: node.state,
            },
        });
        self.facts.push(NodeFacts { identity, ..node.facts });
        self.known.insert(key, id);
        id
    }

    /// Hashes of what a node is and of what it gives.
    fn identities(&self, node: &NewNode) -> (u64, u64) {
        if let Some(identity) = &node.identity {
            return (xxh3_64(identity.own.as_bytes()), xxh3_64(identity.output.as_bytes()));
        }
        let inputs: Vec<u64> = node.inputs.iter().map(|input| self.facts[*input].identity).collect();
        let types: Vec<String> =
            node.schema.fields().iter().map(|field| field.data_type().to_string()).collect();
        let hash = xxh3_64(format!("{}|{types:?}|{inputs:x?}", node.semantics).as_bytes());
        (hash, hash)
    }

    fn uid(&mut self, prefix: &str, hash: u64) -> OperatorUid {
        let uid = format!("{prefix}-{:08x}", hash as u32);
        let twins = self.uids.entry(uid.clone()).or_insert(0);
        *twins += 1;
        match *twins {
            1 => OperatorUid(uid),
            number => OperatorUid(format!("{uid}-{number}")),
        }
    }

    /// Adds an operator.
    fn add_operator(&mut self, operator: Operator) -> NodeId {
        let name = operator.factory.name();
        let node = NewNode {
            uid_prefix: kebab(name),
            semantics: format!("{name} {}", operator.semantics),
            identity: operator.identity,
            schema: operator.factory.schema(),
            kind: NodeKind::Operator(operator.factory),
            bounded: operator.inputs.iter().all(|input| self.node(*input).properties.bounded),
            inputs: operator.inputs,
            mode: operator.mode,
            upsert_keys: operator.upsert_keys,
            state: operator.state,
            facts: operator.facts,
        };
        self.add(node)
    }

    /// Puts an exchange by these columns behind a node; by none: to a single task. None where the
    /// rows are spread like that already: key groups follow from the columns and their order.
    fn exchange(&mut self, input: NodeId, columns: Vec<usize>) -> NodeId {
        let spread = self.spread.get(&input);
        if columns.is_empty() && self.facts[input].single
            || spread.is_some_and(|spread| spread.contains(&columns))
        {
            return input;
        }
        let node = self.node(input);
        let new = NewNode {
            uid_prefix: "exchange".into(),
            semantics: format!("Exchange {columns:?}"),
            identity: None,
            inputs: vec![input],
            schema: Arc::clone(&node.schema),
            mode: node.properties.mode,
            upsert_keys: node.properties.upsert_keys.clone(),
            bounded: node.properties.bounded,
            state: StateBound::None,
            facts: NodeFacts { single: columns.is_empty(), ..self.facts[input].clone() },
            kind: NodeKind::Exchange(columns.clone()),
        };
        let id = self.add(new);
        self.spread_by(id, vec![columns]);
        id
    }

    /// Remembers by which columns the rows of a node are spread.
    fn spread_by(&mut self, node: NodeId, mut columns: Vec<Vec<usize>>) {
        columns.retain(|columns| !columns.is_empty());
        if !columns.is_empty() {
            self.spread.insert(node, columns);
        }
    }

    fn node(&self, id: NodeId) -> &StreamNode {
        &self.plan.nodes[id]
    }

    fn mode(&self, id: NodeId) -> ChangelogMode {
        self.node(id).properties.mode
    }

    fn is_append(&self, id: NodeId) -> bool {
        self.mode(id) == ChangelogMode::Append
    }
}

/// An operator about to be added.
struct Operator {
    factory: Arc<dyn OperatorFactory>,
    /// What it computes, beside its name and output types.
    semantics: String,
    identity: Option<Identity>,
    inputs: Vec<NodeId>,
    mode: ChangelogMode,
    upsert_keys: Vec<Vec<usize>>,
    state: StateBound,
    facts: NodeFacts,
}

impl NodeKind {
    /// The node's name in EXPLAIN and uids.
    pub fn label(&self) -> &str {
        match self {
            NodeKind::Source { .. } => "Source",
            NodeKind::Rows { .. } => "Values",
            NodeKind::Operator(factory) => factory.name(),
            NodeKind::Exchange(_) => "Exchange",
            NodeKind::Sink(_) => "Sink",
            NodeKind::Client => "Client",
        }
    }
}

/// The plan without nodes that nothing reads: those that have been merged with their consumers.
fn without_orphans(plan: StreamPlan) -> StreamPlan {
    let mut kept = vec![false; plan.nodes.len()];
    for id in (0..plan.nodes.len()).rev() {
        let node = &plan.nodes[id];
        kept[id] |= matches!(node.kind, NodeKind::Sink(_) | NodeKind::Client);
        if kept[id] {
            node.inputs.iter().for_each(|input| kept[*input] = true);
        }
    }
    let place = |id: NodeId| kept[..id].iter().filter(|kept| **kept).count();
    let nodes = plan.nodes.into_iter().enumerate().filter(|(id, _)| kept[*id]).map(|(_, mut node)| {
        node.inputs.iter_mut().for_each(|input| *input = place(*input));
        node
    });
    StreamPlan { nodes: nodes.collect() }
}

/// `WindowAggregate` as `window-aggregate`.
fn kebab(name: &str) -> String {
    let mut kebab = String::new();
    for letter in name.chars() {
        if letter.is_uppercase() && !kebab.is_empty() {
            kebab.push('-');
        }
        kebab.extend(letter.to_lowercase());
    }
    kebab
}

/// Index of the column that an expression is, looking through aliases.
fn column_index(schema: &DFSchema, expr: &Expr) -> Option<usize> {
    match expr {
        Expr::Column(column) => schema.index_of_column(column).ok(),
        Expr::Alias(alias) => column_index(schema, &alias.expr),
        _ => None,
    }
}

fn collect_reads(plan: &LogicalPlan, reads: &mut HashMap<String, BTreeSet<usize>>) -> Result<()> {
    plan.apply_with_subqueries(|node| {
        if let LogicalPlan::TableScan(scan) = node
            && let Some(table) = scan.source.downcast_ref::<StreamTable>()
        {
            let read = reads.entry(table.0.bound.name.clone()).or_default();
            read.extend(source::columns_of(scan));
            if table.0.facts.source == Some(ChangelogMode::Upsert) {
                read.extend(&table.0.bound.primary_key);
            }
        }
        Ok(TreeNodeRecursion::Continue)
    })
    .map_err(from_datafusion)?;
    Ok(())
}

/// What a user calls a logical node that is not supported.
fn clause_of(plan: &LogicalPlan) -> String {
    match plan {
        LogicalPlan::Sort(_) => "LIMIT inside a query".into(),
        LogicalPlan::Distinct(_) => "DISTINCT ON".into(),
        LogicalPlan::Unnest(_) => "UNNEST".into(),
        LogicalPlan::RecursiveQuery(_) => "WITH RECURSIVE".into(),
        LogicalPlan::Subquery(_) => "a correlated subquery here".into(),
        other => other.display().to_string(),
    }
}

impl NodeFacts {
    fn new(roles: Vec<Role>, single: bool) -> Self {
        Self { roles, single, identity: 0, updated_by: None }
    }
}

/// An internal error about a column that a rule has lost.
fn lost(what: &str) -> Error {
    Error::internal(format!("the optimiser lost {what}"))
}
