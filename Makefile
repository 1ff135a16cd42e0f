# The tasks of the project; `make help` lists them.
# A machine needs Python 3.11, make and access to package registries; everything else is downloaded.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

VENV := .venv
PY := $(VENV)/bin/python
UV := $(VENV)/bin/uv
UV_VERSION := 0.13.8
RUN := PYTHONPATH=include $(PY)
# Every file is verified by its hash, so that a package which was replaced in an index is refused.
INSTALL := $(UV) pip install --require-hashes --build-constraints requirements.txt --compile-bytecode --python $(PY)
COMPILE := $(UV) pip compile --generate-hashes --python-version 3.11 --no-annotate --no-header --no-emit-index-url --quiet
TESTS ?=
# A variable of the shell that is called SPARK is not meant.
ifeq ($(origin SPARK),command line)
export SLUICE_SPARK_MASTER := $(SPARK)
endif
# Tests of backfill, schema changes, maintenance, operations and catalogs: about half of the Spark tests.
OPERATIONS := $(patsubst %,tests/spark/%,backfill/test_backfill.py backfill/test_races.py evolve iceberg/test_catalogs.py ingest/test_kills.py \
  ingest/test_property.py maintain operate)
# Tests that run on a standalone cluster too: executors are other processes, which get the package and the jars.
ON_A_CLUSTER := $(patsubst %,tests/spark/%,formats/test_formats.py formats/test_decode.py ingest/test_main_path.py \
  ingest/test_expectations.py kafka/test_registry.py maintain/test_maintain.py backfill/test_backfill.py backfill/test_refusals.py \
  operate/test_accept_gap.py ingest/test_cluster.py ingest/test_driver_extra.py ingest/test_leader_killed.py ingest/test_yarn.py) \
  tests/system/embedded/test_spark_cluster.py
# Tests on each catalog, and on an S3 that loses requests.
EVERY_CATALOG := $(patsubst %,tests/spark/iceberg/%,test_catalogs.py test_bad_network.py)

.PHONY: pictures rooms type-tables cli-reference contract-reference references check help setup setup-dev jars demo up down status test test-thorough test-infra lint style types format bench soak dist docs requirements clean

help: ## show this list
	@echo "Sluice: Kafka topics into Apache Iceberg tables, exactly once, run by Airflow"; echo
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)$$/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 22
	@echo; echo "  SLUICE_HOME (default .sluice) holds a stack's state; SLUICE_CONTRACTS names another folder of contracts."

setup: $(VENV)/.runtime $(VENV)/bin/sluice ## create .venv with the pinned packages (once; later calls do nothing)

setup-dev: $(VENV)/.dev $(VENV)/bin/sluice ## the same, with the tools that make test and make lint use

jars: $(VENV)/.runtime ## fetch and verify the pinned jars into the cache (~/.cache/sluice, or SLUICE_CACHE); SET=s3,glue,msk adds AWS's
	@$(RUN) -m sluice.embedded jars $(if $(SET),--clouds $(SET))

demo: setup jars ## ingest 340,000 records through Kafka, Airflow and Spark, and check every value; stops what it started
	@$(RUN) -m sluice demo

up: setup jars ## start broker, catalog, warehouse, schema registry (not with REGISTRY=no) and Airflow; ONLY=kafka: the broker alone; SPARK=spark://host:7077: on a Spark cluster
	@$(RUN) -m sluice.embedded up $(if $(filter no,$(REGISTRY)),--no-registry) $(if $(ONLY),--only $(ONLY))

down: setup ## stop the services that make up started; the data stays
	@$(RUN) -m sluice.embedded down

status: setup ## show the stack's services, their addresses and their state
	@$(RUN) -m sluice.embedded status || [ $$? -eq 3 ] # 3: the stack is stopped, which is no error

test: setup-dev jars style ## run lint, types and all tests; TESTS=tests/unit selects some
ifeq ($(TESTS),)
	@# Three parts of about the same length at once: each often waits for Airflow, a driver or a commit.
	@beside=$$(mktemp -d); echo "types, tests/unit, tests/system and $(OPERATIONS) run in the background; their output is in $$beside, and is shown at the end"; \
	{ $(VENV)/bin/mypy && $(RUN) -m pytest tests/unit tests/system; } >"$$beside/1" 2>&1 & first=$$!; \
	$(RUN) -m pytest $(OPERATIONS) >"$$beside/2" 2>&1 & second=$$!; \
	code=0; $(RUN) -m pytest tests/spark $(OPERATIONS:%=--ignore=%) || code=$$?; \
	wait $$first || code=$$?; wait $$second || code=$$?; \
	cat "$$beside/1" "$$beside/2"; rm -r "$$beside"; exit $$code
else
	@$(VENV)/bin/mypy
	@$(RUN) -m pytest $(TESTS)
endif

test-thorough: ## the same with every case: each kill, each race in each mode; an hour and more, for a release
	@SLUICE_TEST_THOROUGH=1 $(MAKE) test

test-infra: setup-dev jars ## run the main path, every format, maintenance and backfill on a Spark cluster that loses executors, on every catalog, and with Kerberos; 25 minutes
	@SLUICE_TEST_CLUSTER=1 $(RUN) -m pytest -m "not soak" $(ON_A_CLUSTER)
	@$(RUN) -m pytest -m infra $(EVERY_CATALOG) tests/unit/test_helm_values.py tests/spark/operate/test_adopt_connect.py tests/spark/operate/test_adopt_flink.py tests/system/cli/test_rehearse.py
	@# With a client that has Kerberos; where it can't be built, Spark's side alone is tested.
	@client=$$(PYTHONPATH=include:. $(PY) -m tests.support.gssapi_client || true); \
	SLUICE_TEST_CLUSTER=1 PYTHONPATH=$$client:include $(PY) -m pytest -m infra tests/spark/kafka/test_kerberos.py

check: style types ## run lint, types and the tests without services, in under three minutes
	@$(RUN) -m pytest -n logical tests/unit

lint: style types ## run ruff (rules and format), the checks of layout, imports and texts, and mypy

style: setup-dev
	@$(VENV)/bin/ruff check .
	@$(VENV)/bin/ruff format --check .
	@$(PY) .ci/layout.py
	@$(PY) .ci/prose.py
	@PYTHONPATH=include $(VENV)/bin/lint-imports

types: setup-dev
	@$(VENV)/bin/mypy

rooms: setup-dev ## update the map of the package in docs/design.md and docs/dev/modules.md
	@PYTHONPATH=include $(PY) .ci/rooms.py

type-tables: setup-dev ## update the tables of types in docs/reference/types.md
	@$(PY) .ci/type_tables.py

docs: setup-dev ## build the documentation as a site in .site
	@NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --strict --quiet && echo "open .site/index.html"

pictures: setup-dev jars ## renew docs/pictures from a stack that gets a day of batches in 15 minutes; needs cc and Chromium
	@PYTHONPATH=include:. $(PY) .ci/pictures.py

cli-reference: setup-dev ## update docs/reference/cli.md
	@$(PY) .ci/cli_reference.py

references: setup-dev ## update the generated pages of docs/reference: errors, environment, tables, api, metrics
	@$(PY) .ci/references.py

contract-reference: setup-dev ## update the JSON Schemas for editors, docs/reference/contract.md and groups.md
	@PYTHONPATH=include $(PY) .ci/json_schemas.py
	@PYTHONPATH=include $(PY) .ci/contract_reference.py

format: setup-dev ## fix and format the sources with ruff
	@$(VENV)/bin/ruff check --fix .
	@$(VENV)/bin/ruff format .

bench: setup jars ## run the benchmarks and print ratios
	@$(RUN) -m bench

soak: setup-dev jars ## run an hour's batches beside all maintenance, in Spark, then through Airflow; not part of make test
	@$(RUN) -m pytest -m soak tests/spark/ingest/test_soak.py tests/system/airflow/test_soak.py

dist: setup ## build the wheel into dist/
	@# By the pinned setuptools; setuptools would put what an earlier build left in build/ into the wheel.
	@rm -rf build dist plugins/sluice.egg-info
	@$(UV) build --quiet --wheel --no-build-isolation --python $(PY) --out-dir dist
	@rm -rf build plugins/sluice.egg-info; ls dist/*.whl

requirements: $(UV) ## update requirements*.txt, with hashes, from pyproject.toml and the pins in requirements.in; UPGRADE=--upgrade updates the others
	@echo uv==$(UV_VERSION) | $(COMPILE) - -o requirements-uv.txt
	@$(COMPILE) pyproject.toml --all-extras $(UPGRADE) -c requirements.in -o requirements.txt
	@$(COMPILE) pyproject.toml --all-extras $(UPGRADE) --group dev -c requirements.txt -o requirements-dev.txt
	@echo "requirements.txt, requirements-dev.txt and requirements-uv.txt are up to date"

clean: ## remove .venv and the tools' caches (not SLUICE_HOME, not the jar cache)
	@rm -rf $(VENV) .site .ruff_cache .mypy_cache .pytest_cache .hypothesis
	@find . -name __pycache__ -type d -not -path './.git/*' -prune -exec rm -rf {} +

$(UV):
	@py=""; for candidate in "$(PYTHON)" python3.11 python3 python; do \
	  if [ -n "$$candidate" ] && "$$candidate" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null; \
	  then py="$$candidate"; break; fi; done; \
	if [ -z "$$py" ]; then \
	  echo "make: no Python 3.11 found as python3.11, python3 or python." >&2; \
	  echo "      Install it, or give its path: make $(MAKECMDGOALS) PYTHON=/path/to/python3.11" >&2; exit 1; fi; \
	echo "creating $(VENV) with $$py"; \
	"$$py" -m venv $(VENV); \
	PIP_USER=0 $(PY) -I -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements-uv.txt

$(VENV)/.runtime: requirements.txt | $(UV)
	@echo "installing the pinned packages (about 160; takes a few minutes the first time)"
	@# Compiled now: in containers where Python may not write bytecode, each process would compile everything again.
	@$(INSTALL) -r requirements.txt
	@touch $@

# Not an editable install: its entry point would make Airflow load the plugin a second time, beside the plugins folder.
$(VENV)/bin/sluice: .ci/sluice.sh | $(UV)
	@install -m 755 $< $@

$(VENV)/.dev: requirements-dev.txt $(VENV)/.runtime
	@echo "installing the development tools"
	@$(INSTALL) -r requirements-dev.txt
	@touch $@
