# Each target does all of its own setting up and may be called again at any time: what is up to date is not done again.
SHELL := /bin/sh
.SHELLFLAGS := -eu -c
.DELETE_ON_ERROR:
MAKEFLAGS += --no-print-directory
.DEFAULT_GOAL := help

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMPS := $(VENV)/.stamps
PYTEST_ARGS ?=
DEMO_OUT ?= demo-out
CLUSTER_ARGS ?=
CLUSTER_PARTS :=

export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: help setup system daemon demo demo-kubernetes test test-full test-rust test-python lint bench bench-cluster lock clean
.PHONY: cluster-parts cluster-up cluster-down cluster-status

help: ## this list
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "  make %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: system $(STAMPS)/install daemon ## everything a fresh machine needs: system packages, .venv, the daemon

system:
	@PYTHON="$(PYTHON)" scripts/system-packages.sh

# Built from the lock alone: no package comes in that is not pinned by hash.
$(STAMPS)/packages: requirements/dev.lock | system
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "setup: $(PYTHON) is older than 3.11; say which to use: make PYTHON=/path/to/python3.11 $(MAKECMDGOALS)" >&2; exit 1; }
	@echo "setup: packages into $(VENV)" >&2
	@$(PYTHON) -m venv --clear $(VENV)
	@$(BIN)/python -m pip install -q --require-hashes -r requirements/dev.lock
	@mkdir -p $(STAMPS) && touch $@

# Cargo knows what is up to date.
daemon: $(STAMPS)/packages
	@command -v cargo >/dev/null 2>&1 || \
	  { echo "setup: no cargo on PATH: install a stable Rust tool chain (see rust-version in daemon/Cargo.toml) and run again" >&2; exit 1; }
	@$(BIN)/python hatch_build.py

$(STAMPS)/install: $(STAMPS)/packages pyproject.toml hatch_build.py | daemon
	@$(BIN)/python -m pip install -q --no-deps --no-build-isolation --no-index -e .
	@touch $@

demo: setup ## the main job: rollouts on real tasks, and their result
	@$(BIN)/python examples/demo.py --out $(DEMO_OUT)

demo-kubernetes: setup cluster-up ## the same on a real Kubernetes on this machine (or yours: examples/demo.py --kubernetes)
	@$(BIN)/python examples/demo.py --out $(DEMO_OUT) --kubernetes

test: lint test-rust test-python ## every check, and every test but those that take minutes each

test-full: export SANDLOT_TEST_FULL := 1
test-full: CLUSTER_PARTS := --runtimes gvisor --policies
test-full: test ## all of that and the long tests, too (an hour): every way, runtime and fault of a cluster

test-rust: setup
	@cd daemon && cargo test -q --locked

# A test that its own time limit (half an hour at most) could not end stops the run, and says where every thread was.
test-python: setup cluster-parts
	@$(BIN)/python -m pytest -o faulthandler_timeout=2000 -o faulthandler_exit_on_timeout=true $(PYTEST_ARGS)

# Before the tests, so that none of them waits for the build. Where no cluster can be had, its tests say why.
cluster-parts: $(STAMPS)/packages | system
	@$(BIN)/python -m cluster build $(CLUSTER_PARTS) || echo "setup: no cluster can be had here, so its tests will not run" >&2

lint: setup ## formatting, types, layers, clippy
	@$(BIN)/ruff check -q src tests cluster requirements hatch_build.py
	@$(BIN)/ruff format -q --check src tests cluster requirements hatch_build.py
	@$(BIN)/mypy --no-error-summary
	@$(BIN)/lint-imports --no-cache >$(STAMPS)/layers.log || { cat $(STAMPS)/layers.log; exit 1; }
	@cd daemon && cargo fmt --check && cargo clippy -q --locked --all-targets -- -D warnings
	@echo "lint: clean"

# Another cluster than the one that make cluster-up starts: KUBECONFIG=... make bench-cluster
bench-cluster: setup cluster-up ## bursts, commands and pools on a cluster, each beside its floor
	@cd daemon && cargo build -q --release --locked --example fleet
	@$(BIN)/sandlot bench burst --kubernetes --fake-nodes --requests 1000
	@$(BIN)/sandlot bench burst --kubernetes --fake-nodes --requests 1000 --connect dial-out
	@$(BIN)/sandlot bench burst --kubernetes --requests 100
	@$(BIN)/sandlot bench exec --kubernetes
	@$(BIN)/sandlot bench pool --kubernetes

bench: setup ## the four measurements of this machine, each beside its floor
	@for one in noop create density reset; do $(BIN)/sandlot bench $$one; done

cluster-up: $(STAMPS)/packages ## a real Kubernetes on this machine, built when missing (options: CLUSTER_ARGS="--fake-nodes 20")
	@$(BIN)/python -m cluster up $(CLUSTER_ARGS)

cluster-down: $(STAMPS)/packages ## stop it, and remove everything of it
	@$(BIN)/python -m cluster down $(CLUSTER_ARGS)

cluster-status: $(STAMPS)/packages ## which clusters run here
	@$(BIN)/python -m cluster status $(CLUSTER_ARGS)

lock: $(STAMPS)/packages ## pin the development environment anew (make lock ARGS=-U to move versions)
	@$(BIN)/python -m pip install -q pip-tools
	@$(BIN)/python requirements/compile.py $(ARGS)

clean: ## remove what the targets made
	@rm -rf $(VENV) daemon/target src/sandlot/_bin dist build $(DEMO_OUT)
