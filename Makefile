# Every target installs what it needs into .venv; the only prerequisite is Python 3.11 or newer.

PYTHON ?= python3
BIN := .venv/$(if $(filter Windows_NT,$(OS)),Scripts,bin)
READY := .venv/.ready

.PHONY: help setup demo test test-long test-all lint docs linkcheck package lower-bounds bench clean

help:
	@echo "make setup  install everything into .venv; then . .venv/bin/activate, and polyadic --help"
	@echo "make demo   few labels, and a sensor that fails, on simulated nights (90 seconds after setup)"
	@echo "make test   run the tests of every promise and formula (some 4 minutes on two cores);"
	@echo "            POLYADIC_DATA=folder adds the tests on real recordings"
	@echo "make test-all  make test and make test-long: also more kills, fuzzing, kernels, browser sizes"
	@echo "make lint   ruff, mypy, import-linter; links, promises and tables of the pages"
	@echo "make docs   build the documentation into docs/_build/html"
	@echo "make linkcheck  check the links in the documentation (needs a network)"
	@echo "make package  build sdist and wheel into dist, check them, install the wheel into a clean environment and use it"
	@echo "make lower-bounds  run tests with the oldest versions that pyproject.toml allows"
	@echo "make bench  time every stage, compared with the limits of the machine and with TensorLy (minutes)"
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
	$(BIN)/check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml
	$(BIN)/check-jsonschema --builtin-schema vendor.readthedocs .readthedocs.yaml
	$(BIN)/python .ci/check_repository.py

docs: $(READY)
	$(BIN)/sphinx-build --fail-on-warning --keep-going --quiet docs docs/_build/html
	@echo "docs/_build/html/index.html"

linkcheck: $(READY)
	$(BIN)/sphinx-build --quiet --builder linkcheck docs docs/_build/linkcheck

# These two create their own virtual environments.
package:
	rm -rf dist
	$(PYTHON) .ci/check_package.py --out dist

lower-bounds:
	$(PYTHON) .ci/lower_bounds.py

bench: $(READY)
	$(BIN)/python -m paper speed --out docs/results/speed

clean:
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache docs/_build docs/gallery polyadic-run dist
