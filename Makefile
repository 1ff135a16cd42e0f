# The chores of the project, one way to do each. `make help` lists them.
# All that a fresh machine needs is Python 3.11, make and access to package registries; the rest is fetched.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

VENV := .venv
PY := $(VENV)/bin/python
UV := $(VENV)/bin/uv
UV_VERSION := 0.13.8
RUN := PYTHONPATH=include $(PY)
COMPILE := $(UV) pip compile pyproject.toml --python-version 3.11 --no-annotate --no-header --no-emit-index-url --quiet
TESTS ?=
# Tests of what is done with a table beside its ingestion.
OPERATIONS := $(patsubst %,tests/spark/%,backfill/test_backfill.py backfill/test_races.py ingest/test_kills.py maintain operate)
# Those of other catalogs, and one more, go beside the tests without Spark.
BESIDE := $(patsubst %,tests/spark/%,iceberg/test_catalogs.py ingest/test_property.py)

.PHONY: rooms check help setup setup-dev jars demo up down status test lint style types format bench soak requirements clean

help: ## this list
	@echo "Sluice: Kafka topics into Apache Iceberg tables, exactly once, run by Airflow"; echo
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)$$/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 22
	@echo; echo "  SLUICE_HOME (default .sluice) holds a stack's state; SLUICE_CONTRACTS names another folder of contracts."

setup: $(VENV)/.runtime ## make .venv with the pinned packages (once; later calls do nothing)

setup-dev: $(VENV)/.dev ## the same, with the tools that make test and make lint use

jars: $(VENV)/.runtime ## fetch and verify the pinned jars into the cache (~/.cache/sluice, or SLUICE_CACHE)
	@$(RUN) -m sluice.embedded jars

demo: setup jars ## the main job on 340,000 real records, start to end, checked; stops what it started
	@$(RUN) -m sluice demo

up: setup jars ## start broker, catalog, warehouse, schema registry (REGISTRY=no: not that) and Airflow, and leave them running
	@$(RUN) -m sluice.embedded up $(if $(filter no,$(REGISTRY)),--no-registry)

down: setup ## stop exactly what make up started; the data stays
	@$(RUN) -m sluice.embedded down

status: setup ## what of the stack runs, where, and what does not
	@$(RUN) -m sluice.embedded status || [ $$? -eq 3 ] # a stopped stack is an answer, not an error

test: setup-dev jars style ## lint, types and every test; TESTS=tests/unit narrows it
ifeq ($(TESTS),)
	@# Side by side, in three parts that take about as long: each often waits, for Airflow, for a driver or for a commit.
	@beside=$$(mktemp -d); echo "types, tests/unit, tests/system, $(BESIDE) and $(OPERATIONS) run beside, into $$beside, shown at the end"; \
	{ $(VENV)/bin/mypy && $(RUN) -m pytest tests/unit tests/system $(BESIDE); } >"$$beside/1" 2>&1 & first=$$!; \
	$(RUN) -m pytest $(OPERATIONS) >"$$beside/2" 2>&1 & second=$$!; \
	code=0; $(RUN) -m pytest tests/spark $(BESIDE:%=--ignore=%) $(OPERATIONS:%=--ignore=%) || code=$$?; \
	wait $$first || code=$$?; wait $$second || code=$$?; \
	cat "$$beside/1" "$$beside/2"; rm -r "$$beside"; exit $$code
else
	@$(VENV)/bin/mypy
	@$(RUN) -m pytest $(TESTS)
endif

check: style types ## lint, types and the tests without services, in under three minutes: for the inner loop
	@$(RUN) -m pytest -n logical tests/unit

lint: style types ## ruff (rules and format), the layout of the package, and mypy

style: setup-dev
	@$(VENV)/bin/ruff check .
	@$(VENV)/bin/ruff format --check .
	@$(PY) .ci/layout.py
	@PYTHONPATH=include $(VENV)/bin/lint-imports

types: setup-dev
	@$(VENV)/bin/mypy

rooms: setup-dev ## draw the map of the package in docs/design.md anew
	@PYTHONPATH=include $(PY) .ci/rooms.py

format: setup-dev ## let ruff fix and format the sources
	@$(VENV)/bin/ruff check --fix .
	@$(VENV)/bin/ruff format .

bench: setup jars ## the measurements, side by side, as ratios
	@$(RUN) -m bench

soak: setup-dev jars ## an hour's worth of batches beside all of maintenance, in Spark, then through Airflow; not part of make test
	@$(RUN) -m pytest -m soak tests/spark/ingest/test_soak.py tests/system/airflow/test_soak.py

requirements: $(UV) ## write requirements*.txt anew from pyproject.toml; UPGRADE=--upgrade moves the pins
	@$(COMPILE) $(UPGRADE) -o requirements.txt
	@$(COMPILE) $(UPGRADE) --group dev -c requirements.txt -o requirements-dev.txt
	@echo "requirements.txt and requirements-dev.txt are up to date with pyproject.toml"

clean: ## remove what can be made again: .venv and tool caches (not SLUICE_HOME, not the jar cache)
	@rm -rf $(VENV) .ruff_cache .mypy_cache .pytest_cache .hypothesis
	@find . -name __pycache__ -type d -not -path './.git/*' -prune -exec rm -rf {} +

$(UV):
	@py=""; for candidate in "$(PYTHON)" python3.11 python3 python; do \
	  if [ -n "$$candidate" ] && "$$candidate" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null; \
	  then py="$$candidate"; break; fi; done; \
	if [ -z "$$py" ]; then \
	  echo "make: no Python 3.11 found as python3.11, python3 or python." >&2; \
	  echo "      Install it, or name it: make $(MAKECMDGOALS) PYTHON=/path/to/python3.11" >&2; exit 1; fi; \
	echo "creating $(VENV) with $$py"; \
	"$$py" -m venv $(VENV); \
	PIP_USER=0 $(PY) -I -m pip install --quiet --disable-pip-version-check uv==$(UV_VERSION)

$(VENV)/.runtime: requirements.txt | $(UV)
	@echo "installing the pinned packages (some 160; a few minutes the first time)"
	@# Compiled at once, as pip does it: where Python may not write bytecode (containers), each process would compile anew.
	@$(UV) pip install --compile-bytecode --python $(PY) -r requirements.txt
	@touch $@

$(VENV)/.dev: requirements-dev.txt $(VENV)/.runtime
	@echo "installing the development tools"
	@$(UV) pip install --compile-bytecode --python $(PY) -r requirements-dev.txt
	@touch $@
