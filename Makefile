# joinweir. `make` lists the targets. They set up what they need, on Debian or Ubuntu with Python.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
# What `make setup` installs besides the core; `make setup EXTRAS=dev` installs everything.
EXTRAS ?= test,spark,optimum,report
comma  := ,
STAMP  := $(VENV)/.installed-$(subst $(comma),-,$(EXTRAS))

SHELL       := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup java demo test test-kafka lint format bench golden clean

# Spark workers otherwise run whatever `python3` is on PATH.
export PYSPARK_PYTHON := $(CURDIR)/$(BIN)/python
export PIP_DISABLE_PIP_VERSION_CHECK := 1

# For what may start Spark: a Java it runs on, even when the machine's default is another.
with_java  = home=$$(scripts/java.sh --home); export JAVA_HOME="$${home:-$${JAVA_HOME:-}}";
# For what compiles kernels outside pytest: the tests' cache, keyed by the sources (tests/conftest.py).
with_cache = NUMBA_CACHE_DIR=$$($(BIN)/python tests/conftest.py); export NUMBA_CACHE_DIR;

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-10s %s\n", $$1, $$2 }' Makefile

setup: java $(STAMP) ## create .venv with joinweir and its tested dependencies; check for Java 17 or 21

java: ## check for Java 17 or 21; install it when root, else say how
	@scripts/java.sh

demo: setup ## run the demonstration on local Spark
	@$(with_java) $(with_cache) $(BIN)/joinweir demo

test: setup ## run the default tests
	@$(with_java) $(BIN)/python -m pytest

# Kafka's jars are fetched once, by mvn, into .cache.
test-kafka: setup ## run the tests that need a Kafka broker; mvn fetches it
	@$(BIN)/python scripts/kafka_jars.py .cache/kafka
	@$(with_java) $(with_cache) $(BIN)/python -m pytest tests_kafka

lint: $(STAMP) ## check style and formatting
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --check --quiet . || { echo "Not formatted; run: make format" >&2; exit 1; }
	@for f in scripts/*.sh .ci/run; do bash -n "$$f"; done
	@echo "lint: ok"

format: $(STAMP) ## format the sources and apply safe lint fixes
	@$(BIN)/ruff check --fix --quiet . || true
	@$(BIN)/ruff format .

bench: setup ## time the engine
	@$(with_java) $(with_cache) $(BIN)/joinweir bench engine

golden: setup ## write the golden numbers in tests/golden anew
	@$(with_cache) $(BIN)/python tests/make_golden.py

clean: ## remove .venv, caches and builds
	@rm -rf $(VENV) .cache .numba_cache .pytest_cache .ruff_cache .hypothesis build dist
	@rm -rf spark-warehouse metastore_db derby.log
	@find . -name .git -prune -o -name __pycache__ -type d -prune -exec rm -rf {} +

# Installed again when the dependencies change; the sources are linked, not copied.
$(STAMP): pyproject.toml constraints.txt | $(BIN)/python
	@echo "Installing joinweir[$(EXTRAS)] into $(VENV)"
	@$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[$(EXTRAS)]'
	@touch $@

# Debian keeps ensurepip, without which a venv has no pip, in a package of its own.
$(BIN)/python:
	@command -v $(PYTHON) >/dev/null || { \
	    echo "No $(PYTHON) found; name another:  make setup PYTHON=..." >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { \
	    echo "joinweir needs Python 3.10 or newer; name one:  make setup PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	    package=$$($(PYTHON) -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])'); \
	    if [ "$$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then \
	        echo "Python's venv module is missing. Run:  sudo apt-get install -y $$package" >&2; exit 1; \
	    fi; \
	    echo "Python's venv module is missing: installing $$package"; \
	    export DEBIAN_FRONTEND=noninteractive; \
	    apt-get -qq update && apt-get -qq install -y --no-install-recommends $$package >/dev/null; \
	}
	@echo "Creating $(VENV) with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv --clear $(VENV) || { rm -rf $(VENV); exit 1; }
