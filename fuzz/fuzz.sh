#!/bin/bash
# Runs a fuzz target, or takes what it has found into the corpus.
#
#   fuzz/fuzz.sh run TARGET SECONDS     builds it (in release, with its assertions on) and runs it so long
#   fuzz/fuzz.sh keep TARGET            adds to fuzz/corpus/TARGET what reaches something new
#
# What a run finds interesting goes to fuzz/target/found/TARGET, what breaks a promise to
# fuzz/artifacts/TARGET. Needs cargo-fuzz (cargo install cargo-fuzz) and a C++ compiler, no nightly.
set -eu
cd "$(dirname "$0")/.."
what=$1 target=$2 seconds=${3:-60}
corpus=fuzz/corpus/$target found=fuzz/target/found/$target artifacts=fuzz/artifacts/$target
command -v cargo-fuzz >/dev/null || { echo "cargo-fuzz is missing: cargo install cargo-fuzz" >&2; exit 1; }
case $target in # inputs longer than this are slow and say no more
    frame_*) longest=4500 ;;
    *) longest=2048 ;;
esac
# Sanitizers are for unsafe code, which the boundary to C has. Comparisons are worth tracing where bytes are parsed; in long programs they only
# cost time. The compiler flags that libFuzzer needs are not stable yet.
flags=(--sanitizer none)
limit=2048 place=()
case $target in
    engine_ops) flags+=(--no-trace-compares) ;;
    verbs_args) # programs of one process over loopback, with a daemon of their own; the guard of memory has SIGSEGV
        flags=(--sanitizer address) limit=4096
        export ROCEBUD_REAL=off ROCEBUD_LOG=off ROCEBUD_DAEMON=$PWD/build/bin/rocebud
        export ASAN_OPTIONS=handle_segv=0:handle_sigbus=0:detect_leaks=0
        [ -x "$ROCEBUD_DAEMON" ] || { echo "run \`make build\` first" >&2; exit 1; }
        root=()
        [ "$(id -u)" = 0 ] || root=(-r)
        place=(unshare "${root[@]}" -n sh -c 'ip link set lo up; exec "$@"' sh)
        ;;
esac
RUSTC_BOOTSTRAP=1 cargo fuzz build "${flags[@]}" "$target"
binary=fuzz/target/x86_64-unknown-linux-gnu/release/$target
mkdir -p "$corpus" "$found" "$artifacts"
case $what in
    run)
        exec "${place[@]}" "$binary" -max_total_time="$seconds" -max_len="$longest" -timeout=20 -rss_limit_mb="$limit" \
            -print_final_stats=1 -artifact_prefix="$artifacts/" "$found" "$corpus"
        ;;
    keep)
        exec "${place[@]}" "$binary" -merge=1 -max_len="$longest" -timeout=20 "$corpus" "$found"
        ;;
    *)
        sed -n '2,9p' "$0" >&2
        exit 2
        ;;
esac
