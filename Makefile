# `make demo` and `make test` do everything on a bare machine: Python 3.11+, a C++ compiler, make, git.
# Online for the set-up, offline from then on.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# One release for everybody; where a CPU build is on pip's path it is the one that pip takes.
TORCH ?= torch==2.13.0
# Where the default torch is a CUDA build of several GB, name an index that holds CPU builds instead.
TORCH_INDEX ?=
# Mutated inputs that `make fuzz` gives to the native readers, and where their generator starts.
FUZZ_CASES ?= 1000000
FUZZ_SEED ?= 1
# Random operations on the op tree that `make fuzz` does under each sanitizer.
TREE_OPS ?= 1000000
# Processes that share the Python tests; each loads the models for itself.
WORKERS ?= auto
LLAMA := $(shell sed -n 's/^ *"\(llama-cpp-python==[0-9.]*\)",/\1/p' pyproject.toml)
NATIVE := $(shell find src_cpp -name '*.?pp' -o -name CMakeLists.txt)
# An editable install holds a copy of the JupyterLab extension, so a change of it installs anew.
EXTENSION := $(shell find nexus_lab/lab/labextension -type f)

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-python test-native lab views notebooks lint fuzz bench clean

help:
	@echo "make setup   build .venv, the native core and the demo servers' environments"
	@echo "make demo    run the whole job once on the embedded defaults"
	@echo "make test    run all tests: C++, sanitizers, Python, browser"
	@echo "make lab     open JupyterLab on the quick-start notebook"
	@echo "make views   rebuild the workbench's views and the JupyterLab extension (needs node and npm)"
	@echo "make notebooks  run the notebooks and keep their outputs"
	@echo "make lint    ruff, mypy, clang-format"
	@echo "make fuzz    a million damaged files and states for the readers, and as many random operations on the"
	@echo "             op tree, under the sanitizers"
	@echo "make bench   measure the scan, the signatures, the op tree, the views and the splice into results/"
	@echo "make clean   remove what was built"

setup: $(VENV)/.ready

$(VENV)/.dependencies: pyproject.toml
	@echo "[1/4] virtual environment"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --upgrade pip
	@echo "[2/4] torch and $(LLAMA): llama.cpp is compiled once, about 6 minutes on two cores; pip keeps the wheel"
	@$(BIN)/python -m pip install --progress-bar off $(TORCH) $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) | grep -v 'already satisfied' || true
	@$(BIN)/python -c 'import torch' || { echo "torch did not install; see the lines above"; exit 1; }
	$(BIN)/python -m pip install --progress-bar off $(LLAMA)
	@touch $@

$(VENV)/.installed: $(VENV)/.dependencies $(NATIVE) $(EXTENSION)
	@echo "[3/4] native core and Python packages: about 2 minutes"
	$(BIN)/python -m pip install --quiet --progress-bar off --editable '.[test,bench]'
	@touch $@

$(VENV)/.ready: $(VENV)/.installed nexus_lab/demo/servers.py
	@echo "[4/4] models, and environments of the demo's MCP servers: about 1 minute"
	$(BIN)/nexus-lab demo --setup
	@touch $@

demo: setup
	$(BIN)/nexus-lab demo

test: test-native test-python

test-python: setup
	$(BIN)/python -m pytest --numprocesses $(WORKERS) --maxprocesses 4

# The C++ unit tests: plain, under address and undefined-behaviour sanitizers, and under the thread sanitizer.
test-native: setup
	@for preset in release asan tsan; do \
	  PATH="$(CURDIR)/$(BIN):$$PATH" && cd $(CURDIR)/src_cpp && \
	  cmake --preset $$preset >/dev/null && cmake --build --preset $$preset && ctest --preset $$preset || exit 1; \
	done

lab: setup
	$(BIN)/jupyter lab notebooks/01_quick_start.ipynb

# What these write is committed, so that a machine without node sets up.
views:
	cd nexus_lab/lab/frontend && npm ci --ignore-scripts && npm run check && npm test && npm run build
	cd nexus_lab/lab/extension && npm ci --ignore-scripts && npm run check && npm run build

# The notebooks are kept with the outputs that this writes.
notebooks: setup
	$(BIN)/python tests/lab/notebook_tools.py

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/clang-format --dry-run --Werror $$(find src_cpp -name '*.?pp')

# The tests run some thousands of these.
fuzz: setup
	@PATH="$(CURDIR)/$(BIN):$$PATH" && cd $(CURDIR)/src_cpp && \
	  cmake --preset asan >/dev/null && cmake --build --preset asan --target fuzz_readers
	build/asan/tests/fuzz_readers $(FUZZ_CASES) $(FUZZ_SEED)
	@PATH="$(CURDIR)/$(BIN):$$PATH" && cd $(CURDIR)/src_cpp && for preset in asan tsan; do \
	  cmake --preset $$preset >/dev/null && cmake --build --preset $$preset --target test_op_tree && \
	  $(CURDIR)/build/$$preset/tests/test_op_tree $(TREE_OPS) || exit 1; \
	done
	NEXUS_FUZZ=2000 $(BIN)/python -m pytest --timeout 0 tests/test_foreign_bytes.py

bench: setup
	@mkdir -p results
	$(BIN)/nexus-lab bench slb --json results/slb.json
	$(BIN)/nexus-lab bench signatures --json results/signatures.json
	$(BIN)/nexus-lab bench tree --json results/tree.json
	$(BIN)/nexus-lab bench lab --json results/lab.json
	$(BIN)/nexus-lab eval splice --prefixes 1 --decisions no --json results/splice.json

clean:
	rm -rf $(VENV) build dist results demo-session
