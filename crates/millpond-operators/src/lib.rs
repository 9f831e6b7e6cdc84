//! What each streaming operator computes.
//!
//! Operators are synchronous, do no IO and read no clock: their output depends only on their
//! state, their inputs and the epoch's time (invariant 16). The crate must not know tokio,
//! channels, connectors or clocks.

pub mod event_time;
pub mod operator;

pub use operator::{
    BuildContext, EpochOutcome, InputIndex, KeySet, KeySets, Operator, OperatorContext, OperatorFactory, Progress,
};
