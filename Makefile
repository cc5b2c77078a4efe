# Everything runs in .venv, which is made from pyproject.toml and constraints.txt alone.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
SECONDS ?= 60
# Another torch, in an environment of its own, with the tests that concern capture.
TORCH ?= 2.15.0
TORCH_VENV = .venv-torch-$(TORCH)
# The page of 'hieronnx view' is tested in Chromium.
HAS_BROWSER := command -v chromium > /dev/null && command -v chromedriver > /dev/null
GET_BROWSER := apt-get -o Acquire::Retries=3 install -y --no-install-recommends chromium chromium-driver
ROOT := $(if $(filter 0,$(shell id -u)),,sudo -n)
CAPTURE_TESTS := tests/capture tests/test_zoo.py tests/tools/test_export.py tests/tools/test_failures.py

.PHONY: help demo page browser test test-long fuzz test-torch lint format bench strategies clean

help:
	@echo "make demo       export the built-in model, print its tree and coverage"
	@echo "make test       run the test suite"
	@echo "make browser    install the browser that tests of 'hieronnx view' need, where it is missing (Debian, Ubuntu)"
	@echo "make test-long  run the tests that take minutes"
	@echo "make test-torch TORCH=2.15.0   run the tests of capture with another torch, in an environment of its own"
	@echo "make fuzz       try damaged files on every reader, for SECONDS=60"
	@echo "make lint       ruff, ruff format --check, mypy"
	@echo "make bench      measure hieronnx beside its peers; writes docs/benchmarks.md"
	@echo "make page       build the script of 'hieronnx view' from frontend/, with Node"
	@echo "make strategies measure how well each strategy does; writes the tables of docs/strategies.md"

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	@touch $(STAMP)

demo: $(STAMP)
	$(BIN)/hieronnx demo

test: $(STAMP)
	@$(HAS_BROWSER) || echo "the tests of 'hieronnx view' need a browser: 'make browser' gets it ($(GET_BROWSER))"
	HF_HUB_OFFLINE=1 $(BIN)/python -m pytest -n auto --dist loadgroup -m "not long"

test-long: $(STAMP)
	HF_HUB_OFFLINE=1 $(BIN)/python -m pytest -n auto --dist loadgroup -m long

$(TORCH_VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(TORCH_VENV)
	grep -v '^torch==' constraints.txt > $(TORCH_VENV)/constraints.txt
	$(TORCH_VENV)/bin/python -m pip install --quiet --disable-pip-version-check -c $(TORCH_VENV)/constraints.txt torch==$(TORCH)
	$(TORCH_VENV)/bin/python -m pip install --quiet --disable-pip-version-check -c $(TORCH_VENV)/constraints.txt torch==$(TORCH) -e ".[dev]"
	@touch $@

test-torch: $(TORCH_VENV)/.installed
	HF_HUB_OFFLINE=1 $(TORCH_VENV)/bin/python -m pytest -n auto --dist loadgroup -m "not long" $(CAPTURE_TESTS)

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

browser:
	@$(HAS_BROWSER) || { $(ROOT) apt-get -o Acquire::Retries=3 update -qq && $(ROOT) env DEBIAN_FRONTEND=noninteractive $(GET_BROWSER); }

page:
	cd frontend && npm ci --no-audit --no-fund && npm run check && npm run build

bench: $(STAMP)
	$(BIN)/python -m benchmarks

fuzz: $(STAMP)
	$(BIN)/python tests/security/fuzz.py --seconds $(SECONDS)

strategies: $(STAMP)
	HF_HUB_OFFLINE=1 $(BIN)/python -m benchmarks strategies

clean:
	rm -rf $(VENV) .venv-torch-* dist .mypy_cache .ruff_cache .pytest_cache
