//! Unmodified programs between namespaces.
