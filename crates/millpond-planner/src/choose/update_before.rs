//! Who needs `-U`, the old images of changed rows: asked from the sinks towards the sources.
//!
//! ```text
//! sink that replaces by its key         not if that is the key of the rows
//! sink that ignores -U                  not
//! exchange                              as behind it, if it spreads by columns of the key
//! Calc without a filter                 as behind it
//! anything else                         needs them
//! ```
//!
//! An exchange by other columns would bring old and new row of a key to different tasks, and a
//! filter would drop the new row while the old one stays. Operators that can then say `+U` alone; the
//! edges behind them are in upsert mode.

use std::collections::HashMap;

use millpond_core::ChangelogMode;

use super::Chooser;
use crate::stream_plan::{NodeId, NodeKind, StreamNode, StreamPlan};

/// Which rows of a sink replace each other without their old images.
#[derive(Debug, Clone)]
pub(super) enum Replaced {
    /// Those with the same values of these columns.
    ByKey(Vec<usize>),
    /// All: it makes nothing of them.
    Always,
}

impl Chooser<'_> {
    /// The plan without `-U` where nothing needs it.
    pub(super) fn without_update_before(&self, mut plan: StreamPlan) -> StreamPlan {
        let needless = self.needless(&plan);
        for id in 0..plan.nodes.len() {
            let input =
                |nodes: &[StreamNode]| nodes[id].inputs.first().map(|input| nodes[*input].properties.mode);
            let upsert = match &plan.nodes[id].kind {
                NodeKind::Operator(factory) if factory.name() != "Calc" => {
                    let properties = &plan.nodes[id].properties;
                    let without = factory.without_update_before();
                    let without = without.filter(|_| needless[id] && properties.kinds.updates);
                    without.map(|factory| plan.nodes[id].kind = NodeKind::Operator(factory)).is_some()
                }
                _ => needless[id] && input(&plan.nodes) == Some(ChangelogMode::Upsert),
            };
            if upsert {
                plan.nodes[id].properties.mode = ChangelogMode::Upsert;
            }
        }
        plan
    }

    /// Per node, whether its consumers do without its `-U`.
    fn needless(&self, plan: &StreamPlan) -> Vec<bool> {
        let mut read = vec![false; plan.nodes.len()];
        let mut needless = vec![true; plan.nodes.len()];
        for (id, node) in plan.nodes.iter().enumerate().rev() {
            let is_end = matches!(node.kind, NodeKind::Sink(_) | NodeKind::Client);
            needless[id] &= (read[id] || is_end) && self.passes(id, node);
            if !read[id] && !is_end {
                // It has been merged with its consumer.
                continue;
            }
            let passes_on = match &node.kind {
                NodeKind::Operator(factory) => factory.name() == "Calc",
                NodeKind::Exchange(_) | NodeKind::Sink(_) => true,
                NodeKind::Source { .. } | NodeKind::Rows { .. } | NodeKind::Client => false,
            };
            for input in &node.inputs {
                read[*input] = true;
                needless[*input] &= passes_on && needless[id];
            }
        }
        needless
    }

    /// Whether changes without `-U` are right behind this node if they are right for its consumers.
    fn passes(&self, id: NodeId, node: &StreamNode) -> bool {
        let [key] = node.properties.upsert_keys.as_slice() else { return false };
        match &node.kind {
            NodeKind::Source { .. } | NodeKind::Rows { .. } | NodeKind::Client => false,
            NodeKind::Exchange(columns) => columns.iter().all(|column| key.contains(column)),
            NodeKind::Operator(factory) if factory.name() == "Calc" => {
                self.calcs.get(&id).is_some_and(|calc| calc.filter.is_none())
            }
            NodeKind::Operator(factory) => factory.without_update_before().is_some(),
            NodeKind::Sink(_) => match self.replaced.get(&id) {
                Some(Replaced::Always) => true,
                Some(Replaced::ByKey(columns)) => {
                    columns.iter().all(|column| key.contains(column))
                        && key.iter().all(|column| columns.contains(column))
                }
                None => false,
            },
        }
    }
}

/// What the sinks of a plan replace.
pub(super) type ReplacedBySinks = HashMap<NodeId, Replaced>;
