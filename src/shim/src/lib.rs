//! Preload shim: a sysfs tree for programs that look there.
