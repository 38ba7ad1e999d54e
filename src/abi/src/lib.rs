//! The C ABI of libibverbs and librdmacm.
