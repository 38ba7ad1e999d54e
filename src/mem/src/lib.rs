//! Guarded access to application memory.
