//! Control protocol between library and daemon.
