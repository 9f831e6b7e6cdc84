//! Waiting for a processing time, on clocks that run by themselves and on manual ones.

use std::time::Duration;

use millpond_core::{Clock, Timestamp};

/// How often a manual clock is looked at: it cannot tell that it has been advanced.
const LOOK: Duration = Duration::from_millis(1);

/// Resolves at a processing time; never for `None`.
pub(crate) async fn sleep_until(clock: &dyn Clock, at: Option<Timestamp>) {
    let Some(at) = at else { return std::future::pending().await };
    loop {
        let left = at.0.saturating_sub(clock.now().0);
        if left <= 0 {
            return;
        }
        tokio::time::sleep(if clock.is_manual() { LOOK } else { Duration::from_micros(left as u64) }).await;
    }
}
