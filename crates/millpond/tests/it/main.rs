//! Integration tests of the engine's public face; one binary, so that the engine is linked once.

mod embedding;
mod flights;
mod nexmark;
mod resumption;
mod text;
