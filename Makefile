# Everything lives in .venv; the first call of a target installs what it needs, later ones do not.
#   make reproduce   the figures and the scorecard, into report/index.html (core install only)
#   make test        lint, format, types, tests, documentation; with MARKS="not slow" the long tests too, as in CI
#   make gallery     run the examples and keep their output and pictures for the documentation
#   make test-all    the same with the long and slow tests, and property tests on new random examples
#   make test-lowest     tests at the lowest versions that pyproject.toml allows (TESTS="tests" for all)
#   make release-check   sdist and wheel: contents, metadata, and the tests against the installed wheel
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
EXTRAS := docs,hub,sweep,test,video
PIP := $(BIN)/python -m pip --disable-pip-version-check
# mkdocs-material's notice about other programs would hide real warnings.
export NO_MKDOCS_2_WARNING := 1
# A file's tests stay in one process, where its compiled functions are. One process a core: another
# would import and compile the same again; while some tests wait, the scorecard has processes of its own.
export JOBS ?= 2
# One thread a process for small matrices: two of them on two busy cores wait for each other.
export OPENBLAS_NUM_THREADS := 1
# Compiled modules are kept: dozens of processes import the package.
export PYTHONDONTWRITEBYTECODE :=
PYTEST := $(BIN)/python -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder --durations 25

# Which tests: the long ones, of seconds each, wait for CI.
MARKS ?= not slow and not long

# Between them these use every dependency.
TESTS ?= $(addprefix tests/, results/test_files.py results/test_display.py plots/test_plots.py plots/test_animate.py \
	runs/test_simulate.py runs/test_sweep.py runs/test_fused.py theory/test_staircase.py cli/test_cli.py \
	sweeps/test_sweep_store.py checkpoints/test_checkpoints.py losses/test_factored.py)

.PHONY: gallery reproduce install test test-all test-lowest release-check lint docs clean

reproduce: $(VENV)/.core
	$(BIN)/iclflow reproduce all --out report

install: $(VENV)/.all

test: lint
	$(PYTEST) -m "$(MARKS)"
	$(BIN)/mkdocs build --strict

test-all: lint
	ICLFLOW_EXAMPLES=random $(PYTEST) -m "slow or not slow"
	$(BIN)/mkdocs build --strict

# Old libraries warn of one another, which is no failure of ours.
test-lowest: $(VENV)-lowest/.all
	$(VENV)-lowest/bin/python -m pytest -n $(JOBS) --dist loadfile -o filterwarnings=default $(TESTS)

release-check: $(VENV)/.all
	$(BIN)/python release/check.py

lint: $(VENV)/.all
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

gallery: $(VENV)/.all
	$(BIN)/python docs/gallery.py

docs: $(VENV)/.all
	$(BIN)/mkdocs build --strict

clean:
	rm -rf $(VENV) $(VENV)-lowest site report report-quick build dist .pytest_cache .ruff_cache .hypothesis
	find iclflow tests -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.core: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) install --quiet --constraint constraints.txt --editable .
	touch $@

$(VENV)/.all: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) install --quiet --constraint constraints.txt --editable ".[$(EXTRAS)]"
	touch $(VENV)/.core $@

$(VENV)-lowest/.all: pyproject.toml release/lowest.py
	$(PYTHON) -m venv --clear $(VENV)-lowest
	$(PYTHON) release/lowest.py > $(VENV)-lowest/constraints.txt
	$(VENV)-lowest/bin/python -m pip --disable-pip-version-check install --quiet \
		--constraint $(VENV)-lowest/constraints.txt --editable ".[$(EXTRAS)]"
	touch $@
