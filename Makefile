# Everything a newcomer or a machine runs. `make` alone prints this list.
# Needs Rust, a C compiler, Python 3 and Node; the rest comes from the package registries.
CARGO  ?= cargo
PYTHON ?= python3
# Seeds of the simulator: `make sim SEEDS=1000`.
SEEDS  ?= 200
# Kills of the kill test: `make kill-test ROUNDS=1000`.
ROUNDS ?= 200
# How long the page is watched or inputs are tried: `make bench-page SECONDS=60`, `make fuzz SECONDS=60`.
SECONDS ?= 600
# How long the traffic of `make soak` lasts.
MINUTES ?= 60

# Where `make install` puts things. Packagers set DESTDIR; BIN installs another build.
PREFIX  ?= /usr/local
UNITDIR ?= /etc/systemd/system
BIN     ?= target/release/freeway

.DEFAULT_GOAL := help
.PHONY: help build run demo test check smoke kill-test kill-test-short sim bench lint clients test-embeddings page shots bench-page fuzz soak install uninstall

help: ## this list
	@awk -F':.*## ' '/^[a-z-]+:.*## / { printf "  make %-15s %s\n", $$1, $$2 }' Makefile

build: ## the release binary, target/release/freeway
	$(CARGO) build --locked --release

run: build ## start the gateway; reads .env and freeway.config.json here
	exec target/release/freeway serve

demo: ## see it work without any key: a chat, a stream, a failover
	@$(CARGO) build --locked --quiet
	@$(PYTHON) tests/scripts/demo.py target/debug/freeway

test: check clients page smoke demo kill-test-short ## all that CI runs: formatting, lints, tests, real clients, the page in a browser, every route, the demo, ten kills

check: lint ## formatting, lints as errors, unit, simulator and end-to-end tests
	$(CARGO) test --locked --workspace

lint: ## formatting and lints alone
	$(CARGO) fmt --all --check
	$(CARGO) clippy --locked --workspace --all-targets -- -D warnings

clients: ## the official openai packages for Python and Node against the gateway
	$(CARGO) build --locked --workspace
	$(PYTHON) tests/clients/run.py

page: ## the page in headless Chromium: live log, keys, switches, charts, keyboard, widths, accessibility
	$(CARGO) build --locked --workspace
	$(PYTHON) tests/page/run.py

shots: ## a picture of each panel, into .cache/page/shots
	$(CARGO) build --locked --workspace
	$(PYTHON) tests/page/run.py --shots

smoke: ## every route once, against mock upstreams
	@$(CARGO) build --locked --quiet --workspace
	@$(PYTHON) tests/scripts/smoke.py target/debug

kill-test: ## load, SIGKILL at a random moment, restart, ROUNDS (200) times: nothing damaged, nothing confirmed lost
	@$(CARGO) build --locked --quiet --workspace
	@$(PYTHON) tests/scripts/kill_test.py target/debug $(ROUNDS)

kill-test-short:
	@$(MAKE) --no-print-directory kill-test ROUNDS=10

test-embeddings: ## the semantic cache with a real embedding model: near misses, and how many paraphrases it serves
	$(CARGO) build --locked --workspace
	$(PYTHON) tests/embeddings/live.py

sim: ## routing and quota over three virtual days, SEEDS seeds
	FREEWAY_SIM_SEEDS=$(SEEDS) FREEWAY_SIM_DAYS=3 $(CARGO) test --locked --test main sim -- --nocapture

bench-page: ## the page's first paint, and SECONDS (600) of 20 requests a second into its log
	$(CARGO) build --locked --release --workspace
	$(PYTHON) tests/page/run.py --bench --seconds $(SECONDS)

bench: ## the budget table, beside a direct call and nginx; BENCH_SECONDS=2 for a quick look
	$(PYTHON) tests/bench/run.py

fuzz: ## coverage-guided fuzzing of what strangers send, SECONDS (600) over all targets
	$(PYTHON) tests/fuzz/run.py --seconds $(SECONDS)

soak: ## MINUTES (60) of mixed traffic, and whether memory, descriptors or threads grow
	$(CARGO) build --locked --release --workspace
	$(PYTHON) tests/scripts/soak.py target/release --minutes $(MINUTES)

install: ## put the program and its systemd unit in place (as root; after `make build`)
	@test -x $(BIN) || $(MAKE) build
	install -D -m 755 $(BIN) $(DESTDIR)$(PREFIX)/bin/freeway
	install -D -m 644 README.md $(DESTDIR)$(PREFIX)/share/doc/freeway/README.md
	install -D -m 644 LICENSE $(DESTDIR)$(PREFIX)/share/doc/freeway/LICENSE
	install -D -m 644 -t $(DESTDIR)$(PREFIX)/share/doc/freeway/docs docs/*.md
	install -D -m 644 deploy/sysusers.conf $(DESTDIR)$(PREFIX)/lib/sysusers.d/freeway.conf
	install -d $(DESTDIR)$(UNITDIR)
	sed 's|/usr/local|$(PREFIX)|g' deploy/freeway.service > $(DESTDIR)$(UNITDIR)/freeway.service
	chmod 644 $(DESTDIR)$(UNITDIR)/freeway.service
ifeq ($(DESTDIR),)
	systemd-sysusers $(PREFIX)/lib/sysusers.d/freeway.conf
	systemctl daemon-reload
	@echo "Installed. Start it, now and at every boot:  systemctl enable --now freeway"
	@echo "Its files are in /var/lib/freeway; keys go into /var/lib/freeway/.env"
endif

uninstall: ## take them away again; what is in /var/lib/freeway stays
ifeq ($(DESTDIR),)
	-systemctl disable --now freeway
endif
	rm -f $(DESTDIR)$(PREFIX)/bin/freeway $(DESTDIR)$(UNITDIR)/freeway.service
	rm -f $(DESTDIR)$(PREFIX)/lib/sysusers.d/freeway.conf
	rm -rf $(DESTDIR)$(PREFIX)/share/doc/freeway
ifeq ($(DESTDIR),)
	-systemctl daemon-reload
endif
