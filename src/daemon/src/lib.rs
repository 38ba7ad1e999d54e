//! The daemon: devices, GID tables, slots.
