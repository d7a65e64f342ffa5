//! `sandlotd`: PID 1 of a sandbox that it has made itself (`init`) or that is a container of somebody else's (`pod`),
//! and the maker of sandboxes on one machine (`host`).
//!
//! From the bytes up: [`frame`] and [`message`] know the wire, [`seal`] what crosses a network, [`connection`] one socket, [`reactor`] readiness and
//! deadlines. [`serve`] is the main loop of a sandbox; it hands each request to one file of [`verbs`]. [`files`] and
//! [`cgroup`] are the kernel-facing parts that the verbs use. [`init`] boots a sandbox and resets it, [`pod`] does so with the container it is in; [`host`] makes
//! and destroys sandboxes. Nothing below `serve` knows the roles.

pub mod cgroup;
pub mod commands;
pub mod confinement;
pub mod connection;
pub mod descriptors;
pub mod error;
pub mod files;
pub mod frame;
pub mod host;
pub mod init;
pub mod limits;
pub mod message;
pub mod namespaces;
pub mod output;
pub mod pod;
pub mod process;
pub mod reactor;
pub mod relay;
pub mod removal;
pub mod sandbox;
pub mod seal;
pub mod serve;
pub mod source;
mod transfer;
pub mod users;
pub mod verbs;

/// Protocol name and version of this binary, as told in `hello.daemon`.
pub const NAME: &str = concat!("sandlotd ", env!("CARGO_PKG_VERSION"));
