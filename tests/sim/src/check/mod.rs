//! Outside checkers. None of them asks the engine: they see what an application sees, what is in
//! memory and what passes on the wire.

pub mod atomics;
pub mod bytes;
pub mod receives;
pub mod sends;
pub mod wire;
