# make repro: set up and run the whole pipeline. make test: set up and run all tests.

PYTHON ?= python3
BIN := .venv/bin
READY := .venv/ready
RUN := PATH="$(CURDIR)/$(BIN):$$PATH"

.PHONY: setup repro test

setup: $(READY)

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	touch $(READY)

repro: $(READY)
	$(RUN) dvc repro
	$(RUN) bertrio metrics

test: $(READY)
	$(RUN) python -m pytest
