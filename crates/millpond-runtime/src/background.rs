//! Background work: what blocks (state IO, flush and fsync of sinks, commits) runs on the
//! blocking threads, and is always waited for.
//!
//! Work cannot be aborted half-way, so whoever ends a job waits for it; work in several steps asks
//! [`Background::is_halted`] between them, so that a crash stops it where a kill would have.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;

use millpond_core::{Error, Result};
use tokio::sync::oneshot;
use tokio::task::JoinSet;

/// The background work of one job.
#[derive(Debug, Clone, Default)]
pub(crate) struct Background {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    halted: AtomicBool,
    /// The running work; held only to add to it or to take it out.
    running: Mutex<JoinSet<()>>,
}

impl Background {
    /// Starts work; what it answers comes through the receiver.
    pub(crate) fn start<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> oneshot::Receiver<Result<T>> {
        let (answer, answered) = oneshot::channel();
        let mut running = self.running();
        while running.try_join_next().is_some() {}
        running.spawn_blocking(move || {
            let result = caught(work);
            // Nobody waits any more: the job has been cancelled or has failed.
            let _ = answer.send(result);
        });
        answered
    }

    /// Does work and waits for what it answers.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Result<T> {
        self.start(work).await.unwrap_or_else(|_| Err(Error::cancelled()))
    }

    /// Asks running work to stop at its next step.
    pub(crate) fn halt(&self) {
        self.shared.halted.store(true, Ordering::SeqCst);
    }
    /// Allows work again: for the next attempt.
    pub(crate) fn resume(&self) {
        self.shared.halted.store(false, Ordering::SeqCst);
    }
    /// Errors: *Cancelled* when the job has been halted.
    pub(crate) fn check_halted(&self) -> Result<()> {
        if self.is_halted() { Err(Error::cancelled()) } else { Ok(()) }
    }
    /// Whether work should stop.
    pub(crate) fn is_halted(&self) -> bool {
        self.shared.halted.load(Ordering::SeqCst)
    }

    /// Waits until all work has ended. The work stays where it is, so that a wait that is given up
    /// (the job is cancelled meanwhile) leaves it to the next one.
    pub(crate) async fn join(&self) {
        std::future::poll_fn(|context| {
            let mut running = self.running();
            loop {
                match running.poll_join_next(context) {
                    Poll::Ready(Some(_)) => {}
                    Poll::Ready(None) => return Poll::Ready(()),
                    Poll::Pending => return Poll::Pending,
                }
            }
        })
        .await;
    }

    fn running(&self) -> MutexGuard<'_, JoinSet<()>> {
        self.shared.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Runs work; a panic becomes an *Internal* error (invariant 15).
fn caught<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(work))
        .unwrap_or_else(|panic| Err(panicked("background work", panic.as_ref())))
}

/// The error of something that has panicked.
pub(crate) fn panicked(what: &str, panic: &(dyn std::any::Any + Send)) -> Error {
    let message = panic
        .downcast_ref::<&str>()
        .map(|text| (*text).to_string())
        .or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "no message".into());
    Error::internal(format!("{what} panicked: {message}"))
}

#[cfg(test)]
mod tests {
    use millpond_core::ErrorKind;

    use super::*;

    #[tokio::test]
    async fn work_answers_fails_and_panics_into_results() {
        let background = Background::default();
        assert_eq!(background.run(|| Ok(7)).await, Ok(7));
        let error = background.run(|| -> Result<()> { Err(Error::data("bad")) }).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Data);
        let error = background.run(|| -> Result<()> { panic!("oh {}", 1) }).await.unwrap_err();
        assert_eq!(error, Error::internal("background work panicked: oh 1"));
        background.join().await;
    }

    /// A job that is cancelled while it waits must not be taken for ended.
    #[tokio::test]
    async fn a_wait_that_is_given_up_leaves_the_work_to_the_next() {
        let background = Background::default();
        let (release, released) = std::sync::mpsc::channel::<()>();
        let work =
            background.start(move || released.recv().map_err(|error| Error::internal(error.to_string())));
        {
            let mut given_up = std::pin::pin!(background.join());
            assert!(futures::poll!(given_up.as_mut()).is_pending());
        }
        release.send(()).unwrap();
        background.join().await;
        assert_eq!(work.await.unwrap(), Ok(()));
    }

    #[tokio::test]
    async fn joining_waits_for_work_that_nobody_awaits() {
        let background = Background::default();
        let flag = Arc::new(AtomicBool::new(false));
        let set = Arc::clone(&flag);
        drop(background.start(move || {
            set.store(true, Ordering::SeqCst);
            Ok(())
        }));
        background.join().await;
        assert!(flag.load(Ordering::SeqCst));
    }
}
