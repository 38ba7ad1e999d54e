//! What leaves on the wire.
