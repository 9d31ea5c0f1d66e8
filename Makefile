# Everything works from a fresh clone with Python >= 3.11, make and a C compiler: targets install what they need.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --disable-pip-version-check
SOURCES := pyproject.toml constraints.txt setup.py src/lightdp/_native/kernel.c $(wildcard src/lightdp/_native/*.h)
TRAIN := .venv/.train
DEV := .venv/.dev

.PHONY: help demo docs check test test-arm test-big-endian test-e2e test-flwr-next test-ui lint bench wheels clean
help:
	@echo "make demo   train a private model on embedded data and write its report (installs what it needs)"
	@echo "make docs   the documentation as a site in out/site, which needs no network"
	@echo "make check  linters, types, layers and the quick tests, in a minute or two"
	@echo "make test   the same with all tests, as CI runs them"
	@echo "make test-arm  the compiled kernel on an emulated ARMv8 processor"
	@echo "make test-big-endian  noise, packing and keys in numpy on an emulated s390x processor"
	@echo "make test-e2e  private training on real Flower nodes on this machine, with TLS; nodes join, leave and die, servers are killed"
	@echo "make test-flwr-next  the tests of lightdp.flower with the newest flwr that it allows"
	@echo "make test-ui  the pages of lightdp ui in a real browser (chromium)"
	@echo "make wheels  manylinux wheels for x86-64 and ARMv8 in dist, each tried without a compiler"
	@echo "make lint   only the linters"
	@echo "make bench  the timed claims of docs/evidence/speed.md, printed with their conditions"

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "lightdp needs Python >= 3.11")'
	@echo "Making a virtual environment in .venv; nothing is installed outside of it."
	$(PYTHON) -m venv .venv
	$(PIP) --quiet --upgrade pip

$(TRAIN): $(SOURCES) | $(BIN)/python
	@echo "Installing lightdp with PyTorch, scikit-learn and charts: 300 MB to download and 1.3 GB on disk,"
	@echo "or several GB more where pip finds PyTorch's CUDA build (docs/how-to/install.md says how to get the CPU build)."
	$(PIP) --constraint constraints.txt --editable ".[train,ui]"
	@touch $@

$(DEV): $(SOURCES) | $(BIN)/python
	@echo "Installing lightdp with everything that its tests use: 1.9 GB on disk, several GB more with PyTorch's CUDA build."
	$(PIP) --constraint constraints.txt --editable ".[dev]"
	@touch $(TRAIN) $@

lint: $(DEV)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# a process for each core, a thread for each process
check: lint
	OMP_NUM_THREADS=1 $(BIN)/pytest --numprocesses=auto -m "not slow"

test: lint
	OMP_NUM_THREADS=1 $(BIN)/pytest --numprocesses=auto

test-arm: $(DEV)
	@command -v aarch64-linux-gnu-gcc >/dev/null && command -v qemu-aarch64 >/dev/null || \
	  { echo "make test-arm needs, on Debian: apt-get install qemu-user gcc-aarch64-linux-gnu libc6-dev-arm64-cross"; exit 1; }
	$(BIN)/pytest tests/native

test-big-endian:
	$(PYTHON) release/big_endian.py

test-e2e: $(DEV)
	$(BIN)/python examples/flower-deployment/run.py

test-ui: $(DEV)
	@{ command -v chromium || command -v chromium-browser; } >/dev/null || { echo "make test-ui needs, on Debian: apt-get install chromium"; exit 1; }
	$(BIN)/pytest tests/web tests/report/test_report_browser.py

test-flwr-next: $(DEV)
	$(PIP) --no-deps --upgrade --target .venv/flwr-next "flwr==1.42.*"
	PYTHONPATH=.venv/flwr-next OMP_NUM_THREADS=1 $(BIN)/pytest tests/flower

wheels:
	$(PYTHON) release/wheels.py

demo: $(TRAIN)
	@mkdir -p out
	$(BIN)/lightdp run --out out/demo.jsonl --overwrite
	@echo
	@echo "Next:"
	@echo "  $(BIN)/lightdp ui out         look at this training and plan your own, in a browser"
	@echo "  docs/tutorials/own-data.md   train on a table of your own, in ten minutes"
	@echo "  docs/tutorials/flower.md     make a Flower app private, in two lines"

# no page asks the network for anything; a broken link or anchor is an error
docs: $(DEV)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "Open out/site/index.html"

bench: $(DEV)
	$(BIN)/python benchmarks/core.py
	$(BIN)/python benchmarks/masks.py
	$(BIN)/python benchmarks/wire.py

clean:
	rm -rf .venv build dist out src/*.egg-info .mypy_cache .pytest_cache .ruff_cache .import_linter_cache
