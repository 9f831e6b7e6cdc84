//! EXPLAIN: a StreamPlan as a tree, sinks first.
//!
//! ```text
//! Sink totals  append
//! └─ WindowAggregate keys=[...]
//!    uid window-aggregate-0f3a…  append  keys (auction)  watermark window_time  state by watermark …
//! ```
//!
//! A node with several consumers is drawn once; its other places refer to its uid.

use std::collections::HashSet;
use std::fmt::Write;

use millpond_core::{ChangelogMode, KeyGroupRange, Result};
use millpond_operators::BuildContext;
use millpond_operators::sql_text::readable;
use millpond_state::StateTable;

use crate::catalog::Catalog;
use crate::planner::Planner;
use crate::statement::ExplainKind;
use crate::stream_plan::{NodeId, NodeKind, StateBound, StreamNode, StreamPlan};

impl Planner {
    /// The plan as text. `parallelism` is shown beside each exchange.
    pub fn explain(&self, plan: &StreamPlan, kind: ExplainKind, parallelism: usize) -> Result<String> {
        let mut tree = Tree {
            catalog: &self.catalog,
            plan,
            kind,
            parallelism,
            drawn: HashSet::new(),
            text: String::new(),
        };
        for root in roots(plan) {
            tree.draw(root, "", "")?;
        }
        Ok(readable(&tree.text).into_owned())
    }
}

/// Nodes that nothing reads: sinks and the client.
fn roots(plan: &StreamPlan) -> impl Iterator<Item = NodeId> {
    let read: HashSet<NodeId> = plan.nodes.iter().flat_map(|node| node.inputs.iter().copied()).collect();
    (0..plan.nodes.len()).filter(move |id| !read.contains(id))
}

struct Tree<'a> {
    catalog: &'a Catalog,
    plan: &'a StreamPlan,
    kind: ExplainKind,
    parallelism: usize,
    drawn: HashSet<NodeId>,
    text: String,
}

impl Tree<'_> {
    /// `branch` leads to the node's line, `indent` to the lines below it.
    fn draw(&mut self, id: NodeId, branch: &str, indent: &str) -> Result<()> {
        let node = &self.plan.nodes[id];
        let title = self.title(node);
        if !self.drawn.insert(id) {
            let _ = writeln!(self.text, "{branch}{} (shared: {})", node.kind.label(), node.uid);
            return Ok(());
        }
        let _ = writeln!(self.text, "{branch}{title}");
        let facts = self.facts(node);
        if !facts.is_empty() {
            let rail = if node.inputs.is_empty() { "   " } else { "│  " };
            let _ = writeln!(self.text, "{indent}{rail}{facts}");
        }
        let last = node.inputs.len().saturating_sub(1);
        for (place, input) in node.inputs.iter().enumerate() {
            let (branch, below) = if place == last { ("└─ ", "   ") } else { ("├─ ", "│  ") };
            self.draw(*input, &format!("{indent}{branch}"), &format!("{indent}{below}"))?;
        }
        Ok(())
    }

    fn title(&self, node: &StreamNode) -> String {
        match &node.kind {
            NodeKind::Source { table, event_time, .. } => {
                let columns = names(node, 0..node.schema.fields().len());
                let text = self.watermark(table).unwrap_or_default();
                let watermark =
                    event_time.watermark.as_ref().map_or(String::new(), |_| format!(" watermark={text}"));
                format!("Source {table} columns=[{columns}]{watermark}")
            }
            NodeKind::Rows { rows, .. } => format!("Values rows={}", rows.num_rows()),
            NodeKind::Operator(factory) => format!("{} {}", factory.name(), factory.describe()),
            NodeKind::Exchange(columns) if columns.is_empty() => "Exchange single".into(),
            NodeKind::Exchange(columns) => {
                format!("Exchange hash=[{}] tasks={}", names(node, columns.iter().copied()), self.parallelism)
            }
            NodeKind::Sink(target) => format!("Sink {}", target.table),
            NodeKind::Client => format!("Client columns=[{}]", names(node, 0..node.schema.fields().len())),
        }
    }

    /// The WATERMARK expression of a table, as the user wrote it.
    fn watermark(&self, table: &str) -> Option<&str> {
        let table = self.catalog.resolve_table(table).ok()?;
        table.bound.watermark.as_ref().map(|watermark| watermark.text.as_str())
    }

    fn facts(&self, node: &StreamNode) -> String {
        let is_exchange = matches!(node.kind, NodeKind::Exchange(_));
        let state = || format!("state={}", state(&node.properties.state));
        match self.kind {
            ExplainKind::State if is_exchange => String::new(),
            ExplainKind::State => format!("uid={} {}{}", node.uid, state(), tables(node)),
            ExplainKind::ChangelogMode => kinds(node),
            ExplainKind::Plan | ExplainKind::Logical if is_exchange => String::new(),
            ExplainKind::Plan | ExplainKind::Logical => {
                format!("uid={} {} {}", node.uid, changelog(node), state())
            }
        }
    }
}

fn changelog(node: &StreamNode) -> String {
    let properties = &node.properties;
    let mut text = format!("mode={}", properties.mode);
    for key in &properties.upsert_keys {
        let _ = write!(text, " key=({})", names(node, key.iter().copied()));
    }
    if !properties.time_columns.is_empty() {
        let _ = write!(text, " watermark=[{}]", names(node, properties.time_columns.iter().copied()));
    }
    text
}

/// The kinds of changes of a node and its keys, as Flink writes them.
fn kinds(node: &StreamNode) -> String {
    let properties = &node.properties;
    let mut kinds = vec!["I"];
    if properties.kinds.updates {
        kinds.extend(if properties.mode == ChangelogMode::Upsert { vec!["UA"] } else { vec!["UB", "UA"] });
    }
    if properties.kinds.deletes {
        kinds.push("D");
    }
    let mut text = format!("changelogMode=[{}]", kinds.join(","));
    if !properties.upsert_keys.is_empty() {
        let key = |key: &Vec<usize>| format!("[{}]", names(node, key.iter().copied()));
        let keys: Vec<String> = properties.upsert_keys.iter().map(key).collect();
        let _ = write!(text, " upsertKeys=[{}]", keys.join(", "));
    }
    text
}

/// The state tables of an operator, by what identifies their rows.
fn tables(node: &StreamNode) -> String {
    let NodeKind::Operator(factory) = &node.kind else { return String::new() };
    let key_groups = KeyGroupRange::all(1);
    let context = BuildContext { index: 0, parallelism: 1, max_parallelism: 1, key_groups };
    let Ok(mut operator) = factory.build(context) else { return String::new() };
    let table = |table: &mut dyn StateTable| {
        let def = table.def();
        let identity = &def.schema.fields()[..def.identity_columns];
        let columns: Vec<&str> = identity.iter().map(|field| field.name().as_str()).collect();
        format!("{}({})", def.name, columns.join(", "))
    };
    let tables: Vec<String> = operator.tables().into_iter().map(table).collect();
    if tables.is_empty() { String::new() } else { format!(" tables=[{}]", tables.join(", ")) }
}

fn names(node: &StreamNode, columns: impl IntoIterator<Item = usize>) -> String {
    let names: Vec<&str> =
        columns.into_iter().map(|column| node.schema.field(column).name().as_str()).collect();
    names.join(", ")
}

fn state(bound: &StateBound) -> String {
    match bound {
        StateBound::None => "none".into(),
        StateBound::Watermark(what) => format!("by watermark ({what})"),
        StateBound::Keys(what) => format!("by keys ({what})"),
        StateBound::Time(what) => format!("by time ({what})"),
        StateBound::Ttl(time) => format!("by TTL ({time})"),
        StateBound::Unbounded(reason) => format!("UNBOUNDED: {reason}"),
    }
}
