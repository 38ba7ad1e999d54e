//! Checksums that a sender's kernel left to a network card that is not there.

/// Bytes of an Ethernet header, and of a VLAN tag.
const ETHER_BYTES: usize = 14;
const TAG_BYTES: usize = 4;
/// Bytes of an IPv6 header, and of the shortest IPv4 header.
const IPV6_BYTES: usize = 40;

/// Completes the checksum of a TCP or UDP packet. Its field holds the sum over the addresses
/// already, as the kernel leaves it. Other frames stay as they are.
pub(super) fn complete(frame: &mut [u8]) {
    let Some((start, field)) = find(frame) else {
        return;
    };
    let Some(packet) = frame.get_mut(start..) else {
        return;
    };
    let sum = !folded(packet);
    if let Some(place) = packet.get_mut(field..field + 2) {
        // 0 would say "none".
        let sum = if sum == 0 { 0xffff } else { sum };
        place.copy_from_slice(&sum.to_be_bytes());
    }
}

/// Where the transport header begins, and where its checksum lies in it.
fn find(frame: &[u8]) -> Option<(usize, usize)> {
    let mut at = ETHER_BYTES;
    let mut kind = number(frame, 12)?;
    while matches!(kind, 0x8100 | 0x88a8) {
        kind = number(frame, at + 2)?;
        at += TAG_BYTES;
    }
    let (protocol, start) = match kind {
        0x0800 => (
            *frame.get(at + 9)?,
            at + usize::from(frame.get(at)? & 0xf) * 4,
        ),
        0x86dd => (*frame.get(at + 6)?, at + IPV6_BYTES),
        _ => return None,
    };
    match protocol {
        6 => Some((start, 16)),
        17 => Some((start, 6)),
        _ => None,
    }
}

/// The ones' complement sum of 16-bit words.
fn folded(data: &[u8]) -> u16 {
    let mut sum = 0u64;
    for pair in data.chunks(2) {
        let word = match pair {
            [a, b] => u16::from_be_bytes([*a, *b]),
            [a] => u16::from_be_bytes([*a, 0]),
            _ => 0,
        };
        sum += u64::from(word);
    }
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

fn number(data: &[u8], at: usize) -> Option<u16> {
    let bytes = data.get(at..at + 2)?.try_into().ok()?;
    Some(u16::from_be_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Addresses, protocol and length: what the sum begins with.
    fn pseudo(packet: &[u8], protocol: u8) -> Vec<u8> {
        let mut bytes = vec![10, 0, 0, 1, 10, 0, 0, 2, 0, protocol];
        bytes.extend(u16::try_from(packet.len()).unwrap().to_be_bytes());
        bytes
    }

    #[test]
    fn the_sum_over_everything_is_then_right() {
        for (protocol, field, header) in [(6, 16, 20), (17, 6, 8)] {
            for payload in [0, 1, 2, 37] {
                for tag in [&[][..], &[0x81, 0, 0, 5]] {
                    let mut packet: Vec<u8> =
                        (0..header + payload).map(|i| i as u8 ^ 0x5a).collect();
                    packet[field..field + 2].fill(0);
                    let begun = folded(&pseudo(&packet, protocol));
                    packet[field..field + 2].copy_from_slice(&begun.to_be_bytes());
                    let mut frame = vec![2; 12];
                    frame.extend(tag);
                    frame.extend([0x08, 0, 0x45, 0, 0, 0, 0, 0, 0, 0, 64, protocol, 0, 0]);
                    frame.extend([10, 0, 0, 1, 10, 0, 0, 2]);
                    let start = frame.len();
                    frame.extend(&packet);
                    complete(&mut frame);
                    let mut all = pseudo(&packet, protocol);
                    all.extend(&frame[start..]);
                    assert_eq!(folded(&all), 0xffff, "{protocol} {payload}");
                }
            }
        }
    }

    #[test]
    fn frames_of_any_length_are_survived() {
        let whole = [
            [2; 12].to_vec(),
            vec![0x08, 0, 0x4f, 0, 0, 0, 0, 0, 0, 0, 64, 17],
        ]
        .concat();
        for len in 0..=whole.len() {
            complete(&mut whole[..len].to_vec());
        }
    }
}
