# Everything runs from .venv, made on first use and again when pyproject.toml changes.
#   make chat     talk to the default model        make lint    ruff and mypy
#   make test     the test suite                   make soak    the tests with large counts
#   make screenshots   pictures of the web page in docs/
#   make bench    speed, and how fast a cancel is  make docs    what is generated in docs/ and completions/
# ARGS="…" is passed on:  make test ARGS="-k config"

PYTHON ?= $(firstword $(foreach p,python3 python3.14 python3.13 python3.12 python3.11,\
	$(shell $(p) -c 'import sys; sys.version_info >= (3, 11) and print("$(p)")' 2>/dev/null)))
BIN = .venv/bin
PIP = $(BIN)/python -m pip --disable-pip-version-check

.PHONY: chat test lint soak bench docs screenshots clean

chat: .venv/.installed
	@$(BIN)/python -m exocli chat --pull $(ARGS)

test: .venv/.dev
	$(BIN)/python -m pytest -n auto --maxprocesses 4 --dist loadfile --no-loadscope-reorder $(ARGS)

soak: .venv/.dev
	$(BIN)/python -m pytest -m soak $(ARGS)

lint: .venv/.dev
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

bench: .venv/.installed
	@$(BIN)/python -m exocli bench --pull $(ARGS)

docs: .venv/.dev
	$(BIN)/python docs/generate.py

screenshots: .venv/.dev
	$(BIN)/python -m tests.web.screenshots $(ARGS)

clean:
	rm -rf .venv build dist

# A newer pip than Python brings resolves and installs in a third of the time.
$(BIN)/pip:
	@echo "Making .venv …" >&2
	@test -n "$(PYTHON)" || { echo "exo needs Python 3.11 or newer, and no such python3 is on PATH." >&2; exit 1; }
	@$(PYTHON) -m venv .venv || { rm -rf .venv; \
	  echo "$(PYTHON) cannot make a virtual environment; on Debian and Ubuntu: apt install python3-venv" >&2; exit 1; }
	@$(PIP) install -q --upgrade pip

.venv/.installed: pyproject.toml | $(BIN)/pip
	$(PIP) install -e .
	@touch $@

.venv/.dev: pyproject.toml tests/plugins/exo-sample/pyproject.toml | $(BIN)/pip
	$(PIP) install -e '.[dev]' -e tests/plugins/exo-sample
	@touch $@ .venv/.installed
