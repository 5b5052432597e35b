# The everyday commands. `make PYTHON=python3.12 setup` chooses another Python.

PYTHON ?= python3
VENV ?= .venv
TORCH_VERSIONS ?= 2.11.0 2.14.1
TORCH_TESTS := tests/frontend/test_operator_names.py tests/dialects/test_torch_dialect.py \
  $(addprefix tests/frontend/test_,api.py capture.py cuda_capture.py dynamic.py gradients.py torch_compile.py transforms.py) \
  $(addprefix tests/frontend/operators/test_,checked.py complex.py host_values.py losses.py random.py rare_operators.py \
    recurrent.py scatter.py sorting.py)
BIN := $(if $(wildcard $(VENV)/bin/python),$(VENV)/bin/,)

.PHONY: help setup test torch-versions filecheck lint format types docs site playground linkcheck bench gpu-bundle

help: ## this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

setup: ## a virtual environment with everything the tests need
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/pip install -e ".[dev]"

test: ## the whole suite
	$(BIN)pytest

torch-versions: ## tests that depend on PyTorch's version, with the oldest and the newest
	for version in $(TORCH_VERSIONS); do \
	  $(PYTHON) -m venv build/torch-$$version && \
	  build/torch-$$version/bin/pip install -q torch==$$version -e ".[dev]" && \
	  build/torch-$$version/bin/python -m pytest -q $(TORCH_TESTS) || exit 1; \
	done

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
	$(BIN)python docs/levels.py docs/levels.md
	$(BIN)python docs/dialect_pages.py docs/reference
	$(BIN)python docs/pass_diagram.py docs/architecture.md
	$(BIN)python docs/small_compiler_pages.py

site: ## the site, in build/site; a warning is an error
	$(BIN)python -m sphinx -n -W --keep-going -q -E -j auto -b html docs build/site
	@echo build/site/index.html

playground: ## the page that compiles IR in the browser, in build/site/playground
	$(BIN)python docs/playground/build.py build/site/playground

linkcheck: ## the links of the site to other sites, which needs a network
	$(BIN)python -m sphinx -q -b linkcheck docs build/linkcheck

bench: ## the suites on the cores of this machine, and the page of results
	$(BIN)python -m benchmarks.suite.run --device cpu
	$(BIN)python -m benchmarks.suite.results_page

gpu-bundle: ## wheels and compiled programs for benchmarks/gpu_minutes.sh, in build/gpu-bundle
	$(BIN)python -m benchmarks.gpu_minutes.bundle
