//! Packet links.
