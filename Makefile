# `make help` lists the targets. They need make and Python >= 3.11.

VENV  ?= .venv
OLDEST = 3.11

# The first Python that is new enough: `python3`, else one with a version in its name.
NEW_ENOUGH = import sys; sys.exit(sys.version_info < tuple(map(int, '$(OLDEST)'.split('.'))))
PYTHON ?= $(shell for python in python3 python3.11 python3.12 python3.13 python3.14 python; do \
	$$python -c "$(NEW_ENOUGH)" >/dev/null 2>&1 && { echo $$python; break; }; done)

# Succeeds if .venv has what the README's own install put there, from these sources.
INSTALLED = import importlib.metadata as m, pathlib as p, rich; \
	from fairlane.embedded import find_server; find_server(); \
	made = m.distribution('fairlane').locate_file('fairlane/__init__.py').stat().st_mtime; \
	files = [f for d in ('src', 'lua') for f in p.Path(d).rglob('*') if '__pycache__' not in f.parts]; \
	raise SystemExit(any(f.stat().st_mtime > made for f in files + [p.Path('pyproject.toml')] if f.is_file()))

PIP     = $(VENV)/bin/python -m pip --disable-pip-version-check --quiet
PYTEST  = $(VENV)/bin/python -m pytest
SOURCES = src tests docker docs/site_hooks.py $(wildcard samples) $(wildcard bench)

# The tests start many Pythons: each would compile all modules again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
# What is generated is checked in, and a test compares it.
.PHONY: help generate demo demo-spark test test-rest test-heavy test-spark test-backends check explore mutants chaos compose bench docs clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(VENV)/.demo $(VENV)/.server ## see it work; installs what it needs into .venv
	$(VENV)/bin/python samples/corpus/demo.py

demo-spark: $(VENV)/.spark $(VENV)/.server $(VENV)/.java ## a pipeline with Spark: files, a stream, failures, a killed worker, a report
	$(VENV)/bin/python samples/spark_pipeline/pipeline.py

test: $(VENV)/.dev $(VENV)/.server $(VENV)/.java ## run the tests
	$(PYTEST) --ignore tests/spark --numprocesses 6 --dist worksteal -m 'not rest and not heavy'
	$(PYTEST) tests/spark --numprocesses 2 --dist worksteal -m 'not rest and not heavy'

test-rest: $(VENV)/.dev $(VENV)/.server $(VENV)/.java ## what `make test` leaves out and a merge requires
	$(PYTEST) --ignore tests/spark --numprocesses 6 --dist worksteal -m 'rest and not heavy'
	$(PYTEST) tests/spark --numprocesses 2 --dist worksteal -m 'rest and not heavy'

test-heavy: $(VENV)/.dev $(VENV)/.server $(VENV)/.java ## the tests that take minutes and are not in `make test`
	$(PYTEST) -m heavy

test-spark: $(VENV)/.dev $(VENV)/.server $(VENV)/.java ## all tests with Spark, including the long ones
	$(PYTEST) tests/spark -m spark

test-backends: $(VENV)/.dev $(VENV)/.server ## the same tests on the system's Redis, a cluster, Sentinel, TLS, in a container
	$(VENV)/bin/python -m tests.everywhere $(BACKENDS)

check: $(VENV)/.dev ## format, lint, types and the tests that need neither a server nor Spark: under a minute
	$(VENV)/bin/ruff format --check $(SOURCES)
	$(VENV)/bin/ruff check $(SOURCES)
	@echo '$(VENV)/bin/mypy, and the tests meanwhile'
	@$(VENV)/bin/mypy & typed=$$!; \
		$(PYTEST) -q --ignore tests/spark --numprocesses 2 --dist worksteal \
			-m 'not server and not slow and not rest and not heavy' || { wait $$typed; exit 1; }; wait $$typed

generate: $(VENV)/.dev ## write what follows from the scripts' headers, the table of options and the asyncio face
	$(VENV)/bin/python -m tests.support.scripts.generate
	$(VENV)/bin/python -m tests.support.options
	$(VENV)/bin/python -m tests.support.faces

explore: $(VENV)/.dev $(VENV)/.server ## check every state of many small systems: an estimated hour and a half
	$(VENV)/bin/python -m tests.explore

mutants: $(VENV)/.dev $(VENV)/.server ## remove every guard of the Lua in turn, a test must fail: an estimated one to two hours
	$(VENV)/bin/python -m tests.explore.mutants

chaos: $(VENV)/.dev $(VENV)/.server ## kill, stop, cut and restart everything under load: 20 minutes
	$(VENV)/bin/python -m tests.chaos

compose: $(VENV)/.dev $(VENV)/.server ## test cluster-compose.yml and the Dockerfile in real containers; installs Docker if it is root
	$(VENV)/bin/python -m tests.compose

bench: $(VENV)/.bench $(VENV)/.server ## measure it beside its peers: about 35 minutes; BENCH="--help" lists options
	$(VENV)/bin/python -m bench $(BENCH)

docs: $(VENV)/.docs ## build the documentation's site into build/site/; a warning is an error
	NO_MKDOCS_2_WARNING=1 $(VENV)/bin/python -m mkdocs build --strict --quiet

clean: ## remove everything that make created
	rm -rf $(VENV) build dist .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# ---------------------------------------------------------------------------------------------
# A stamp records what is installed. A changed pyproject.toml makes it out of date.

$(VENV)/.demo: pyproject.toml $(VENV)/.made
	@$(VENV)/bin/python -c "$(INSTALLED)" 2>/dev/null || $(PIP) install --editable '.[embedded,progress]'
	@touch $@

$(VENV)/.spark: pyproject.toml $(VENV)/.made
	$(PIP) install --editable '.[embedded,progress,report,spark]'
	@touch $(VENV)/.demo $@

$(VENV)/.dev: pyproject.toml $(VENV)/.made
	$(PIP) install --editable '.[dev]'
	@touch $(VENV)/.demo $(VENV)/.spark $@

$(VENV)/.bench: $(VENV)/.dev
	$(PIP) install --editable '.[bench]'
	@touch $@

$(VENV)/.docs: pyproject.toml $(VENV)/.made
	$(PIP) install --editable '.[docs]'
	@touch $@

# Finds a server program: that of the extra `embedded`, else the system's. Else root installs one.
$(VENV)/.server: | $(VENV)/.demo
	@if ! $(VENV)/bin/python -c 'from fairlane.embedded import find_server; find_server()' 2>/dev/null; then \
		if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
			apt-get update -qq && apt-get install -y -qq --no-install-recommends redis-server; \
		else \
			echo "make: no server program found, and no wheel brings one for this machine:" \
				"install Redis >= 7.0 or Valkey >= 7.2 (Debian: apt install redis-server)" >&2; exit 1; fi; fi
	@touch $@

# Spark needs Java. If Java is missing and make cannot install it, the tests with Spark are skipped.
$(VENV)/.java: | $(VENV)/.made
	@if [ -z "$$JAVA_HOME" ] && ! command -v java >/dev/null; then \
		if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
			apt-get update -qq && apt-get install -y -qq --no-install-recommends openjdk-17-jre-headless; \
		else \
			echo "make: no Java found: tests and demos with Spark are skipped; install Java >= 17" \
				"(Debian: apt install openjdk-17-jre-headless)" >&2; exit 0; fi; fi
	@touch $@

$(VENV)/.made:
	@if [ -z '$(PYTHON)' ]; then \
		echo "make: no Python >= $(OLDEST) found (python3 is $$(python3 -V 2>&1 || echo missing)):" \
			"install one, or name it with PYTHON=..." >&2; exit 1; fi
	@if ! $(PYTHON) -c 'import ensurepip, venv' 2>/dev/null; then \
		if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
			apt-get update -qq && apt-get install -y -qq python3-venv; \
		else \
			echo "make: $(PYTHON) has no venv module: install it (Debian: apt install python3-venv)" >&2; \
			exit 1; fi; fi
	@[ -x $(VENV)/bin/python ] || $(PYTHON) -m venv $(VENV)
	@touch $@
