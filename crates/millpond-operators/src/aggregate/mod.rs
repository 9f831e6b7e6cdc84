//! Aggregates: what each function keeps per group, and how it is updated.
//!
//! State is columns of a state table, updated in place by one tight loop per call and batch; what
//! single values or rows must be remembered stands in side tables, partitioned by the same key:
//!
//! ```text
//! batch ─▶ inputs (arguments + FILTER, evaluated once) ─┬──────────────────────▶ fold into columns
//!                                                       ├ values: (key, x) → count ─▶ DISTINCT: fold
//!                                                       │           in order of x ─▶ MIN, MODE, …
//!                                                       └ rows: (key, arrival) → x ─▶ ARRAY_AGG, …
//! ```
//!
//! A function keeps the least that lets it answer: MAX of appended rows is one value, of rows that
//! change an ordered multiset, in which the next one is found in O(log n) when it is taken back.
//! Sums are exact while they accumulate (128 bits for integers, 192 for decimals; floats
//! compensated, with NaN and infinities counted apart, so that a retraction undoes them).
//! Overflow is judged on the emitted value only. Result types follow Flink.

mod call;
mod custom;
mod fold;
mod function;
mod merge;
mod moment;
mod one_group;
mod order_index;
mod owed;
mod result;
mod rows_result;
mod set;
mod side;
mod state;
mod take_back;
mod values_result;

pub use call::AggregateCall;
pub use custom::CustomFunction;
pub use fold::Fold;
pub use function::{AggregateFunction, CoMoment, FRACTION_PARTS, Moment, Percentile, output_type};
pub use one_group::one_group;
pub use order_index::OrderIndex;
pub use owed::Owed;
pub(crate) use result::describe_group;
pub use set::{AggregateSet, EvaluatedInput};
pub use side::{GroupedRows, SideDef, SideMut, SideRef};
pub use state::{evaluate, key_fields, state_table};

#[cfg(test)]
mod tests;
