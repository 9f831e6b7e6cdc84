//! What a job graph must be before it is deployed; the planner promises it.

use millpond_core::{Error, Result};

use crate::graph::{Exchange, Fragment, Head, JobGraph, Tail};
use crate::options::CheckpointMode;
use crate::pending::sinks_of;

impl JobGraph {
    /// Errors: *Internal*, with the first broken promise.
    pub(crate) fn validate(&self) -> Result<()> {
        let broken = |what: String| Err(Error::internal(format!("job graph: {what}")));
        if self.max_parallelism == 0 {
            return broken("no key groups".into());
        }
        if !self.fragments.iter().any(|fragment| matches!(fragment.head, Head::Source(_))) {
            return broken("no source".into());
        }
        let clients = self.fragments.iter().flat_map(|fragment| &fragment.tail);
        if clients.filter(|tail| matches!(tail, Tail::Client)).count() > 1 {
            return broken("more than one client".into());
        }
        for (at, fragment) in self.fragments.iter().enumerate() {
            self.validate_fragment(at, fragment).or_else(|what| broken(format!("fragment {at}: {what}")))?;
        }
        Ok(())
    }

    /// Errors: *Invalid* for a transactional sink in a job that publishes without waiting for
    /// checkpoints.
    pub(crate) fn validate_mode(&self, mode: CheckpointMode) -> Result<()> {
        let sinks = sinks_of(self);
        let transactional = sinks.iter().find(|sink| sink.connector.is_transactional());
        match (mode, transactional) {
            (CheckpointMode::ExactlyOnce, _) | (CheckpointMode::AtLeastOnce, None) => Ok(()),
            (CheckpointMode::AtLeastOnce, Some(sink)) => Err(Error::invalid(format!(
                "table {:?} takes part in checkpoints and cannot be written with 'checkpoint.mode' = 'at_least_once'",
                sink.table
            ))
            .with_detail("its rows become visible with a checkpoint, so that none is doubled")
            .with_hint("SET 'checkpoint.mode' = 'exactly_once'; a shorter 'checkpoint.interval' shows rows sooner")),
        }
    }

    fn validate_fragment(&self, at: usize, fragment: &Fragment) -> Result<(), String> {
        let is_client = |tail: &Tail| matches!(tail, Tail::Client);
        if fragment.parallelism == 0 || fragment.parallelism > usize::from(self.max_parallelism) {
            return Err(format!(
                "parallelism {} of {} key groups",
                fragment.parallelism, self.max_parallelism
            ));
        }
        if fragment.tail.is_empty() {
            return Err("no tail".into());
        }
        if fragment.parallelism > 1 && fragment.tail.iter().any(is_client) {
            return Err("a client of several tasks".into());
        }
        match fragment.head {
            Head::Source(_) => {}
            Head::Inputs(inputs) => {
                if let Some(input) = (0..inputs.max(1)).find(|input| !self.feeds(at, *input)) {
                    return Err(format!("nothing feeds input {input}"));
                }
            }
        }
        fragment.tail.iter().try_for_each(|tail| self.validate_tail(at, fragment.parallelism, tail))
    }

    fn validate_tail(&self, at: usize, parallelism: usize, tail: &Tail) -> Result<(), String> {
        let Tail::Edge { to, input, exchange } = tail else { return Ok(()) };
        let Some(target) = self.fragments.get(*to).filter(|_| *to > at) else {
            return Err(format!("an edge to fragment {to}"));
        };
        match target.head {
            Head::Inputs(inputs) if *input < inputs => {}
            Head::Inputs(_) | Head::Source(_) => {
                return Err(format!("an edge to input {input} of fragment {to}"));
            }
        }
        if *exchange == Exchange::Forward && target.parallelism != parallelism {
            return Err(format!("a forward edge from {parallelism} to {} tasks", target.parallelism));
        }
        Ok(())
    }

    fn feeds(&self, fragment: usize, at: usize) -> bool {
        let tails = self.fragments.iter().flat_map(|fragment| &fragment.tail);
        tails
            .into_iter()
            .any(|tail| matches!(tail, Tail::Edge { to, input, .. } if *to == fragment && *input == at))
    }
}
