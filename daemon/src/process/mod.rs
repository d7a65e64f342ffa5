//! Processes of commands: what to execute, how it is started, how its end is learnt.

pub mod program;
mod raw;
pub mod reaper;
pub mod spawn;
