//! Deployment: cuts a StreamPlan at its exchanges into the fragments of a job graph.
//!
//! A chain of single-input operators becomes one fragment. A new fragment starts behind an
//! exchange, at an operator with several inputs, and behind a node that several consumers share.
//!
//! ```text
//! Source ─ Calc ─ Exchange(k) ─ Aggregate ─ Sink      [Source Calc] ═hash(k)═▶ [Aggregate │ Sink]
//! ```

use std::sync::Arc;

use millpond_connect::{ConnectorTable, given_rows};
use millpond_core::{BadRows, Error, OnMissingFile, Result};
use millpond_planner::{NodeId, NodeKind, StreamNode, StreamPlan};
use millpond_runtime::{Exchange, Fragment, Head, JobGraph, OperatorNode, SinkNode, SourceNode, Tail};

/// What a deployment needs besides the plan.
pub(crate) struct Deployment<'a> {
    /// Finds the connector of a table.
    pub(crate) connector: &'a dyn Fn(&str) -> Result<Arc<ConnectorTable>>,
    /// Number of tasks of a fragment that can have several.
    pub(crate) parallelism: usize,
    /// Number of key groups.
    pub(crate) max_parallelism: u16,
    /// The session's `bad-rows`, for tables without their own.
    pub(crate) bad_rows: BadRows,
    /// The session's `on-missing-file`, for tables without their own.
    pub(crate) on_missing_file: OnMissingFile,
    /// The session's `source.idle-timeout` in microseconds.
    pub(crate) idle_timeout: i64,
}

impl Deployment<'_> {
    /// The job graph of a plan.
    pub(crate) fn cut(&self, plan: &StreamPlan) -> Result<JobGraph> {
        let mut cut = Cut {
            deployment: self,
            plan,
            consumers: consumers(plan),
            fragments: Vec::new(),
            homes: vec![Home::Nowhere; plan.nodes.len()],
        };
        for id in 0..plan.nodes.len() {
            cut.place(id)?;
        }
        Ok(JobGraph { fragments: cut.fragments, max_parallelism: self.max_parallelism })
    }
}

/// Where the rows of a node come out.
#[derive(Debug, Clone)]
enum Home {
    Nowhere,
    /// At the end of a fragment's chain.
    Fragment(usize),
    /// From a fragment through an exchange.
    Exchange(usize, Vec<usize>),
}

struct Cut<'a> {
    deployment: &'a Deployment<'a>,
    plan: &'a StreamPlan,
    consumers: Vec<usize>,
    fragments: Vec<Fragment>,
    homes: Vec<Home>,
}

fn consumers(plan: &StreamPlan) -> Vec<usize> {
    let mut consumers = vec![0; plan.nodes.len()];
    for node in &plan.nodes {
        for input in &node.inputs {
            consumers[*input] += 1;
        }
    }
    consumers
}

impl Cut<'_> {
    fn place(&mut self, id: NodeId) -> Result<()> {
        let node = &self.plan.nodes[id];
        self.homes[id] = match &node.kind {
            NodeKind::Source { .. } => Home::Fragment(self.source(node)?),
            NodeKind::Rows { rows, event_time } => {
                let source = SourceNode {
                    uid: node.uid.clone(),
                    table: "VALUES".into(),
                    connector: given_rows(rows.clone()),
                    projection: (0..rows.num_columns()).collect(),
                    event_time: Arc::clone(event_time),
                    bad_rows: self.deployment.bad_rows,
                    on_missing_file: self.deployment.on_missing_file,
                    idle_timeout: self.deployment.idle_timeout,
                };
                Home::Fragment(self.new_fragment(1, Head::Source(source)))
            }
            NodeKind::Operator(factory) => {
                let operator = OperatorNode { uid: node.uid.clone(), factory: Arc::clone(factory) };
                let fragment = self.fragment_for(&node.inputs)?;
                self.fragments[fragment].chain.push(operator);
                Home::Fragment(fragment)
            }
            NodeKind::Exchange(keys) => match &self.homes[node.inputs[0]] {
                Home::Fragment(fragment) => Home::Exchange(*fragment, keys.clone()),
                Home::Exchange(..) | Home::Nowhere => {
                    return Err(Error::internal("an exchange must follow an operator"));
                }
            },
            NodeKind::Sink(target) => {
                let connector = (self.deployment.connector)(&target.table)?;
                let sink = connector.sink.clone().ok_or_else(|| {
                    Error::invalid(format!(
                        "table {:?} cannot be written: its connector only reads",
                        target.table
                    ))
                })?;
                let fragment = self.end_of(node.inputs[0])?;
                let sink = SinkNode { uid: node.uid.clone(), table: target.table.clone(), connector: sink };
                self.fragments[fragment].tail.push(Tail::Sink(sink));
                Home::Nowhere
            }
            NodeKind::Client => {
                let fragment = self.single_end_of(node.inputs[0])?;
                self.fragments[fragment].tail.push(Tail::Client);
                Home::Nowhere
            }
        };
        Ok(())
    }

    fn source(&mut self, node: &StreamNode) -> Result<usize> {
        let NodeKind::Source { table, projection, event_time } = &node.kind else {
            return Err(Error::internal("not a source"));
        };
        let entry = (self.deployment.connector)(table)?;
        let connector = entry.source.clone().ok_or_else(|| {
            Error::invalid(format!("table {table:?} cannot be read: its connector only writes"))
        })?;
        let source = SourceNode {
            uid: node.uid.clone(),
            table: table.clone(),
            connector,
            projection: projection.clone(),
            event_time: Arc::clone(event_time),
            bad_rows: entry.bad_rows.unwrap_or(self.deployment.bad_rows),
            on_missing_file: entry.on_missing_file.unwrap_or(self.deployment.on_missing_file),
            idle_timeout: entry.idle_timeout.unwrap_or(self.deployment.idle_timeout),
        };
        Ok(self.new_fragment(self.deployment.parallelism, Head::Source(source)))
    }

    fn new_fragment(&mut self, parallelism: usize, head: Head) -> usize {
        self.fragments.push(Fragment { parallelism, head, chain: Vec::new(), tail: Vec::new() });
        self.fragments.len() - 1
    }

    /// The fragment whose chain the consumer of these inputs continues or begins.
    fn fragment_for(&mut self, inputs: &[NodeId]) -> Result<usize> {
        if let [input] = inputs
            && let Home::Fragment(fragment) = self.homes[*input]
            && self.consumers[*input] == 1
        {
            return Ok(fragment);
        }
        let parallelism = inputs.iter().map(|input| self.parallelism_behind(*input)).min().unwrap_or(1);
        let to = self.new_fragment(parallelism, Head::Inputs(inputs.len()));
        for (input, node) in inputs.iter().enumerate() {
            self.connect(*node, to, input)?;
        }
        Ok(to)
    }

    /// The fragment at whose end the rows of a node come out; a sink can share it.
    fn end_of(&mut self, node: NodeId) -> Result<usize> {
        match self.homes[node] {
            Home::Fragment(fragment) => Ok(fragment),
            Home::Exchange(..) | Home::Nowhere => self.fragment_for(&[node]),
        }
    }

    /// As [`Cut::end_of`], but with a single task.
    fn single_end_of(&mut self, node: NodeId) -> Result<usize> {
        let fragment = self.end_of(node)?;
        if self.fragments[fragment].parallelism == 1 {
            return Ok(fragment);
        }
        let to = self.new_fragment(1, Head::Inputs(1));
        self.fragments[fragment].tail.push(Tail::Edge { to, input: 0, exchange: Exchange::Single });
        Ok(to)
    }

    fn parallelism_behind(&self, node: NodeId) -> usize {
        match &self.homes[node] {
            Home::Exchange(_, keys) if keys.is_empty() => 1,
            Home::Exchange(..) => self.deployment.parallelism,
            Home::Fragment(fragment) => self.fragments[*fragment].parallelism,
            Home::Nowhere => 1,
        }
    }

    fn connect(&mut self, node: NodeId, to: usize, input: usize) -> Result<()> {
        let receivers = self.fragments[to].parallelism;
        let (from, exchange) = match &self.homes[node] {
            Home::Exchange(from, keys) if keys.is_empty() => (*from, Exchange::Single),
            Home::Exchange(from, keys) => (*from, Exchange::Hash(keys.clone())),
            Home::Fragment(from) if self.fragments[*from].parallelism == receivers => {
                (*from, Exchange::Forward)
            }
            Home::Fragment(from) => (*from, Exchange::Single),
            Home::Nowhere => {
                return Err(Error::internal("a node of the plan stands before its input"));
            }
        };
        self.fragments[from].tail.push(Tail::Edge { to, input, exchange });
        Ok(())
    }
}
