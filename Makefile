# Everything a newcomer or a machine runs. `make` alone prints this list.
# Needs Rust, a C compiler, Python 3 and Node; the rest comes from the package registries.
CARGO  ?= cargo
PYTHON ?= python3
# Seeds of the simulator: `make sim SEEDS=1000`.
SEEDS  ?= 200

.DEFAULT_GOAL := help
.PHONY: help build run demo test check smoke sim bench lint clients

help: ## this list
	@awk -F':.*## ' '/^[a-z-]+:.*## / { printf "  make %-9s %s\n", $$1, $$2 }' Makefile

build: ## the release binary, target/release/freeway
	$(CARGO) build --locked --release

run: build ## start the gateway; reads .env and freeway.config.json here
	exec target/release/freeway serve

demo: ## see it work without any key: a chat, a stream, a failover
	@$(CARGO) build --locked --quiet
	@$(PYTHON) tests/scripts/demo.py target/debug/freeway

test: check clients smoke demo ## all that CI runs: formatting, lints, tests, real clients, every route, the demo

check: lint ## formatting, lints as errors, unit, simulator and end-to-end tests
	$(CARGO) test --locked --workspace

lint: ## formatting and lints alone
	$(CARGO) fmt --all --check
	$(CARGO) clippy --locked --workspace --all-targets -- -D warnings

clients: ## the official openai packages for Python and Node against the gateway
	$(CARGO) build --locked --workspace
	$(PYTHON) tests/clients/run.py

smoke: ## every route once, against mock upstreams
	@$(CARGO) build --locked --quiet --workspace
	@$(PYTHON) tests/scripts/smoke.py target/debug

sim: ## routing and quota over three virtual days, SEEDS seeds
	FREEWAY_SIM_SEEDS=$(SEEDS) FREEWAY_SIM_DAYS=3 $(CARGO) test --locked --test main sim -- --nocapture

bench: ## the budget table, beside a direct call and nginx; BENCH_SECONDS=2 for a quick look
	$(PYTHON) tests/bench/run.py
