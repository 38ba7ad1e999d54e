# Everything here sets itself up: what is missing is installed (as root) or named.
#
#   make demo     unmodified perftest and ibv_rc_pingpong over rocebud; the first time it builds for some minutes
#   make test     every test (half an hour on two cores); as an ordinary user what needs no root, and it says
#                 what it left out
#   make conformance  rdma-core's own test-suite against our devices, each outcome compared with a list (half a
#                 minute)
#   make build    build/bin/rocebud, build/lib/libibverbs.so.1 and their kin (PROFILE=dev: faster to build)
#   make lint     format, clippy, the symbol list
#   make matrix   perftest and ping-pongs with all their options in all places (root, half an hour)
#   make bench    throughput against TCP and UCX, latency against raw UDP, over one veth pair, goals beside them (root)
#   make fuzz     TARGET=… SECONDS=…: a fuzz target (fuzz/README.md)
include src/abi/link.mk

.DEFAULT_GOAL := build
.PHONY: demo test conformance lint matrix bench fuzz

demo:
	tools/setup/packages.sh demo
	$(MAKE) --no-print-directory build
	tools/demo/demo.sh

test:
	tools/setup/packages.sh test
	$(MAKE) --no-print-directory build
	tools/setup/test.sh

conformance:
	tools/setup/packages.sh test
	$(MAKE) --no-print-directory build
	tests/abi/conformance/run.py

lint:
	cargo fmt --all --check
	cargo clippy --workspace --all-targets -- -D warnings

# EXTENT=cover: the part that `make test` runs. ONLY="ib_send_bw UD": cells with these words in their names.
# RESUME=1: without what passed already. JOBS=1: one at a time. Results: build/tests/matrix/*.jsonl
matrix:
	tools/setup/packages.sh test
	$(MAKE) --no-print-directory build
	cargo run --quiet --release -p rocebud-peer --bin matrix -- \
		$(or $(EXTENT),full) $(if $(RESUME),--resume) $(if $(JOBS),--jobs $(JOBS)) $(ONLY)

bench:
	tools/setup/packages.sh bench
	$(MAKE) --no-print-directory build
	tools/bench/bench.py

fuzz:
	fuzz/fuzz.sh run $(TARGET) $(SECONDS)
