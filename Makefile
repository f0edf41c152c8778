# Targets: quickstart, test, test-slow, check, format. Everything is installed into $(VENV) by pip.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
export RAY_USAGE_STATS_ENABLED := 0
export MLFLOW_DISABLE_TELEMETRY := true

.PHONY: quickstart test test-slow check format clean

quickstart: $(VENV)/.installed
	$(BIN)/deyo-sweep run experiments/quickstart.yaml

test: $(VENV)/.installed-test
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder \
	  -m "not slow and not cluster and not browser and not postgres and not data"

# Several hosts, a browser, PostgreSQL, chaos, every spec in its reduced form, real data (DEYO_TEST_DATA).
test-slow: $(VENV)/.installed-test
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder -rs \
	  -m "(slow or browser or postgres or data) and not cluster"
	$(BIN)/python -m pytest -m cluster -rs

check: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(VENV)/.installed-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --editable .
	touch $@

$(VENV)/.installed-test: pyproject.toml $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --editable ".[test]"
	touch $@

$(VENV)/.installed-dev: pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet "ruff>=0.17,<0.18"
	touch $@

clean:
	rm -rf build dist *.egg-info .pytest_cache .ruff_cache .hypothesis
