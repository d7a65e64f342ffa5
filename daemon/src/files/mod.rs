//! Files below a root directory: synchronous functions that never resolve a path outside of it.
