#!/usr/bin/env python3
"""pyverbs, unmodified: what its device queries want, two queue pairs in one process, data both ways.

    rocebud run -- pyverbs_smoke.py DEVICE GID_INDEX
"""
import sys
import time

import pyverbs.device as d
import pyverbs.enums as e
from pyverbs.addr import AHAttr, GlobalRoute
from pyverbs.cq import CQ
from pyverbs.mr import MR
from pyverbs.pd import PD
from pyverbs.pyverbs_error import PyverbsError, PyverbsRDMAError
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.wr import SGE, RecvWR, SendWR

ACCESS = (e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_WRITE | e.IBV_ACCESS_REMOTE_READ
          | e.IBV_ACCESS_REMOTE_ATOMIC)


def completion(cq, status=e.IBV_WC_SUCCESS):
    """The next completion, which must have this status."""
    end = time.monotonic() + 5
    while time.monotonic() < end:
        n, wcs = cq.poll(1)
        if n:
            assert wcs[0].status == status, f"status {wcs[0].status}, expected {status}"
            return wcs[0]
    raise AssertionError("no completion in 5 s")


def refused(code, call):
    """`call` must raise with this errno."""
    try:
        call()
    except PyverbsRDMAError as error:
        assert error.error_code == code, f"errno {error.error_code}, expected {code}"
        return
    except PyverbsError:
        return
    raise AssertionError("a bad argument was accepted")


class Side:
    """A queue pair, its completions and its memory."""

    def __init__(self, ctx, pd):
        self.cq = CQ(ctx, 64)
        self.mr = MR(pd, 8192, ACCESS)
        cap = QPCap(max_send_wr=16, max_recv_wr=16, max_send_sge=4, max_recv_sge=4, max_inline_data=64)
        self.qp = QP(pd, QPInitAttr(qp_type=e.IBV_QPT_RC, scq=self.cq, rcq=self.cq, cap=cap, sq_sig_all=1))

    def connect(self, other, gid, index, psn):
        """Up to RTS."""
        attr = QPAttr(port_num=1)
        attr.qp_access_flags = ACCESS
        self.qp.to_init(attr)
        attr.ah_attr = AHAttr(gr=GlobalRoute(dgid=gid, sgid_index=index), is_global=1, port_num=1)
        attr.path_mtu = e.IBV_MTU_1024
        attr.dest_qp_num = other.qp.qp_num
        attr.rq_psn = attr.sq_psn = psn
        attr.max_dest_rd_atomic = attr.max_rd_atomic = 4
        attr.min_rnr_timer, attr.timeout, attr.retry_cnt, attr.rnr_retry = 8, 14, 7, 7
        self.qp.to_rts(attr)


def move(a, b):
    """SEND, WRITE, READ, FETCH_ADD; inline with three sizes."""
    a.mr.write("x" * 3000, 3000)
    b.qp.post_recv(RecvWR(sg=[SGE(b.mr.buf, 4096, b.mr.lkey)], num_sge=1))
    a.qp.post_send(SendWR(opcode=e.IBV_WR_SEND, num_sge=1, sg=[SGE(a.mr.buf, 3000, a.mr.lkey)]))
    completion(a.cq)
    assert completion(b.cq).byte_len == 3000
    assert b.mr.read(3000, 0) == b"x" * 3000
    a.mr.write("y" * 2000, 2000)
    write = SendWR(opcode=e.IBV_WR_RDMA_WRITE, num_sge=1, sg=[SGE(a.mr.buf, 2000, a.mr.lkey)])
    write.set_wr_rdma(b.mr.rkey, b.mr.buf)
    a.qp.post_send(write)
    completion(a.cq)
    assert b.mr.read(3000, 0) == b"y" * 2000 + b"x" * 1000
    read = SendWR(opcode=e.IBV_WR_RDMA_READ, num_sge=1, sg=[SGE(a.mr.buf + 4096, 3000, a.mr.lkey)])
    read.set_wr_rdma(b.mr.rkey, b.mr.buf)
    a.qp.post_send(read)
    completion(a.cq)
    assert a.mr.read(3000, 4096) == b"y" * 2000 + b"x" * 1000
    b.mr.write("\0" * 8, 8)
    for i in range(3):
        add = SendWR(opcode=e.IBV_WR_ATOMIC_FETCH_AND_ADD, num_sge=1, sg=[SGE(a.mr.buf, 8, a.mr.lkey)])
        add.set_wr_atomic(b.mr.rkey, b.mr.buf, 5)
        a.qp.post_send(add)
        completion(a.cq)
        assert int.from_bytes(a.mr.read(8, 0), sys.byteorder) == 5 * i


def main():
    name, index = sys.argv[1], int(sys.argv[2])
    assert name in [dev.name.decode() for dev in d.get_device_list()], "not listed"
    ctx = d.Context(name=name)
    attr, port = ctx.query_device(), ctx.query_port(1)
    assert attr.node_guid != "0000:0000:0000:0000" and attr.max_mr_size > 4096 and attr.max_pkeys > 0
    assert port.state == e.IBV_PORT_ACTIVE and port.link_layer == e.IBV_LINK_LAYER_ETHERNET
    assert port.max_msg_sz > 4096 and port.gid_tbl_len > index
    gid = ctx.query_gid(1, index)
    pd = PD(ctx)
    refused(22, lambda: MR(pd, 4096, e.IBV_ACCESS_REMOTE_WRITE))
    refused(22, lambda: CQ(ctx, attr.max_cqe + 1))
    refused(22, lambda: ctx.query_port(7))
    a, b = Side(ctx, pd), Side(ctx, pd)
    for psn in (0xFFFFFE, 0):
        a.connect(b, gid, index, psn)
        b.connect(a, gid, index, psn)
        move(a, b)
        for side in (a, b):
            side.qp.modify(QPAttr(qp_state=e.IBV_QPS_RESET), e.IBV_QP_STATE)
    for side in (a, b):
        side.qp.close()
        side.mr.close()
        side.cq.close()
    pd.close()
    ctx.close()
    print("pyverbs ok")


if __name__ == "__main__":
    main()
