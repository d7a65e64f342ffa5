//! File operations beside the main loop: each runs on a thread and talks to its call through a [`Flow`].
//!
//! The main loop only moves whole frames between a flow and a connection. The thread's end, the [`Port`], is where
//! [`crate::files`] sends to and takes from; its calls wait there for the client's acknowledgements and for room, so
//! neither side keeps more than a window of data.

mod bell;
mod flow;
mod port;
mod workers;

pub(crate) use bell::Bell;
pub(crate) use flow::{Flow, Pushed};
pub(crate) use port::{Port, Positions};
pub(crate) use workers::Workers;

/// Which operation; unique in the life of a daemon.
pub(crate) type Ticket = u64;
