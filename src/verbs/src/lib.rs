//! Safe Rust verbs.
