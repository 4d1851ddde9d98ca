# Everything that a checkout needs; `make` alone lists the targets.
PYTHON ?= $(shell command -v python3.11 || command -v python3 || echo python3)
BIN := .venv/bin
UV := .headwater-cache/tools/bin/uv
COMPILE := $(UV) pip compile --quiet --python-version 3.11 --python-platform x86_64-manylinux_2_35 \
	--generate-hashes --no-annotate --custom-compile-command "make lock"

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-faults bench check format lock screenshots clean distclean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' Makefile

setup: ## install everything below .venv and .headwater-cache (cached)
	@$(PYTHON) infra/local/bootstrap.py

demo: setup ## the whole platform on real data, with a report (ARGS=--keep leaves it running)
	@$(BIN)/headwater demo $(ARGS)

test: setup ## all tests, on a real local stack (ARGS=path or options of pytest)
	@$(BIN)/python -m pytest $(ARGS)

test-faults: setup ## the long form of the fault tests: crashes, outages, rebalances, floods, delays (an hour)
	@$(BIN)/python -m pytest -m "long or not long" tests/faults tests/integration/test_monitor.py $(ARGS)

bench: setup ## every speed and memory claim beside its competitors, into build/bench (45 minutes)
	@$(BIN)/python -m tests.benchmarks $(ARGS)

check: setup ## lint, format and types
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

format: setup ## fix what the linter and the formatter can fix
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

lock: setup ## resolve the dependencies of pyproject.toml and requirements/*.in anew
	@$(COMPILE) requirements/uv.in -o requirements/uv.lock
	@$(COMPILE) pyproject.toml --extra local -o requirements/main.lock
	@$(COMPILE) pyproject.toml --extra local --extra dev -c requirements/main.lock \
		-o requirements/dev.lock
	@$(COMPILE) requirements/triton.in -o requirements/triton.lock
	@$(COMPILE) --no-deps requirements/movielens.in -o requirements/movielens.lock
	@for name in bytewax feast pathway quixstreams; do \
		$(COMPILE) requirements/bench-$$name.in -o requirements/bench-$$name.lock; done
	@$(BIN)/python -m infra.local.lock_jars

screenshots: setup ## pictures of the monitor's page for the README (needs chromium)
	@$(BIN)/python -m tests.e2e.screenshots

clean: ## stop the local stack, delete its data and all build output
	@if [ -x $(BIN)/headwater ]; then $(BIN)/headwater down; fi
	@rm -rf .headwater build .mypy_cache .ruff_cache .pytest_cache .hypothesis
	@find . -name __pycache__ -type d -not -path './.venv/*' -not -path './.headwater-cache/*' \
		-prune -exec rm -rf {} +

distclean: clean ## also delete what `make setup` installed
	@rm -rf .venv .headwater-cache *.egg-info
