//! Daemon and command on real network namespaces, each test in one of its own. Needs root; says so
//! where it is missing.

#![deny(unsafe_code)]

mod clients;
mod command;
mod follow;
mod settings;
mod starting;
mod sys;
mod world;
