# Everything here works from a fresh clone with only python3 and make.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PARITY_VENV ?= .venv-parity
PARITY_BIN := $(PARITY_VENV)/bin
PARITY_STAMP := $(PARITY_VENV)/.installed

.PHONY: demo test test-slow test-learning test-gpu test-parity lint types format docs check clean install

demo: $(STAMP)  ## a whole RL run on CPU, and a report to look at
	$(BIN)/whet demo

# Two workers with a thread each are twice as fast on small models as one with two.
test: $(STAMP)  ## the default suite: two CPU cores, under twelve minutes
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile

test-slow: $(STAMP)
	$(BIN)/python -m pytest -m slow

test-learning: $(STAMP)  ## every method on three seeds
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 -m learning

test-gpu: $(STAMP)
	$(BIN)/python -m pytest -m gpu

test-parity: $(PARITY_STAMP)  ## our losses against TRL's on the same tensors, in a venv of their own
	HF_HUB_OFFLINE=1 $(PARITY_BIN)/python -m pytest -m parity tests/parity

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)
	$(BIN)/mypy

format: $(STAMP)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: $(STAMP)  ## docs/algorithms.md from its template and the table
	$(BIN)/python -m whet.train.algorithm_page docs/algorithms.template.md docs/algorithms.md

check: lint types test

install: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

$(PARITY_STAMP): pyproject.toml constraints.txt tests/parity/requirements.txt
	$(PYTHON) -m venv $(PARITY_VENV)
	$(PARITY_BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e . -r tests/parity/requirements.txt
	@touch $@

clean:
	rm -rf $(VENV) $(PARITY_VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
