//! GID and P_Key tables.

use core::ffi::{c_int, c_uint};

use rocebud_objects::{Errno, Misuse};
use rocebud_wire::Gid;

use super::boundary::{Arg, Outcome};
use super::context::Context;
use super::types::{ibv_gid, ibv_gid_entry};

const EMPTY: Misuse = Misuse::new(Errno::ENODATA, "this slot of the GID table is empty");
const FLAGS: Misuse = Misuse::new(Errno::EOPNOTSUPP, "GID table queries take no flags; pass 0");

c_api! {
    /// `ibv_query_gid`: an empty slot inside the table is a zero GID.
    fn ibv_query_gid(context: Context, port: u8, index: c_int, gid: Arg<[u8; 16]>)
        -> MinusOne, c_int
    {
        gid.set(context.verbs.query_gid(port, table_index(index)?)?.0)?;
        Ok(0)
    }

    /// Behind `ibv_query_gid_ex`: an empty slot is ENODATA.
    fn _ibv_query_gid_ex(
        context: Context, port: u32, index: u32, entry: Arg<ibv_gid_entry>, flags: u32,
        room: usize,
    ) -> ErrnoCode, () {
        if flags != 0 {
            return Err(FLAGS);
        }
        let found = context.verbs.query_gid_entry(port, index)?;
        if found.gid == Gid::ZERO {
            return Err(EMPTY);
        }
        entry.set_sized(&c_entry(&found), room)
    }

    /// Behind `ibv_query_gid_table`: all entries of all ports; their number, or −EINVAL when
    /// there is no room for them.
    fn _ibv_query_gid_table(
        context: Context, entries: Arg<ibv_gid_entry>, max: usize, flags: u32, room: usize,
    ) -> NegativeErrno, usize {
        if flags != 0 {
            return Err(FLAGS);
        }
        let table = context.verbs.gid_table();
        if table.len() > max || (entries.is_null() && !table.is_empty()) {
            return Err(Misuse::invalid("ibv_query_gid_table: no room for all entries"));
        }
        for (i, found) in table.iter().enumerate() {
            let at = Arg::from_raw(entries.raw().wrapping_byte_add(i * room));
            at.set_sized(&c_entry(found), room)?;
        }
        Ok(table.len())
    }

    /// `ibv_query_pkey`: network byte order.
    fn ibv_query_pkey(context: Context, port: u8, index: c_int, pkey: Arg<u16>)
        -> MinusOne, c_int
    {
        pkey.set(context.verbs.query_pkey(port, table_index(index)?)?.0.to_be())?;
        Ok(0)
    }

    /// `ibv_get_pkey_index`: where a key (network byte order) stands.
    fn ibv_get_pkey_index(context: Context, port: u8, pkey: u16) -> MinusOne, c_int {
        let length = context.verbs.query_port(port)?.pkey_tbl_len;
        for index in 0..length {
            if context.verbs.query_pkey(port, u32::from(index))?.0.to_be() == pkey {
                return Ok(c_int::from(index));
            }
        }
        Err(Misuse::invalid("ibv_get_pkey_index: the port's table does not hold this P_Key"))
    }

    /// `ibv_query_gid_type`, private to rdma-core's own tools: 1 = RoCE v2, for empty slots too.
    fn rocebud_ibv_query_gid_type(context: Context, port: u8, index: c_uint, kind: Arg<c_uint>)
        -> MinusOne, c_int
    {
        context.verbs.query_gid(port, index)?;
        kind.set(1)?;
        Ok(0)
    }
}

fn table_index(index: c_int) -> Outcome<u32> {
    u32::try_from(index).map_err(|_| Misuse::invalid("a table index is negative"))
}

fn c_entry(e: &rocebud_verbs::GidTableEntry) -> ibv_gid_entry {
    ibv_gid_entry {
        gid: ibv_gid(e.gid.0),
        gid_index: e.gid_index,
        port_num: e.port_num,
        gid_type: e.gid_type,
        ndev_ifindex: e.ndev_ifindex,
    }
}
