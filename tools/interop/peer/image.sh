#!/bin/bash
# Makes the kernel peer's image: a stock Debian kernel (never installed), its RDMA modules, and an initramfs of
# this machine's own rdma-core and perftest with the runner's agent.
#   image.sh CACHE OUT AGENT INIT [EXTRA...]
# CACHE: where downloads stay. OUT: gets kernel (an ELF file, or bzImage), initrd.cpio, their sums and, last, version. AGENT: the compiled agent.
# INIT: the guest's /init. EXTRA: more programs for the guest. As root or not; needs no network once CACHE has the kernel.
set -euo pipefail
cache=$1 out=$2 agent=$3 init=$4
shift 4
export PATH="$PATH:/usr/sbin:/sbin"
die() { echo "interop: $*" >&2; exit 1; }

# --- what has to be here: program, package
want="busybox:busybox-static cpio:cpio xz:xz-utils dash:dash ldd:libc-bin dpkg:dpkg ip:iproute2 rdma:iproute2 tc:iproute2
ibv_rc_pingpong:ibverbs-utils ib_write_bw:perftest rping:rdmacm-utils tcpdump:tcpdump nft:nftables"
missing=()
for w in $want; do [ -x "$(command -v "${w%%:*}")" ] || missing+=("${w##*:}"); done
provider=$(ls /usr/lib/*/libibverbs/librxe-rdmav*.so 2>/dev/null | head -1 || true)
[ -n "$provider" ] || missing+=(ibverbs-providers)
[ ${#missing[@]} = 0 ] || die "missing for the kernel peer: apt-get install --no-install-recommends $(printf '%s\n' "${missing[@]}" | sort -u | tr '\n' ' ')"
! ldd "$(command -v busybox)" >/dev/null 2>&1 || die "busybox is not static: apt-get install busybox-static"

# --- the kernel package: what linux-image-amd64 depends on, as apt offers it; apt checks its signature chain
mkdir -p "$cache"
pkg=${ROCEBUD_INTEROP_KERNEL:-}
named() { apt-cache show --no-all-versions linux-image-amd64 2>/dev/null | sed -n 's/^Depends: \(linux-image-[^ ,]*\).*/\1/p' | head -1; }
digest() { apt-cache show --no-all-versions "$1" 2>/dev/null | sed -n 's/^SHA256: //p' | head -1; }
[ -n "$pkg" ] || pkg=$(named)
if [ -z "$pkg" ] || [ -z "$(digest "$pkg")" ]; then
    apt-get -qq update || die "apt-get update failed: the kernel package comes from there"
    [ -n "$pkg" ] || pkg=$(named)
fi
[ -n "$pkg" ] || die "apt knows no linux-image-amd64: this needs Debian's package lists (or ROCEBUD_INTEROP_KERNEL=linux-image-…)"
sum=$(digest "$pkg")
[ -n "$sum" ] || die "apt knows no package $pkg${ROCEBUD_INTEROP_KERNEL:+, which ROCEBUD_INTEROP_KERNEL names}"
deb=$cache/$sum.deb
is_right() { echo "$sum  $1" | sha256sum --status -c - 2>/dev/null; }
if ! is_right "$deb"; then
    tmp=$(mktemp -d "$cache/fetch.XXXXXX")
    trap 'rm -rf "$tmp"' EXIT
    (cd "$tmp" && apt-get -qq -o APT::Sandbox::User=root download "$pkg") ||
        die "cannot download $pkg: apt-get download $pkg must work here once, then no network is needed"
    got=$(ls "$tmp"/*.deb 2>/dev/null | head -1)
    [ -n "$got" ] && is_right "$got" || die "$pkg: what was downloaded has not the digest that apt names: apt-get update, then again"
    mv "$got" "$deb"
fi

# --- unpack; the ELF inside the bzImage boots without being decompressed by an emulated CPU
work=$(mktemp -d "$out/work.XXXXXX")
trap 'rm -rf "$work" ${tmp:+"$tmp"}' EXIT
dpkg -x "$deb" "$work/kernel"
bz=$(ls "$work"/kernel/boot/vmlinuz-*)
ver=${bz##*/vmlinuz-}
moddir=$work/kernel/lib/modules/$ver
[ -d "$moddir" ] || moddir=$work/kernel/usr/lib/modules/$ver
is_elf() { [ "$(head -c 4 "$1" 2>/dev/null | od -An -tx1 | tr -d ' \n')" = 7f454c46 ]; }
number() { od -An -t"$3" -j"$1" -N"$2" "$bz" | tr -d ' '; }
setup=$(number 497 1 u1) at=$(number 584 4 u4) len=$(number 588 4 u4)
payload() { tail -c +$(((setup + 1) * 512 + at + 1)) "$bz" | head -c $((len - 4)); }
set +o pipefail
case "$(payload | head -c 4 | od -An -tx1 | tr -d ' ')" in
fd377a58) payload | xz -dc --single-stream >"$work/vmlinux" 2>/dev/null || true ;;
28b52ffd) payload | zstd -dcq >"$work/vmlinux" 2>/dev/null || true ;;
1f8b*) payload | gzip -dc >"$work/vmlinux" 2>/dev/null || true ;;
esac
set -o pipefail
kernel=$work/vmlinux
is_elf "$kernel" || kernel=$bz

# --- modules with what they need, in load order
root=$work/root
mkdir -p "$root"/{dev,proc,sys,run,tmp,etc,root,modules,usr/bin,usr/sbin,usr/lib,usr/lib64}
# merged, as on every Debian: libraries are looked for by both names
for d in bin sbin lib lib64; do ln -s "usr/$d" "$root/$d"; done
find "$moddir/kernel" -name '*.ko*' | awk '{n=$0; sub(/.*\//,"",n); sub(/\.ko.*/,"",n); gsub(/-/,"_",n); print n, $0}' >"$work/index"
: >"$root/modules/order"
add_module() {
    local name=${1//-/_} file dep
    grep -qx "$name" "$root/modules/order" && return
    file=$(awk -v n="$name" '$1==n{print $2; exit}' "$work/index")
    [ -n "$file" ] || return 0 # built in
    case "$file" in
    *.xz) xz -dc "$file" ;;
    *.zst) zstd -dcq "$file" ;;
    *) cat "$file" ;;
    esac >"$root/modules/$name.ko"
    for dep in $(tr '\0' '\n' <"$root/modules/$name.ko" | sed -n 's/^depends=//p' | head -1 | tr ',' ' '); do add_module "$dep"; done
    echo "$name" >>"$root/modules/order"
}
for m in virtio_pci virtio_net virtio_rng crc32_generic crc32_pclmul crc32c_generic crc32c_intel libcrc32c af_packet \
    udp_tunnel ip6_udp_tunnel ib_core sch_netem sch_prio sch_ingress cls_u32 cls_matchall act_pedit act_csum nf_tables nft_compat \
    ib_umad iw_cm ib_cm rdma_cm ib_uverbs rdma_ucm rdma_rxe; do
    add_module $m
done
grep -qx rdma_rxe "$root/modules/order" || die "the kernel of $pkg has no module rdma_rxe"

# --- user space: this machine's programs and their libraries
cp "$(command -v busybox)" "$root/bin/busybox"
for a in $("$root/bin/busybox" --list); do [ -e "$root/bin/$a" ] || ln -s busybox "$root/bin/$a"; done
rm -f "$root/bin/sh"
cp -L "$(command -v dash)" "$root/bin/sh"
elfs=("$(command -v dash)" "$agent" "$provider")
for b in ibv_devices ibv_devinfo ibv_rc_pingpong ibv_uc_pingpong ibv_ud_pingpong ibv_srq_pingpong \
    ib_write_bw ib_write_lat ib_read_bw ib_read_lat ib_send_bw ib_send_lat ib_atomic_bw ib_atomic_lat \
    rping udaddy mckey ucmatose udpong cmtime rdma_server rdma_client rstream riostream rcopy \
    rdma ip ss tc nft tcpdump timeout "$@"; do
    p=$(command -v "$b" || true)
    [ -n "$p" ] || continue
    cp -L --remove-destination "$p" "$root/usr/bin/" # busybox has a link of this name
    elfs+=("$p")
done
install -m 755 "$agent" "$root/usr/bin/rocebud-interop-agent"
install -D "$provider" "$root$provider"
mkdir -p "$root/etc/libibverbs.d"
cp /etc/libibverbs.d/rxe.driver "$root/etc/libibverbs.d/"
elfs+=(/lib/*/libnss_files.so.2 /lib/*/libgcc_s.so.1)
for l in $(ldd "${elfs[@]}" 2>/dev/null | grep -o '/[^ ]*\.so[^ :]*' | sort -u) /lib/*/libnss_files.so.2 /lib/*/libgcc_s.so.1; do
    [ -e "$l" ] && [ ! -e "$root$l" ] || continue
    mkdir -p "$root$(dirname "$l")"
    cp -L "$l" "$root$l"
done
cp -L /lib64/ld-linux-x86-64.so.2 "$root/lib64/"
(cd "$root" && find usr/lib -name '*.so*' -printf '/%h\n' 2>/dev/null | sort -u) >"$root/etc/ld.so.conf"
ldconfig -r "$root" 2>/dev/null || true
echo 'root:x:0:0:root:/root:/bin/sh' >"$root/etc/passwd"
echo 'root:x:0:' >"$root/etc/group"
printf '127.0.0.1 localhost\n::1 localhost\n' >"$root/etc/hosts"
echo 'hosts: files' >"$root/etc/nsswitch.conf"
install -m 755 "$init" "$root/init"
(cd "$root" && find . -mindepth 1 | LC_ALL=C sort | cpio -o -H newc -R 0:0 --quiet) >"$work/initrd.cpio"
mv "$kernel" "$out/kernel"
mv "$work/initrd.cpio" "$out/initrd.cpio"
(cd "$out" && sha256sum kernel initrd.cpio >sums)
echo "$ver ($(dpkg-deb -W --showformat='${Package} ${Version}' "$deb"))" >"$out/version"
