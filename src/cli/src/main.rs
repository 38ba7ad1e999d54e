//! The `rocebud` command.
fn main() {}
