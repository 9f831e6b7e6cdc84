//! Aggregates: what COUNT, SUM, AVG, MIN and MAX keep per group, and how they are updated.
//!
//! State is columns of a state table, updated in place by one tight loop per call and batch:
//!
//! ```text
//! batch ─▶ inputs (argument + FILTER, evaluated once) ─┬─────────────────▶ fold into columns
//!                                                      └ DISTINCT: (key, x) → count ─▶ fold
//! ```
//!
//! Sums are exact while they accumulate (128 bits for integers, 192 for decimals; floats
//! compensated, with NaN and infinities counted apart, so that a retraction undoes them).
//! Overflow is judged on the emitted value only. Result types follow Flink.

mod call;
mod distinct;
mod fold;
mod result;
mod set;
mod state;
mod take_back;

pub use call::{AggregateCall, AggregateFunction, output_type};
pub use distinct::DistinctChanges;
pub use fold::Fold;
pub(crate) use result::describe_group;
pub use set::{AggregateSet, EvaluatedInput};
pub use state::{evaluate, key_fields, state_table};

#[cfg(test)]
mod tests;
