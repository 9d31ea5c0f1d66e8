# Everything works from a fresh clone with Python >= 3.11, make and a C compiler: the first target that needs it builds .venv.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed

.PHONY: help test test-e2e lint demo bench clean
help:
	@echo "make demo   train a private model on embedded data and write its report (installs what it needs)"
	@echo "make test   linters, types, layers and tests, as CI runs them"
	@echo "make test-e2e  private training on real Flower nodes on this machine, with TLS, a killed and a slow node"
	@echo "make lint   only the linters"
	@echo "make bench  the timed claims of the README, printed with their conditions"

$(STAMP): pyproject.toml setup.py src/lightdp/_native/kernel.c src/lightdp/_native/paths.h
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "lightdp needs Python >= 3.11")'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade pip
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[dev]"
	@touch $@

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

test: lint
	OMP_NUM_THREADS=1 $(BIN)/pytest --numprocesses=auto  # a process for each core, a thread for each process

test-e2e: $(STAMP)
	$(BIN)/python examples/flower-deployment/run.py

demo: $(STAMP)
	@mkdir -p out
	$(BIN)/lightdp run --out out/demo.jsonl

bench: $(STAMP)
	$(BIN)/python benchmarks/core.py
	$(BIN)/python benchmarks/masks.py
	$(BIN)/python benchmarks/wire.py

clean:
	rm -rf .venv build dist out src/*.egg-info .mypy_cache .pytest_cache .ruff_cache .import_linter_cache
