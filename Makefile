# Everything a person or CI runs. `make help` lists it.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
SOURCES := src tests soaks sims scripts examples benchmarks

.PHONY: help
help: ## Show this list
	@grep -hE '^[a-zA-Z_/%-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 26

.PHONY: setup
setup: $(READY) ## Install all that is needed: Debian packages where they are missing, a venv, Python packages
$(READY): pyproject.toml constraints.txt scripts/setup.sh
	@bash scripts/setup.sh "$(VENV)"
	@touch $@

WITHOUT_SITE := The dashboard is not built here, and the demo runs without it. To get it: install Node 20.9 or newer with npm and run make web.

.PHONY: demo
demo: setup ## A whole grid on this machine: hub, five synthetic nodes, jobs to look at (ARGS=--once: run and end)
	@command -v npm >/dev/null && $(MAKE) -s web || echo "$(WITHOUT_SITE)"
	@$(BIN)/computepool demo $(ARGS)

.PHONY: dev
dev: setup ## A demo hub alone, on port 8000
	@$(BIN)/computepool hub --demo

.PHONY: fmt
fmt: setup ## Format and fix what can be fixed by machine
	@$(BIN)/ruff format -q $(SOURCES)
	@$(BIN)/ruff check -q --fix $(SOURCES)

.PHONY: lint
lint: setup ## ruff and the walls between the rooms
	@$(BIN)/ruff check -q $(SOURCES)
	@$(BIN)/ruff format -q --check $(SOURCES)
	@$(BIN)/lint-imports

.PHONY: types
types: setup ## mypy, strict
	@$(BIN)/mypy

.PHONY: generate
generate: setup ## Write every generated file anew
	@$(BIN)/python scripts/build_seccomp.py
	@$(BIN)/python scripts/build_protos.py
	@$(BIN)/python scripts/generate.py
	@$(BIN)/python scripts/money_example.py

.PHONY: verify
verify: setup ## Fail when a generated file has drifted from its source
	@$(BIN)/python scripts/build_seccomp.py --check
	@$(BIN)/python scripts/build_protos.py --check
	@$(BIN)/python scripts/generate.py --check
	@$(BIN)/python scripts/money_example.py --check

.PHONY: check
check: lint types verify ## All that needs no running parts

SITE := src/computepool/hub/site/site.json
WEB_SOURCES := $(shell find web -type f -not -path '*/node_modules/*' -not -path 'web/out/*' -not -path '*/.next/*' -not -path '*/.models/*' -not -name 'next-env.d.ts' -not -name 'schema.d.ts' -not -name '*.tsbuildinfo' 2>/dev/null)

web/node_modules/.ready: web/package.json web/package-lock.json
	@node -e 'const [a, b] = process.versions.node.split("."); process.exit(a > 20 || (a == 20 && b >= 9) ? 0 : 1)' || { echo "make web: Node 20.9 or newer is needed, this is $$(node --version 2>/dev/null || echo none)" >&2; exit 1; }
	@echo "web: installing packages"
	@cd web && npm ci --no-audit --no-fund --loglevel=error >/dev/null
	@touch $@

.PHONY: web
web: $(SITE) ## Build the dashboard into the place that the hub serves it from; nothing to do if nothing changed
$(SITE): $(READY) web/node_modules/.ready docs/reference/openapi.json scripts/pack_site.py $(WEB_SOURCES)
	@echo "web: building the dashboard"
	@cd web && npm run --silent generate >/dev/null && NEXT_TELEMETRY_DISABLED=1 npm run --silent build >build.log 2>&1 || { cat build.log >&2; exit 1; }
	@$(BIN)/python scripts/pack_site.py web/out
	@touch $@

.PHONY: wheel
wheel: setup web ## The package with the dashboard inside, for machines without Node: dist/computepool-*.whl
	@$(BIN)/python scripts/build_wheel.py

.PHONY: web/check
web/check: web/node_modules/.ready ## Types, style and pure models of the dashboard
	@cd web && npm run --silent generate >/dev/null && npm run --silent types && npm run --silent lint && npm run --silent test >models.log || { cat models.log >&2; exit 1; }

# One after the other: both write the types of the API.
.PHONY: web/whole
web/whole: web
	@$(MAKE) -s web/check

.PHONY: screenshots
screenshots: setup web ## Pictures of all pages, light, dark and on a phone, in build/screenshots
	@PYTHONPATH=. $(BIN)/python scripts/screenshots.py $(ARGS)

# Most tests wait more than they compute, so that three at a time keep two cores busy. Stories come first: a file goes
# to one process, and at the end only short ones are left to share. A sandbox's contract goes to one process too. What
# needs the machine for itself has the mark `alone`: the browser, tensors, crowds, and whatever is measured.
SIDE_BY_SIDE := -n 3 --dist loadfile --no-loadscope-reorder
BY_SANDBOX := -n 2 --dist loadgroup
.PHONY: test
test: setup ## What CI runs: check, then every test, fast ones first
	@$(MAKE) -s -j2 --output-sync=target check web/whole
	@$(BIN)/pytest $(SIDE_BY_SIDE) tests/unit tests/property
	@$(BIN)/pytest $(SIDE_BY_SIDE) -m "not alone" tests/acceptance tests/integration tests/migration
	@$(BIN)/pytest $(BY_SANDBOX) tests/contract
	@$(BIN)/pytest -m alone tests/acceptance tests/web

.PHONY: test/unit
test/unit: setup ## Rules only, no I/O
	@$(BIN)/pytest $(SIDE_BY_SIDE) tests/unit tests/property

.PHONY: test/integration
test/integration: setup ## Store and embedded database
	@$(BIN)/pytest $(SIDE_BY_SIDE) tests/migration tests/integration

.PHONY: test/contract
test/contract: setup ## The sandbox suite and its escape probes (ARGS=--every-backend: all of it on every engine)
	@$(BIN)/pytest $(BY_SANDBOX) tests/contract $(ARGS)

.PHONY: test/acceptance
test/acceptance: setup ## Stories told with real processes
	@$(BIN)/pytest $(SIDE_BY_SIDE) -m "not alone" tests/acceptance
	@$(BIN)/pytest -m alone tests/acceptance

.PHONY: test/web
test/web: setup web ## The dashboard in a real browser, against a real hub with the demo's fleet
	@$(BIN)/pytest tests/web $(ARGS)

.PHONY: test/pgbouncer
test/pgbouncer: setup ## Every test that uses a database, through PgBouncer in transaction mode
	@TEST_POOLER=pgbouncer $(BIN)/pytest $(SIDE_BY_SIDE) -m "not alone" tests/acceptance tests/integration tests/migration $(ARGS)
	@TEST_POOLER=pgbouncer $(BIN)/pytest -m alone tests/acceptance $(ARGS)

BENCHMARKS := lifecycle latency match depth fleet hubs ledger networks sse sandbox agent web
.PHONY: $(BENCHMARKS:%=bench/%) bench/all bench/page
bench/match: setup ## Choosing the best of 500 to 100,000 slots, against a plain loop
	@$(BIN)/python -m benchmarks.match $(ARGS)
bench/lifecycle: setup ## Whole lifecycles per second, against other queues on the same machine
	@$(BIN)/python -m benchmarks.lifecycle $(ARGS)
bench/latency: setup ## From submit to a waiting node, against other durable queues
	@$(BIN)/python -m benchmarks.latency $(ARGS)
bench/depth: setup ## What a long queue, unplaceable work and a long history cost
	@$(BIN)/python -m benchmarks.depth $(ARGS)
bench/fleet: setup ## 10,000 parked nodes on one hub: memory, rest, wake, beats, shutdown
	@$(BIN)/python -m benchmarks.fleet $(ARGS)
bench/hubs: setup ## Two hubs against one, and what three lose against one global view
	@$(BIN)/python -m benchmarks.hubs $(ARGS)
bench/ledger: setup ## Lifecycles with money on and off
	@$(BIN)/python -m benchmarks.ledger $(ARGS)
bench/networks: setup ## Networks over processes: equal bits through kills, speed of a cut, recovery
	@$(BIN)/python -m benchmarks.networks $(ARGS)
bench/sse: setup ## Live views: dispatch with 1,000 viewers against none, and how soon a change is on a page
	@$(BIN)/python -m benchmarks.sse $(ARGS)
bench/sandbox: setup ## Starting Python behind each sandbox, and every known way out tried in each (root)
	@$(BIN)/python -m benchmarks.sandbox $(ARGS)
bench/agent: setup ## What an idle agent takes, and how soon the machine is its owner's again, 50 times (root)
	@$(BIN)/python -m benchmarks.agent $(ARGS)
bench/web: setup web ## The dashboard: weight of the first page, frames a second with 10,000 nodes, how soon news are on the map, what axe finds
	@$(BIN)/python -m benchmarks.web $(ARGS)
bench/all: setup ## All of them one after the other (40 minutes), then the page docs/reference/performance.md
	@for name in $(BENCHMARKS); do $(BIN)/python -m benchmarks.$$name --out benchmarks/results/$$name.json $(ARGS); done
	@$(BIN)/python -m benchmarks.page
bench/page: setup ## docs/reference/performance.md and its plots, from the stored results
	@$(BIN)/python -m benchmarks.page

.PHONY: soak/spine
soak/spine: setup ## 20 kills of hubs and 5 of the database during 2,000 slices
	@$(BIN)/python -m soaks.spine $(ARGS)

.PHONY: soak/ledger
soak/ledger: setup ## The books under 200 clients on shared accounts, with hubs killed with -9
	@$(BIN)/python -m soaks.ledger $(ARGS)

.PHONY: soak/hubs
soak/hubs: setup ## Three hubs and 200 accounts for a minute (ARGS="--kill-every 3": one is killed every few seconds)
	@$(BIN)/python -m soaks.hubs $(ARGS)

.PHONY: soak/nat
soak/nat: setup ## Nodes behind NAT: cables out for 20 s and for 5 minutes, addresses changed mid-job (root; 12 minutes)
	@$(BIN)/python -m soaks.nat $(ARGS)

.PHONY: soak/networks
soak/networks: setup ## A network trains through five kills of agents and one of gRPC; then twenty PNodes, all replaced
	@$(BIN)/python -m soaks.networks $(ARGS)

.PHONY: soak/checkpoints
soak/checkpoints: setup ## A training run through 20 kills of its machines, and 50 owners who come back (root)
	@$(BIN)/python -m soaks.checkpoints $(ARGS)

.PHONY: sim/market
sim/market: setup ## Six stories of an economy under stress, on the real market and ledger code; draws docs/images/market-*
	@$(BIN)/python -m sims.market $(ARGS)

.PHONY: sim/hostile
sim/hostile: setup ## A fleet of which some forge results, on the real trust rules and ledger; draws docs/images/trust-*
	@$(BIN)/python -m sims.hostile $(ARGS)

.PHONY: sim/histories
sim/histories: setup ## 100,000 made-up histories of the ledger in memory, 2,000 on PostgreSQL beside it, and every planted bug
	@$(BIN)/python -m sims.ledger_histories $(ARGS)

.PHONY: agent.pyz
agent.pyz: setup ## The agent as one file: dist/agent.pyz
	@$(BIN)/python scripts/build_agent_pyz.py

.PHONY: lock
lock: setup ## Pin what is installed now
	@$(BIN)/pip freeze --exclude-editable | sed 's/+cpu$$//' > constraints.txt
