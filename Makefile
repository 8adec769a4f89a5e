# The commands of this repository. `make up` and `make test` are all a newcomer needs.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

TOOLS := target/tools/venv/bin
GUEST_TARGET := x86_64-unknown-linux-gnu
GUEST := target/$(GUEST_TARGET)/guest/lazaret-guest
IMAGES := $(CURDIR)/target/images
PROFILE ?= release
UP_ARGS ?=

.PHONY: help up test lint build guest image bench soak unit fuzz

help: ## Shows this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-8s %s\n", $$1, $$2}'

up: ## Builds everything, starts a station on this machine and runs a first task in it
	@scripts/prepare run
	@$(MAKE) --no-print-directory guest
	@echo "==> Building lazaret ($(PROFILE)); the first time takes about ten minutes on two cores" >&2
	@cargo build --profile $(PROFILE) --bin lazaret
	@exec $(if $(filter release,$(PROFILE)),target/release,target/debug)/lazaret up $(UP_ARGS)

guest: ## Builds the static guest agent
	@echo "==> Building the guest agent" >&2
	@RUSTFLAGS="-C target-feature=+crt-static" cargo build --quiet --profile guest --target $(GUEST_TARGET) -p lazaret-guest

build: ## Builds every program and test (debug)
	@cargo build --workspace --all-targets

image: guest ## Builds the guest image that the tests boot
	@cargo build --quiet --bin lazaret
	@target/debug/lazaret image build --agent $(GUEST) --images $(IMAGES) --cache $(CURDIR)/target/image-cache

lint: ## Format, clippy, dependency policy
	@scripts/prepare test
	@cargo fmt --all --check
	@cargo fmt --manifest-path fuzz/Cargo.toml --check
	@cargo clippy --workspace --all-targets --quiet -- -D warnings
	@$(TOOLS)/cargo-deny --log-level error check bans licenses sources

test: ## Every test there is, the ones with real guests included
	@scripts/test

unit: ## Only the tests that boot no guest
	@scripts/prepare test
	@PATH="$(CURDIR)/$(TOOLS):$$PATH" cargo nextest run --workspace -E 'not binary(/^vm_/)'

fuzz: ## Looks for inputs that break a parser: every target for FUZZ_SECONDS (60 each)
	@scripts/prepare fuzz
	@scripts/fuzz

soak: ## Kills parts at random, SOAK_KILLS times (200), and looks whether all is well afterwards
	@scripts/prepare test
	@$(MAKE) --no-print-directory guest image
	@SOAK_KILLS=$${SOAK_KILLS:-200} LAZARET_TEST_IMAGES=$(IMAGES) LAZARET_BIN=$(CURDIR)/target/debug/lazaret \
		cargo test --workspace --test vm_soak -- --nocapture

bench: ## Measures; prints medians and ratios (docs/benchmarks.md keeps the figures)
	@scripts/bench
