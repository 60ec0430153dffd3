# Every target sets up what it needs in .venv; nothing else has to be installed first but Python 3.11 or newer.

PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

.PHONY: help setup demo test test-long test-all lint docs linkcheck package lower-bounds bench reliability clean

help:
	@echo "make setup  install everything into .venv; then . .venv/bin/activate, and polyadic --help"
	@echo "make demo   compare polyadic with simpler features on built-in signals (a minute or two after the first set-up)"
	@echo "make test   run the tests of every promise and formula (some 5 minutes on two quiet cores);"
	@echo "            POLYADIC_DATA=folder adds those on real recordings"
	@echo "make test-all  make test, and then all the rest (make test-long): more kills, fuzzing, kernels, browser sizes"
	@echo "make lint   ruff, mypy, import-linter"
	@echo "make docs   build the documentation into docs/_build/html"
	@echo "make linkcheck  ask the addresses that the documentation names (needs a network)"
	@echo "make package  build sdist and wheel into dist, check them, install the wheel into a clean environment, use it there"
	@echo "make lower-bounds  run tests with the oldest versions that pyproject.toml allows"
	@echo "make bench  time every stage against what the machine can do, and one step against TensorLy (minutes)"
	@echo "make reliability  kills, damaged files, faults and long runs, counted into docs/results/reliability.json (some two"
	@echo "            hours: an hour of sweeps in one fit, and a fit of 12 GiB; RELIABILITY='--seconds 60 --gib 0' leaves them out,"
	@echo "            TMPDIR says where it is written)"
	@echo "make clean  remove .venv and everything built"

$(READY): requirements.lock pyproject.toml
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@echo "installing into .venv (once; takes a minute or two)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.lock
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

setup: $(READY)

demo: $(READY)
	$(BIN)/polyadic run

PYTEST = $(BIN)/python -m pytest --numprocesses auto --dist worksteal

test: $(READY)
	$(PYTEST) -m "not long"

test-long: $(READY)
	$(PYTEST) -m long

test-all: test test-long

lint: $(READY)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

docs: $(READY)
	$(BIN)/sphinx-build --fail-on-warning --keep-going --quiet docs docs/_build/html
	@echo "docs/_build/html/index.html"

linkcheck: $(READY)
	$(BIN)/sphinx-build --quiet --builder linkcheck docs docs/_build/linkcheck

# Both have environments of their own.
package:
	rm -rf dist
	$(PYTHON) .ci/check_package.py --out dist

lower-bounds:
	$(PYTHON) .ci/lower_bounds.py

bench: $(READY)
	$(BIN)/polyadic bench speed --out docs/results/speed

reliability: $(READY)
	$(BIN)/python tests/reliability.py docs/results/reliability.json $(RELIABILITY)

clean:
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache docs/_build docs/gallery polyadic-run dist
