//! File operations beside the main loop: each runs on a thread and talks to its call through a [`Flow`].
//!
//! The main loop only moves whole frames between a flow and a connection. The thread's end, the [`Port`], is where
//! [`crate::files`] sends to and takes from; its calls wait there for the client's acknowledgements and for room, so
//! neither side keeps more than a window of data.

mod exchange;
mod flow;
mod port;
mod workers;

use std::sync::{Mutex, MutexGuard, PoisonError};

pub(crate) use exchange::Exchange;
pub(crate) use flow::Flow;
pub(crate) use port::{Port, Positions};
use workers::Workers;

/// Which operation; unique in the life of a daemon.
pub(crate) type Ticket = u64;

/// A thread that panicked while it held the lock has left nothing half done in it.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
