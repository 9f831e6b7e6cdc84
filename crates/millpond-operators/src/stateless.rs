//! Stateless operators: a function of each batch, wrapped as an operator that keeps nothing.

use millpond_core::{ChangelogBatch, EpochTime, Result, Watermark};
use millpond_state::StateTable;

use crate::operator::{EpochOutcome, InputIndex, KeySets, Operator, OperatorContext, Progress, Residency};

/// What a stateless operator does to a batch.
pub trait BatchFunction: Send {
    /// The rows that `batch` becomes; no more than it has.
    fn apply(&mut self, ctx: &OperatorContext, batch: ChangelogBatch) -> Result<ChangelogBatch>;
}

/// The operator that applies a function to each batch and passes marks on as they are.
#[derive(Debug)]
pub struct Stateless<F>(pub F);

impl<F: BatchFunction> Operator for Stateless<F> {
    fn touches(&self, _: InputIndex, _: &ChangelogBatch) -> Result<KeySets> {
        Ok(KeySets::new())
    }

    fn process(
        &mut self,
        ctx: &mut OperatorContext,
        _: InputIndex,
        batch: ChangelogBatch,
    ) -> Result<Progress> {
        let output = self.0.apply(ctx, batch)?;
        ctx.emit(output);
        Ok(Progress::Done)
    }

    fn end_epoch(
        &mut self,
        _: &mut OperatorContext,
        watermark: Option<Watermark>,
        _: EpochTime,
    ) -> Result<EpochOutcome> {
        Ok(EpochOutcome { watermark, wake_at: None, progress: Progress::Done })
    }

    fn resume(&mut self, _: &mut OperatorContext) -> Result<Progress> {
        Ok(Progress::Done)
    }

    fn residency(&mut self) -> Residency<'_> {
        Residency::Stateless
    }

    fn tables(&mut self) -> Vec<&mut dyn StateTable> {
        Vec::new()
    }

    fn restored(&mut self, _: Option<Watermark>) -> Result<()> {
        Ok(())
    }
}
