//! The manual: how RC recovers, the table of reasons, defaults and why.
