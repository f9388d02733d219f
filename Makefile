# `make demo` sets everything up and runs the default model; `make test` sets everything up and tests.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# The order of the tests: another one each time. The commands shown name the seed; `make test SEED=…` repeats it.
SEED ?= $(shell date +%s)
# How many processes the tests run in.
JOBS ?= 2
PYTEST = $(BIN)/python -m pytest -q -n $(JOBS) --dist worksteal --randomly-seed=$(SEED)

# How long each fuzzer of `make nightly` runs.
MINUTES ?= 60

# An environment with vLLM, for the tests of its proposer in `make nightly` (docs/vllm.md).
VLLM ?= .vllm

# Installing compiles Foredraft's kernels for llama.cpp: again when they have changed.
KERNELS := hatch_build.py $(wildcard src/foredraft/backends/llamacpp/native/*.*)

.PHONY: demo test nightly lint bench clean

demo: $(VENV)/.demo
	$(BIN)/foredraft run --no-remember --temp 0 -n 100 --compare "Write the same program again." < examples/shapes.txt
	@echo
	@echo 'Next: export PATH="$(CURDIR)/bin:$$PATH", and then: foredraft chat, foredraft serve, foredraft --help'

test: $(VENV)/.dev
	$(PYTEST)

# The tests with every combination of their parameters and the long ones; then fuzzers, clients and trials.
nightly: $(VENV)/.dev
	$(PYTEST) --nightly
	$(BIN)/python -m pytest nightly -q --minutes=$(MINUTES)
	[ ! -x $(VLLM)/bin/python ] || $(VLLM)/bin/python -m pytest --nightly -q tests/scale/test_vllm_real.py

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(VENV)/.dev
	$(BIN)/foredraft bench

$(VENV)/bin/python:
	$(PYTHON) -c 'import sys; sys.exit("Foredraft needs Python 3.11 or newer" if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.demo: pyproject.toml $(KERNELS) | $(VENV)/bin/python
	@$(BIN)/python scripts/install.py llamacpp,hub,server
	@touch $@

$(VENV)/.dev: pyproject.toml scripts/constraints.txt $(KERNELS) | $(VENV)/bin/python
	@$(BIN)/python scripts/install.py dev
	@touch $@ $(VENV)/.demo

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache
