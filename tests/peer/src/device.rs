//! What `ibv_devinfo -v` says of a device.

use std::net::Ipv6Addr;

use crate::netns::Host;
use crate::{Failure, wrong};

/// One device, as the unmodified tool prints it.
#[derive(Clone, Debug)]
pub struct DevInfo {
    /// Everything that was printed.
    pub text: String,
    /// Index and address of each GID that was printed.
    pub gids: Vec<(u32, Ipv6Addr)>,
}

impl DevInfo {
    /// Asks `ibv_devinfo -v -d DEVICE` in `host`.
    ///
    /// # Errors
    /// The program failed or printed something unknown.
    pub fn of(host: &Host) -> Result<Self, Failure> {
        Self::of_device(host, &host.device())
    }

    /// The same of any device of `host`.
    ///
    /// # Errors
    /// As [`DevInfo::of`].
    pub fn of_device(host: &Host, device: &str) -> Result<Self, Failure> {
        let program = host.rocebud("ibv_devinfo", &["-v", "-d", device]);
        Self::parse(program.run()?.succeeded()?)
    }

    fn parse(text: String) -> Result<Self, Failure> {
        let mut gids = Vec::new();
        for line in text
            .lines()
            .map(str::trim)
            .filter(|l| l.starts_with("GID["))
        {
            let Some((index, address)) = line.trim_start_matches("GID[").split_once("]:") else {
                return wrong(format!("ibv_devinfo: strange line {line}"));
            };
            let address = address.split(',').next().unwrap_or_default().trim();
            gids.push((index.trim().parse()?, address.parse()?));
        }
        Ok(Self { text, gids })
    }

    /// The value behind `name:`, first occurrence.
    pub fn field(&self, name: &str) -> Option<&str> {
        self.text.lines().find_map(|l| {
            l.trim()
                .strip_prefix(name)?
                .strip_prefix(':')
                .map(str::trim)
        })
    }

    /// The index of an address's GID (an IPv4 address counts as ::ffff:a.b.c.d).
    ///
    /// # Errors
    /// It is not in the table.
    pub fn index_of(&self, address: &str) -> Result<u32, Failure> {
        let ip: std::net::IpAddr = address.parse()?;
        let want = match ip {
            std::net::IpAddr::V4(v4) => v4.to_ipv6_mapped(),
            std::net::IpAddr::V6(v6) => v6,
        };
        match self.gids.iter().find(|(_, a)| *a == want) {
            Some((index, _)) => Ok(*index),
            None => wrong(format!("no GID for {address} in:\n{}", self.text)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gids_and_fields_are_read_from_devinfo_output() {
        let text = "hca_id:\trb_ve0\n\t\t\tactive_mtu:\t\t1024 (3)\n\t\t\tGID[  0]:\t\tfe80::1, RoCE v2\n\
                    \t\t\tGID[  2]:\t\t::ffff:10.77.0.1, RoCE v2\n";
        let info = DevInfo::parse(text.into()).expect("parses");
        assert_eq!(info.field("active_mtu"), Some("1024 (3)"));
        assert_eq!(info.index_of("10.77.0.1").ok(), Some(2));
        assert_eq!(info.index_of("fe80::1").ok(), Some(0));
        assert!(info.index_of("10.77.0.2").is_err());
    }
}
