//! What each streaming operator computes.
//!
//! Operators are synchronous, do no IO and read no clock: their output depends only on their
//! state, their inputs and the epoch's time (invariant 16). The crate must not know tokio,
//! channels, connectors or clocks.

pub mod aggregate;
pub mod calc;
pub mod changelog_normalize;
pub mod deduplicate;
pub mod event_time;
pub mod expand;
pub mod expression;
pub mod fold;
pub mod group_aggregate;
pub mod join;
pub mod operator;
pub mod processing_time;
pub mod quick_time;
pub mod remember;
mod row_store;
pub mod session_aggregate;
pub mod session_window;
pub mod sink_materialize;
pub mod sql_text;
pub mod stateless;
pub mod temporal_filter;
pub mod top_n;
pub mod ttl;
pub mod union;
pub mod unnest;
pub mod window;
pub mod window_aggregate;
pub mod window_top_n;
pub mod window_tvf;

pub use aggregate::{AggregateCall, AggregateFunction};
pub use calc::CalcFactory;
pub use changelog_normalize::ChangelogNormalizeFactory;
pub use deduplicate::DeduplicateFactory;
pub use expand::ExpandFactory;
pub use fold::ChangelogFold;
pub use group_aggregate::GroupAggregateFactory;
pub use join::{JoinFactory, JoinKind, JoinRetention, SideRetention};
pub use operator::{
    BuildContext, EpochOutcome, InputIndex, KeySet, KeySets, Operator, OperatorContext, OperatorFactory,
    Progress, Residency, Spilling,
};
pub use processing_time::{ProcessingTimeFactory, WindowEnds};
pub use remember::RememberFactory;
pub use session_aggregate::SessionAggregateFactory;
pub use session_window::SessionWindowFactory;
pub use sink_materialize::{Conflict, SinkMaterializeFactory};
pub use stateless::{BatchFunction, Stateless};
pub use temporal_filter::{TemporalFilterFactory, TimeBound, TimeComparison};
pub use top_n::{RankFunction, RankOutput, RankRange, RankSpec, SortColumn, TopNFactory};
pub use union::UnionFactory;
pub use window::{WindowKind, WindowSpec};
pub use window_aggregate::{WindowAggregateFactory, WindowColumn};
pub use window_top_n::{WindowBound, WindowTopNFactory};
pub use window_tvf::WindowTvfFactory;
