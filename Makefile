# make repro: set up and run the whole pipeline. make test: set up and run the tests, all but those of many minutes.
# make lint: style and types.

PYTHON ?= python3
BIN := .venv/bin
READY := .venv/ready
RUN := PATH="$(CURDIR)/$(BIN):$$PATH"

.PHONY: setup repro lint test soak

setup: $(READY)

# bytecode is made on all cores, where pip takes one; files that packages carry for other versions of Python fail
$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --constraint constraints.txt --editable '.[dev]'
	$(BIN)/python -W ignore -m compileall -qq -j 0 -x '/tests/|/transformers/models/' .venv/lib || true
	touch $(READY)

repro: $(READY)
	$(RUN) dvc repro
	$(RUN) bertrio metrics

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# bytecode is kept, whatever the shell says: tests start hundreds of processes, which would each compile src/ anew
PYTEST = $(RUN) PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 python -m pytest --numprocesses auto --dist loadfile --no-loadscope-reorder

test: $(READY)
	$(PYTEST)

# kills every stage, 40 times in all, and compares bytes, fuzzes for longer and times growing inputs; the result goes into docs/reliability.md
soak: $(READY)
	$(RUN) python -m benchmarks.soak --kills 40 --seed 0 --into docs/reliability.md
	$(RUN) python -m pytest -m slow
