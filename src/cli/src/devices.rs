//! `rocebud devices`.

use rocebud_ctl::{DeviceInfo, GidEntry};
use serde::Serialize;

use crate::args::DevicesArgs;
use crate::table::Table;
use crate::{Failure, connect_or_start, print};

pub(crate) fn run(args: DevicesArgs) -> Result<(), Failure> {
    let devices = connect_or_start()?.devices()?;
    if args.json {
        return print(&json(&devices)?);
    }
    if devices.is_empty() {
        return Err(Failure::new(
            "this network namespace has no interface at all: add one (`ip link`)",
        ));
    }
    print(&text(&devices))?;
    if devices.iter().all(|d| !d.active) {
        print(
            "No port is ACTIVE: bring an interface up and give it an address (`ip link set IF up`, `ip addr add …`).\n",
        )?;
    }
    Ok(())
}

fn text(devices: &[DeviceInfo]) -> String {
    let mut table = Table::new([
        "NAME",
        "NETDEV",
        "STATE",
        "MTU",
        "ACTIVE_MTU",
        "SPEED",
        "INDEX",
        "GID",
        "TYPE",
        "ADDRESS",
    ]);
    for device in devices {
        let mut head = [
            device.name.clone(),
            device.netdev.clone(),
            state(device).to_owned(),
            device.netdev_mtu.to_string(),
            device.mtu().bytes().to_string(),
            speed(device.speed_mbps),
        ];
        for (index, entry) in entries(device) {
            let [name, netdev, state, mtu, active_mtu, speed] = head;
            let address = address(device, &entry).unwrap_or_else(|| "-".to_owned());
            table.row([
                name,
                netdev,
                state,
                mtu,
                active_mtu,
                speed,
                index.to_string(),
                entry.gid().to_string(),
                "RoCE v2".to_owned(),
                address,
            ]);
            head = Default::default();
        }
    }
    table.text(0)
}

fn entries(device: &DeviceInfo) -> impl Iterator<Item = (usize, GidEntry)> + '_ {
    let slots = device.gids.iter().enumerate();
    slots.filter_map(|(index, entry)| Some((index, (*entry)?)))
}

/// The IP address behind a GID; `None` for the made-up GID of an interface without addresses.
fn address(device: &DeviceInfo, entry: &GidEntry) -> Option<String> {
    let gid = entry.gid();
    let scope = if gid.is_link_local() {
        format!("%{}", device.netdev)
    } else {
        String::new()
    };
    let stand_in = !device.active && gid.0[8..] == device.guid.to_be_bytes();
    (!(stand_in && gid.is_link_local())).then(|| format!("{}{scope}", gid.ip()))
}

/// As verbs names it.
fn state(device: &DeviceInfo) -> &'static str {
    if device.active { "ACTIVE" } else { "DOWN" }
}

fn speed(mbps: u32) -> String {
    match mbps {
        n if n >= 1000 && n.is_multiple_of(1000) => format!("{} Gb/s", n / 1000),
        n if n >= 1000 => format!("{:.1} Gb/s", f64::from(n) / 1000.0),
        n => format!("{n} Mb/s"),
    }
}

/// The shape of `--json`.
#[derive(Serialize)]
struct Json<'a> {
    name: &'a str,
    netdev: &'a str,
    ifindex: u32,
    state: &'a str,
    enabled: bool,
    loopback: bool,
    guid: String,
    mac: String,
    mtu: u32,
    active_mtu: u32,
    speed_mbps: u32,
    gid_tbl_len: usize,
    gids: Vec<JsonGid>,
}

#[derive(Serialize)]
struct JsonGid {
    index: usize,
    gid: String,
    #[serde(rename = "type")]
    kind: &'static str,
    address: Option<String>,
}

fn json(devices: &[DeviceInfo]) -> Result<String, Failure> {
    let gid = |device: &DeviceInfo, (index, entry): (usize, GidEntry)| JsonGid {
        index,
        gid: entry.gid().to_string(),
        kind: "RoCE v2",
        address: address(device, &entry),
    };
    let list: Vec<Json<'_>> = devices
        .iter()
        .map(|d| Json {
            name: &d.name,
            netdev: &d.netdev,
            ifindex: d.ifindex,
            state: state(d),
            enabled: d.enabled,
            loopback: d.loopback,
            guid: format!("{:016x}", d.guid),
            mac: d.mac.map(|b| format!("{b:02x}")).join(":"),
            mtu: d.netdev_mtu,
            active_mtu: d.mtu().bytes(),
            speed_mbps: d.speed_mbps,
            gid_tbl_len: d.gids.len(),
            gids: entries(d).map(|entry| gid(d, entry)).collect(),
        })
        .collect();
    to_json(&list)
}

/// Pretty JSON with a newline at its end.
pub(crate) fn to_json<T: Serialize>(value: &T) -> Result<String, Failure> {
    serde_json::to_string_pretty(value)
        .map(|text| text + "\n")
        .map_err(|error| Failure::new(format!("writing JSON: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device() -> DeviceInfo {
        let gid = |last: u8| GidEntry {
            bytes: [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, last],
            ifindex: 2,
        };
        DeviceInfo {
            name: "rb_eth0".into(),
            ifindex: 2,
            netdev: "eth0".into(),
            guid: 0x0200_00ff_fe00_0001,
            mac: [2, 0, 0, 0, 0, 1],
            netdev_mtu: 1500,
            active_mtu: 3,
            enabled: true,
            active: true,
            speed_mbps: 2500,
            loopback: false,
            keeps_batches: false,
            gids: vec![Some(gid(1)), None, Some(gid(3)), None],
        }
    }

    #[test]
    fn each_gid_has_a_line_with_its_own_index_and_the_device_is_named_once() {
        let text = text(&[device()]);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 3, "{text}");
        let words = |line: &str| {
            line.split_whitespace()
                .map(str::to_owned)
                .collect::<Vec<_>>()
        };
        assert_eq!(
            words(lines[1]),
            [
                "rb_eth0",
                "eth0",
                "ACTIVE",
                "1500",
                "1024",
                "2.5",
                "Gb/s",
                "0",
                "::ffff:10.0.0.1",
                "RoCE",
                "v2",
                "10.0.0.1"
            ]
        );
        assert_eq!(words(lines[2])[0], "2");
        assert_eq!(lines[1].find("::ffff"), lines[2].find("::ffff"));
    }

    #[test]
    fn json_names_index_type_and_address_of_each_gid() {
        let json = json(&[device()]).unwrap();
        let value: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!(value[0]["gids"][1]["index"], 2);
        assert_eq!(value[0]["gids"][1]["address"], "10.0.0.3");
        assert_eq!(value[0]["gids"][1]["type"], "RoCE v2");
        assert_eq!(value[0]["active_mtu"], 1024);
        assert_eq!(value[0]["gid_tbl_len"], 4);
    }
}
