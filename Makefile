# Everything a contributor runs. Needs GNU make, bash and Python 3.11 or newer; the rest is installed
# from PyPI, at the lock file's versions, into a virtual environment in this folder.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

VENV ?= .venv
PY := $(VENV)/bin/python
LOWEST := .venv-lowest
# Goes to pytest as it is: make test ARGS="tests/unit -k codec"
ARGS ?=
# The last resort for a test that not even its own timeout can end: a stack of every thread, and out.
WATCHDOG := -o faulthandler_timeout=400 -o faulthandler_exit_on_timeout=true

# The environment is as good as the files that describe it: another hash, another installation.
HASH := $(shell cat pyproject.toml uv.lock tools/venv.sh | cksum | cut -d' ' -f1)
READY := $(VENV)/.pyrula-$(HASH)
LOWEST_READY := $(LOWEST)/.pyrula-$(HASH)

# Folders that may not be there yet.
TYPED := pyrula tools $(wildcard tests/typing)
FORMATTED := pyrula tests tools $(wildcard benchmarks examples)

export UV_PYTHON_DOWNLOADS := never
export UV_HTTP_TIMEOUT ?= 120
# Only this Makefile's choice of environment counts, not one that happens to be active.
unexport VIRTUAL_ENV

.PHONY: help env test check format lint types floors snippets lock check-lowest demo soak bench build clean distclean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' Makefile

env: $(READY) ## make or refresh the virtual environment

$(READY):
	UV_PROJECT_ENVIRONMENT=$(abspath $(VENV)) tools/venv.sh $(VENV) \
	  sync --quiet --locked --inexact --all-extras --python $(PY)
	rm -f $(VENV)/.pyrula-*
	touch $@

test: $(READY) ## run every test but the soak, against real servers
	$(PY) -m pytest $(WATCHDOG) -n 2 --dist loadfile $(ARGS)

check: lint types floors snippets ## all that reads the code without running it

lint: $(READY) ## format and lint, without changing a file
	$(VENV)/bin/ruff format --check $(FORMATTED)
	$(VENV)/bin/ruff check $(FORMATTED)

types: $(READY) ## mypy, strict
	$(VENV)/bin/mypy $(TYPED)

floors: $(READY) ## imports run down the house
	$(PY) tools/check_floors.py

snippets: $(READY) ## fences and syntax of the documentation
	$(PY) tools/doc_snippets.py

format: $(READY) ## write the format and the safe fixes
	$(VENV)/bin/ruff format $(FORMATTED)
	$(VENV)/bin/ruff check --fix $(FORMATTED)

lock: $(READY) ## bring the lock file up to date with pyproject.toml
	$(VENV)/bin/uv lock --upgrade

check-lowest: $(LOWEST_READY) ## unit tests with the oldest versions that pyproject.toml allows
	$(LOWEST)/bin/python -m pytest tests/unit $(ARGS)

$(LOWEST_READY):
	rm -rf $(LOWEST)
	PYTHONS="python3.11 python3.12 python3.13 python3" tools/venv.sh $(LOWEST) \
	  pip install --quiet --python $(LOWEST)/bin/python --resolution lowest-direct \
	  -e '.[embedded,kafka,http,cli,test]'
	touch $@

demo: $(READY) ## the main job, with a worker killed half way
	$(PY) examples/integrity/demo.py

soak: $(READY) ## random faults for minutes, then an audit of the data
	$(PY) -m pytest tests/soak -m soak --timeout 0 $(ARGS)

bench: $(READY) ## benchmarks, each beside its yardstick
	$(PY) -m benchmarks $(ARGS)

build: $(READY) ## wheel and source archive into dist/
	$(VENV)/bin/uv build --python $(PY) --out-dir dist

clean: ## remove archives and caches
	rm -rf dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis *.egg-info
	find pyrula tests tools benchmarks examples -name __pycache__ -type d -prune -exec rm -rf {} +

distclean: clean ## remove the environments and local servers' data as well
	rm -rf $(VENV) $(LOWEST) .demo .dev
