//! How long operators keep their state: by the setting, or by the hint of a SELECT.

use std::collections::BTreeMap;

use datafusion::logical_expr::{LogicalPlan, SubqueryAlias};
use millpond_core::{Error, Result};

use super::Chooser;
use crate::state_ttl::Hint;
use crate::stream_plan::NodeId;

/// The hints of the queries, and whether an operator follows them.
#[derive(Debug, Default)]
pub(super) struct Hints(BTreeMap<Hint, bool>);

impl Hints {
    /// Errors: *Invalid* for a hint without effect: it would let the user wait for it.
    pub(super) fn check(&self) -> Result<()> {
        match self.0.iter().find(|(_, is_followed)| !**is_followed) {
            None => Ok(()),
            Some((hint, _)) => Err(Error::invalid(format!("STATE_TTL for {:?} has no effect", hint.table))
                .with_detail("no operator right above it keeps rows by the processing time")
                .with_hint(
                    "name an input of a JOIN without a bound of time, or of a GROUP BY, DISTINCT or ROW_NUMBER",
                )
                .with_location(hint.location())),
        }
    }
}

impl Chooser<'_> {
    /// A table with another name, or with a hint.
    pub(super) fn alias(&mut self, alias: &SubqueryAlias) -> Result<NodeId> {
        if let Some(hint) = Hint::of(alias) {
            self.hints.0.entry(hint).or_insert(false);
        }
        self.choose(&alias.input)
    }

    /// How long an operator over `plan` keeps its state, in microseconds; `None`: for ever.
    pub(super) fn ttl_of(&mut self, plan: &LogicalPlan) -> Option<i64> {
        match plan {
            LogicalPlan::Projection(projection) => self.ttl_of(&projection.input),
            LogicalPlan::Filter(filter) => self.ttl_of(&filter.input),
            LogicalPlan::SubqueryAlias(alias) => match Hint::of(alias) {
                Some(hint) => {
                    let ttl = hint.ttl;
                    self.hints.0.insert(hint, true);
                    ttl
                }
                None => self.ttl_of(&alias.input),
            },
            _ => self.session.state_ttl(),
        }
    }
}
