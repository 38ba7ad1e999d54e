# `make demo` and `make test` do all the set-up that they need.
.PHONY: test
test:
	cargo test --workspace --quiet
