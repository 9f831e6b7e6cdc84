# Millpond: `make demo` shows it at work, `make test` runs every test. Both do all the set-up.
CARGO_TARGET_DIR ?= $(CURDIR)/target
export CARGO_TARGET_DIR
MILLPOND := $(CARGO_TARGET_DIR)/debug/millpond

.PHONY: demo test build setup bench lint kill-test

demo: setup
	@scripts/demo

test: setup
	@scripts/test

build: setup
	cargo build --workspace --bins

lint:
	cargo fmt --all --check
	cargo clippy --workspace --all-targets

# 200 kills of the crash-and-resume job; takes some minutes.
kill-test: build
	examples/crash-and-resume/run --kills 200

bench: build
	benches/nexmark/run

setup:
	@scripts/setup
