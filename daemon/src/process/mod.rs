//! Processes of commands: what to execute, how it is started, how its end is learnt.

pub mod arguments;
pub mod child;
pub mod driver;
pub mod input;
pub mod keeper;
pub mod launch;
pub mod program;
pub mod raw;
pub mod reaper;
pub mod recipe;
pub mod score;
pub mod script;
pub mod spawn;
pub mod stdio;
pub mod table;
pub mod tree;
