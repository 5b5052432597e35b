# The everyday commands. `make PYTHON=python3.12 setup` chooses another Python.

PYTHON ?= python3
VENV ?= .venv
BIN := $(if $(wildcard $(VENV)/bin/python),$(VENV)/bin/,)

.PHONY: help setup test filecheck lint format types docs bench

help: ## this list
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

setup: ## a virtual environment with everything the tests need
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/pip install -e ".[dev]"

test: ## the whole suite
	$(BIN)pytest

filecheck: ## the lit tests through the real executables
	$(BIN)lit -DSUBPROCESS tests/filecheck

lint: ## style, without changing anything
	$(BIN)ruff check
	$(BIN)ruff format --check

format: ## repair the style
	$(BIN)ruff check --fix
	$(BIN)ruff format

types: ## the type checker
	$(BIN)pyright $(if $(BIN),--pythonpath $(BIN)python)

docs: ## the pages that are made from what the passes do
	$(BIN)python docs/walkthrough.py docs/schedules.md
	$(BIN)python docs/pass_diagram.py docs/architecture.md

bench: ## the suites on the cores of this machine, and the page of results
	$(BIN)python benchmarks/suite.py --device cpu
	$(BIN)python benchmarks/results_page.py
