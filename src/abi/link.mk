# Included by the Makefile: builds what programs load and run.
#
#   make build                 release
#   make build PROFILE=dev     faster to build, slower to run
#
# build/lib: libibverbs.so.1, librdmacm.so.1, their names without a number, rocebud-shim.so;
# build/bin/rocebud finds them at ../lib.
PROFILE ?= release
TARGET_DIR := $(or $(CARGO_TARGET_DIR),target)
BUILT := $(TARGET_DIR)/$(if $(filter dev,$(PROFILE)),debug,$(PROFILE))

.PHONY: build
build:
	cargo build --quiet --profile $(PROFILE) -p rocebud-abi -p rocebud-shim -p rocebud-cli \
		-p rocebud-interop
	src/abi/link.sh $(BUILT)/librocebud_abi.a build/lib
	install -D $(BUILT)/librocebud_shim.so build/lib/rocebud-shim.so
	install -D $(BUILT)/rocebud build/bin/rocebud
	install -D $(BUILT)/rocebud-interop build/bin/rocebud-interop
