#!/bin/sh
# /init of the kernel peer: modules, the wire (eth0) with kernel rxe on it, the control channel (eth1), the agent.
export PATH=/usr/bin:/usr/sbin:/bin:/sbin HOME=/root
/bin/busybox mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs dev /dev
echo "interop: init"
mkdir -p /dev/pts /dev/shm
mount -t devpts devpts /dev/pts
mount -t tmpfs tmpfs /dev/shm
mount -t tmpfs tmpfs /run
mount -t tmpfs tmpfs /tmp
ulimit -l unlimited
ulimit -n 65536
ip4= ip6= mtu=1500 rxe=1
for w in $(cat /proc/cmdline); do
    case $w in
    peer.ip4=*) ip4=${w#*=} ;;
    peer.ip6=*) ip6=${w#*=} ;;
    peer.mtu=*) mtu=${w#*=} ;;
    peer.rxe=*) rxe=${w#*=} ;;
    esac
done
while read -r m; do
    [ "$m" = rdma_rxe ] && [ "$rxe" = 0 ] && continue
    insmod "/modules/$m.ko" || echo "interop: insmod $m failed"
done </modules/order
ip link set lo up
echo 0 >/proc/sys/net/ipv6/conf/eth0/accept_dad
echo 0 >/proc/sys/net/ipv6/conf/eth0/accept_ra
echo 0 >/proc/sys/net/ipv6/conf/eth0/router_solicitations
ip link set eth0 mtu "$mtu" up
ip addr add "$ip4/24" dev eth0
ip -6 addr add "$ip6/64" dev eth0 nodad
[ "$rxe" = 0 ] || rdma link add rxe0 type rxe netdev eth0 || echo "interop: rdma link add failed"
echo 1 >/proc/sys/net/ipv6/conf/eth1/disable_ipv6
ip link set eth1 up
ip addr add 10.0.2.15/24 dev eth1
echo "interop: $(uname -r), up $(cut -d' ' -f1 /proc/uptime) s"
rocebud-interop-agent serve '*' 7000 &
# init reaps orphans for ever; the machine ends when the agent does
wait $!
echo "interop: the agent ended"
sleep 1
poweroff -f
