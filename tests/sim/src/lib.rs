//! Seeded simulations.
