//! Interoperability tests of RoCE v2: against Linux `rdma_rxe` in a guest, real RNICs, other machines and
//! rocebud itself.

#![deny(unsafe_code)]

pub mod cache;
pub mod cleanup;
pub mod error;
pub mod netns;
pub mod peer;
pub mod wire;
