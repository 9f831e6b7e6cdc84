//! Integration tests of the engine's public face; one binary, so that the engine is linked once.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod corruption;
mod embedding;
mod faults;
mod flights;
mod flink;
mod http_listen;
mod memory;
mod nexmark;
mod resumption;
mod savepoints;
mod text;
