# Everything on a fresh machine: `make quickstart` and `make test`. Needs Python >= 3.10, make and a package index.
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
STAMP = $(VENV)/.installed

.PHONY: install quickstart test test-cluster soak lint audit bench clean

install: $(STAMP)

# Done again only when the dependencies change; the project itself is installed in place.
$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "Python 3.10 or newer is needed, this is " + sys.version.split()[0] + "; set PYTHON=...")'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing (about 5 GB with torch; some minutes, once)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]' 2>$(VENV)/pip.log || (cat $(VENV)/pip.log; exit 1)
	@touch $@

# A real sweep on embedded data: table, figure and the command for the UI. Run again, it runs no trial.
quickstart: install
	$(BIN)/python -m pcr_ray.sweep sweeps/quickstart.yaml

# Two at a time: half of it waits for servers and for Ray to start. A file's tests stay together, with what they share.
JOBS ?= 2
test: install
	$(BIN)/python -m pytest -n $(JOBS) --dist loadfile

# Several nodes, a real Slurm (skipped where it is not installed), Ray jobs, S3: 41 minutes on 2 busy cores.
CLUSTER_TESTS ?= tests/cluster
test-cluster: install
	$(BIN)/python -m pytest -m cluster $(CLUSTER_TESTS)

# Sweeps under random faults for an hour, every number compared: docs/reliability.md has a tally.
SOAK ?= --minutes 60 --seed 0
soak: install
	$(BIN)/python -m tests.soak $(SOAK)

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/bandit -q -c pyproject.toml -r pcr_ray trainables

# Known weaknesses of the installed packages. Asks a public service, so it is no part of `lint`.
audit: install
	$(BIN)/pip-audit --progress-spinner off --skip-editable

bench: install
	$(BIN)/python -m pcr_ray.bench $(BENCH)

clean:
	rm -rf $(VENV) build *.egg-info .pytest_cache .ruff_cache .mypy_cache
