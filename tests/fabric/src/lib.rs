//! Deterministic network for production engines.
