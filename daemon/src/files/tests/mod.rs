//! Files on real directories.

mod actor;
mod changes;
mod full_disk;
mod hostile;
mod list;
mod paths;
mod read_write;
mod record;
mod remove;
mod round_trip;
mod upload;
