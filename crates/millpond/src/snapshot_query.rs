//! Reading snapshots by SQL: `checkpoint_state(job, uid [, checkpoint])`.
