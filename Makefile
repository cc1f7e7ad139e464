# `make demo` on a fresh machine needs Python 3.11 or newer with pip, and nothing else.
PYTHON ?= python3
PIP_FLAGS ?=
VENV := .venv
BIN := $(VENV)/bin
VCBENCH := $(BIN)/vcbench
RUN := runs/quickstart

.DEFAULT_GOAL := help
.PHONY: help setup demo tasks test check format gate soak bench mutants quality peers docs clean

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1\t\2/p' $(MAKEFILE_LIST) | expand -t 10

setup: $(VENV)/installed ## make .venv and install vcbench

demo: setup ## get the embedded model, run the quickstart, print the comparison and the verdict
	$(VCBENCH) model fetch smollm2-135m
	$(VCBENCH) run configs/quickstart.yaml
	$(VCBENCH) compare $(RUN)
	$(VCBENCH) check $(RUN)

gate: setup ## exit 0 only if every VeriCache request of the quickstart equals full KV
	$(VCBENCH) check $(RUN)

soak: $(VENV)/installed-dev ## 300 drawn requests bit for bit, then full KV against transformers; for the night
	$(VCBENCH) model fetch smollm2-135m
	$(BIN)/python -m tests.lossless.soak
	$(BIN)/pytest -m 'slow or net'

tasks: $(VENV)/installed-dev ## every task in its small form on the embedded model, with all its metrics
	$(VCBENCH) model fetch smollm2-135m
	$(VCBENCH) run configs/tasks.yaml
	$(VCBENCH) score runs/tasks

test: $(VENV)/installed-dev ## install what tests need and run them; says how long it takes
	@if [ -f $(VENV)/test-time ]; then echo "the tests took $$(cat $(VENV)/test-time) last time"; \
	else echo "the tests take about a quarter of an hour on two idle cores, and longer the first time: kernels are compiled"; fi
	@begin=$$(date +%s); $(BIN)/pytest && echo "$$((($$(date +%s) - begin + 59) / 60)) min" > $(VENV)/test-time

check: $(VENV)/installed-dev ## formatting, lint and types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: $(VENV)/installed-dev ## format and fix what can be fixed
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(VENV)/installed-dev ## every benchmark, one after the other; run it on an idle machine
	@set -e; for script in $(filter-out benchmarks/common.py,$(wildcard benchmarks/*.py)); do echo "== $$script"; $(BIN)/python $$script; done

mutants: $(VENV)/installed-dev ## apply each of some 60 faults to a copy, where a test must see it; for the night
	$(BIN)/python -m tests.mutants

quality: $(VENV)/installed-dev ## every method's divergence and acceptance at 2x to 8x; about an hour
	for method in kvquant kvzap rotatekv; do $(VCBENCH) calibrate smollm2-135m $$method; done
	$(BIN)/python benchmarks/quality/table.py
	$(BIN)/python benchmarks/quality/perplexity.py

peers: ## our methods against kvpress and others' quantisers, in an environment of its own
	@test -x .venv-peers/bin/python || $(PYTHON) -m venv .venv-peers
	.venv-peers/bin/python -m pip install --quiet $(PIP_FLAGS) --editable '.[peers]'
	.venv-peers/bin/python benchmarks/peers/agreement.py

docs: $(VENV)/installed-dev ## write docs/config.md anew
	$(BIN)/python -m vcbench.config.reference > docs/config.md

clean: ## remove the environment and all caches; runs are kept
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# One stamp per set of packages: an install happens again only when these files change.
$(VENV)/installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit("vcbench needs Python 3.11 or newer: make PYTHON=python3.12" if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet $(PIP_FLAGS) --editable . --constraint constraints.txt
	@touch $@

$(VENV)/installed-dev: $(VENV)/installed
	$(BIN)/python -m pip install --quiet $(PIP_FLAGS) --editable '.[dev]' --constraint constraints.txt
	@touch $@
