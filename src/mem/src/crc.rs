//! CRC-32 (IEEE 802.3, reflected polynomial 0xEDB88320), as zlib counts it.

/// Continues `crc` (0 at the start) over `data`.
pub fn crc32(crc: u32, data: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new_with_initial(crc);
    hasher.update(data);
    hasher.finalize()
}
