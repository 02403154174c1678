# Every target builds .venv when it has to: the first time, and when requirements or the kernels in C changed.

PYTHON ?= python3
WORKERS ?= auto
ARGS ?=
# What make bench measures.
PARTS ?= peers

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/installed
CHECKS := lint types imports house pages tests examples

# One thread per worker, and threads that sleep while they wait: workers do not compete for cores.
TESTENV := OMP_NUM_THREADS=1 OMP_WAIT_POLICY=PASSIVE PYTHONDONTWRITEBYTECODE=
# A worker that has nothing left takes tests from another one.
PYTEST := $(TESTENV) $(BIN)/python -m pytest -n $(WORKERS) --maxprocesses 8 --dist worksteal

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help demo test slow check bench faults house mutants oracles reproduce-tiny table clean $(CHECKS)

help: ## print this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1|\2/p' Makefile | awk -F '|' '{ printf "%-22s %s\n", $$1, $$2 }'

demo: $(STAMP) ## train a network on digits by every method, judge and attack them, and write a report
	OMP_WAIT_POLICY=PASSIVE $(BIN)/python -m dubio demo $(ARGS)

test: $(STAMP) ## run the fast tests (ARGS="-k elbo" passes options on)
	$(PYTEST) -m "not slow" $(ARGS)

slow: $(STAMP) ## run the slow tests
	$(PYTEST) -m slow $(ARGS) || { code=$$?; [ $$code -eq 5 ] && echo "no slow tests selected"; }

tests: $(STAMP) ## run both, in one go
	$(PYTEST) $(ARGS)

check: $(STAMP) ## run style, types, import direction, generated pages, tests, and the examples in a tiny form
	@for stage in $(CHECKS); do \
		echo "== $$stage"; start=$$(date +%s); \
		$(MAKE) --no-print-directory $$stage || exit 1; \
		echo "== $$stage passed in $$(( $$(date +%s) - start )) s"; \
	done

bench: $(STAMP) ## measure speed beside other libraries (PARTS="engine loading" for other parts)
	OMP_WAIT_POLICY=PASSIVE $(BIN)/python benchmarks/run.py $(PARTS) $(ARGS)

faults: $(STAMP) ## plant each fault of tests/faults.toml and see that a test catches it
	$(BIN)/python scripts/faults.py $(ARGS)

house: $(STAMP) ## measure how the tree is laid out: files, satellites, names, imports past borders, lines of code
	$(BIN)/python scripts/house.py $(ARGS)

mutants: $(STAMP) ## generate mutants of a package and list those that no test notices (ARGS="functional/uncertainty.py")
	$(BIN)/python scripts/mutants.py $(ARGS)

oracles: $(STAMP) ## compare attacks with foolbox and AutoAttack, and noise of GPUs with Philox, in an environment apart
	OMP_NUM_THREADS=1 $(BIN)/python scripts/oracles.py

reproduce-tiny: $(STAMP) ## see that every published table and figure runs, into a folder that is removed again
	@folder=$$(mktemp -d); trap 'rm -rf "$$folder"' EXIT; \
		OMP_WAIT_POLICY=PASSIVE $(BIN)/python -m dubio reproduce --all --tiny --device cpu --out "$$folder" $(ARGS)

table: $(STAMP) ## write docs/promises.md, lab/RESULTS.md and the tables of README.md, docs/ and lab/ again
	$(BIN)/python scripts/promises.py
	$(BIN)/python lab/scripts/results_page.py
	$(BIN)/python scripts/figures.py

clean: ## remove .venv, caches and build output
	rm -rf $(VENV) .venv-oracles .venv-peers .venv-mutants build dist src/*.egg-info lab/build lab/*.egg-info
	rm -rf .pytest_cache .ruff_cache .mypy_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The stages of `check`; each can be run by its name.

lint: $(STAMP)
	$(BIN)/ruff check
	$(BIN)/ruff format --check

types: $(STAMP)
	$(BIN)/mypy

imports: $(STAMP)
	$(BIN)/lint-imports

pages: $(STAMP)
	$(BIN)/python scripts/promises.py --check
	$(BIN)/python lab/scripts/results_page.py --check
	$(BIN)/python scripts/figures.py --check
	@$(BIN)/python scripts/faults.py --list > /dev/null && echo "all faults of tests/faults.toml can be planted"

examples: $(STAMP)
	@printf '%s\n' $(wildcard examples/*.py) | DUBIO_TINY=1 $(TESTENV) xargs -P 2 -I{} \
		sh -c 'output=$$($(BIN)/python {} 2>&1); code=$$?; echo "{}"; echo "$$output"; [ $$code -eq 0 ] || exit 255'

# One command installs both packages: alone, dubio_lab would look for dubio in the index. The stamp is written last, so an installation that fails leaves none. Where Python comes without ensurepip, the
# pip that is there installs another one into the environment.
$(STAMP): pyproject.toml lab/pyproject.toml constraints.txt setup.py src/dubio/_engine/kernels.c
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and \
		"Python 3.11 or newer is needed, $(PYTHON) is " + sys.version.split()[0] + "; try make PYTHON=python3.11")'
	@echo "Installing the environment in $(VENV); the first time this downloads torch and takes some minutes."
	@rm -f $@
	$(PYTHON) -m venv $(VENV) || { $(PYTHON) -m venv --without-pip $(VENV) && \
		$(PYTHON) -m pip --python $(BIN)/python install pip; }
	$(BIN)/python -m pip install --constraint constraints.txt --editable '.[dev]' --editable ./lab
	@touch $@
