# make demo: set everything up and run the default model.  make test: set everything up and test.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test lint bench clean

demo: $(VENV)/.demo
	$(BIN)/foretoken run --no-remember -n 300 \
	  "Explain this code, and quote it first: $$(cat examples/shapes.txt)"

test: set everything up and test.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test lint bench clean

demo: $(VENV)/.demo
	$(BIN)/foretoken run --no-remember -n 400 \
	  "Write the numbers from one to twenty as words, one on each line. Then write the same list again."

test: $(VENV)/.dev
	$(BIN)/python -m pytest -q

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(VENV)/.dev
	$(BIN)/python benchmarks/auto_vs_off.py

$(VENV)/bin/python:
	$(PYTHON) -c 'import sys; sys.exit("Foretoken needs Python 3.11 or newer" if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.demo: pyproject.toml | $(VENV)/bin/python
	@$(BIN)/python scripts/install.py demo
	@touch $@

$(VENV)/.dev: pyproject.toml | $(VENV)/bin/python
	@$(BIN)/python scripts/install.py dev
	@touch $@ $(VENV)/.demo

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache
