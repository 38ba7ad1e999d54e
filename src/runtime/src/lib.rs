//! The event loop: clock, link, engine, memory.

pub use rocebud_engine::SrqMask;
