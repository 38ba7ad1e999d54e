//! The event loop: clock, link, engine, memory.
