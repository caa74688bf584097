# Each target sets up what it needs; `make` alone lists them.
#
#   PYTHON=python3.12    the Python that .venv is made with; `make clean` first to change it
#   ARGS='-k journal'    passed on to pytest, to the demo, to the benchmark or to the cluster run
#   SIZE=1G              how much commit log the benchmark writes
#   STORE=/data/store    what `make cluster` rebuilds, in place of its story

PYTHON ?= python3
ARGS ?=
SIZE ?=
STORE ?=

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

# Relative names only: make would split an absolute one at the spaces of a path.
VENV := .venv
PIP := $(VENV)/bin/python -m pip --disable-pip-version-check
LIGHT := $(VENV)-light/bin/python -m pip --disable-pip-version-check
LOCK := env -u PIP_FIND_LINKS $(VENV)/bin/pip-compile --quiet --generate-hashes --allow-unsafe --strip-extras \
	--no-header --no-annotate --no-emit-index-url --no-emit-find-links --no-emit-trusted-host --no-emit-options

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-9s %s\n", $$1, $$2 }' Makefile

.PHONY: install
install: $(VENV)/bin/reput ## make .venv with .venv/bin/reput, from the lock file

.PHONY: light
light: ## make .venv-light with .venv-light/bin/reput, for what looks at a store: without Spark, and without Java
	$(PYTHON) -m venv --clear $(VENV)-light
	$(LIGHT) install --quiet --require-hashes -r requirements/build.txt -r requirements/light.txt
	$(LIGHT) install --quiet --no-deps --no-build-isolation .
	$(LIGHT) uninstall --quiet --yes pip setuptools

.PHONY: demo
demo: install ## rebuild a small store that comes with reput, and show what came out
	$(VENV)/bin/reput demo $(ARGS)

.PHONY: jars
jars: $(VENV)/dev ## fetch the jars that the tests need: RocketMQ's, Hadoop's and Delta Lake's, once per user
	PYTHONPATH=lib:. $(VENV)/bin/python -m tests.compat.jars

PYTEST := -m pytest --numprocesses 3 --dist loadfile --no-loadscope-reorder --durations 40

.PHONY: test
test: jars ## run the tests that each change has to pass, and a few with the oldest Spark
	$(if $(ARGS),,$(VENV)/bin/python -m tests.stacks oldest)
	$(VENV)/bin/python $(PYTEST) $(ARGS)

.PHONY: quick
quick: $(VENV)/dev ## run the fast tests, without a JVM, in two minutes
	REPUT_TESTS=quick $(VENV)/bin/python -m pytest --quiet --numprocesses 2 --dist worksteal $(ARGS)

.PHONY: every
every: export REPUT_TESTS := proof
every: jars browser ## run all tests, with every release and every example (ARGS=tests/compat/test_query.py)
	$(VENV)/bin/python $(PYTEST) $(or $(ARGS),--ignore tests/hosts)

.PHONY: proof
proof: $(VENV)/dev ## run all that a release is proven by, and go on where it ended (ARGS='fuzz hosts')
	PYTHONPATH=lib:. $(VENV)/bin/python -m tests.proof $(ARGS)

.PHONY: stacks
stacks: $(VENV)/dev ## run the tests that use Spark with Spark 4.0, 4.1 and 4.2, and write docs/data/stacks.md (ARGS='4.0 --only demo': print it)
	$(VENV)/bin/python -m tests.stacks $(or $(ARGS),--write)

.PHONY: lint
lint: $(VENV)/dev ## check format, style and types
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/ruff check .
	$(VENV)/bin/mypy

.PHONY: format
format: $(VENV)/dev ## put the code into the format that lint asks for
	$(VENV)/bin/ruff check --select I --fix .
	$(VENV)/bin/ruff format .

.PHONY: bench
bench: $(VENV)/dev ## measure a rebuild (SIZE=1G)
	$(VENV)/bin/python -m bench $(if $(SIZE),--size $(SIZE)) $(ARGS)

.PHONY: torture
torture: $(VENV)/dev ## kill a tail a hundred times, and count the bytes that differ (ARGS='--version 4.9.7')
	PYTHONPATH=lib:. $(VENV)/bin/python -m tests.torture $(ARGS)

.PHONY: day
day: $(VENV)/dev ## feed a day's messages through one tail, with restarts, expiry, cuts and a full disk (root; 2 hours)
	PYTHONPATH=lib:. $(VENV)/bin/python -m tests.torture.day $(ARGS)

.PHONY: hosts
hosts: jars ## rebuild over several hosts, made of namespaces, and harm them (root; Debian: glusterfs-server, faketime)
	REPUT_TESTS=proof $(VENV)/bin/python -m pytest tests/hosts $(ARGS)

.PHONY: compose
compose: $(VENV)/dev $(VENV)-compose/run ## build and run docker-compose.yml and conf/kubernetes' image by podman, harm it, compare (root; podman and more of Debian's)
	PYTHONPATH=lib:. $(VENV)/bin/python -m tests.compose --podman-compose $(VENV)-compose/bin/podman-compose $(ARGS)

.PHONY: fuzz
fuzz: $(VENV)/dev ## turn every bit of three small stores, and cut them at every length (ARGS='--limit 100')
	PYTHONPATH=lib:. $(VENV)/bin/python -m tests.fuzz $(ARGS)

.PHONY: fixed-point
fixed-point: $(VENV)/dev ## damage stores two and three ways at once, mend them, let brokers start (ARGS='--count 3000 --start 300')
	PYTHONPATH=lib:. $(VENV)/bin/python -m tests.fixed_point $(ARGS)

.PHONY: matrix
matrix: $(VENV)/dev ## damage stores in every way, let brokers and reput start on them, and write docs/data/recovery-matrix.md and tests/golden/starts
	PYTHONPATH=lib:. $(VENV)/bin/python -m tests.compat.matrix --write docs/data/recovery-matrix.md $(ARGS)
	PYTHONPATH=lib:. $(VENV)/bin/python -m tests.compat.rocksdb_matrix --write docs/data/recovery-matrix.md
	PYTHONPATH=lib:. $(VENV)/bin/python -m tests.compat.recorded

.PHONY: releases
releases: $(VENV)/dev ## let each release's own store write, rebuild what it wrote, and write the table in docs/data/releases.md (ARGS=4.8.0: print it)
	PYTHONPATH=lib:. $(VENV)/bin/python -m tests.compat.releases $(or $(ARGS),--write)

.PHONY: notebooks
notebooks: $(VENV)/dev ## run the notebooks, and write them back with their outputs and the pictures of docs/images
	PYTHONPATH=. $(VENV)/bin/python -m tests.execute_notebooks --pictures docs/images notebooks/*.ipynb

.PHONY: cluster
cluster: install ## broker, producer, Spark master, two workers and a tail, on this machine (STORE=DIR: a rebuild)
	PYTHONPATH=. $(VENV)/bin/python -m $(if $(STORE),tests.cluster '$(STORE)',tests.compat.story) $(ARGS)

.PHONY: site
site: $(VENV)/dev ## write the docs as a site into build/site
	$(VENV)/bin/sphinx-build -q -W --keep-going -b html -c docs . build/site
	@echo "build/site/index.html"

.PHONY: dist
dist: $(VENV)/dev ## build dist/, twice and the same, and try it with Python 3.10 to 3.13 (ARGS='--python 3.12')
	PYTHONPATH=lib:. $(VENV)/bin/python -m tests.distribution $(ARGS)

.PHONY: audit
audit: $(VENV)/dev ## ask PyPI's database of advisories about all locked versions; fails where it can't be asked
	@$(VENV)/bin/pip-audit --strict --progress-spinner off --require-hashes --disable-pip \
	    -r requirements/build.txt -r requirements/dev.txt || { \
	    echo "make audit: a version has a known hole, or not all could be asked about: nothing is proven" >&2; exit 1; }

.PHONY: licences
licences: $(VENV)/dev ## write the table of docs/data/licences.md anew, of what is locked
	PYTHONPATH=lib:. $(VENV)/bin/python -m tests.unit.test_licences

.PHONY: lock
lock: $(VENV)/dev ## write requirements/ anew from pyproject.toml (UPGRADE=1: to the newest versions)
	$(LOCK) $(if $(UPGRADE),--upgrade) --only-build-deps --build-deps-for editable -o requirements/build.txt pyproject.toml
	$(LOCK) $(if $(UPGRADE),--upgrade) --extra spark --extra remote --extra rocksdb -o requirements/run.txt pyproject.toml
	$(LOCK) -c requirements/run.txt -o requirements/light.txt pyproject.toml
	$(LOCK) $(if $(UPGRADE),--upgrade) -c requirements/run.txt --all-extras -o requirements/dev.txt pyproject.toml
	$(LOCK) $(if $(UPGRADE),--upgrade) -o requirements/compose.txt - <<< podman-compose

.PHONY: clean
clean: ## remove .venv and all that the other targets made
	rm -rf $(VENV) $(VENV)-light $(VENV)-stacks $(VENV)-compose build dist lib/*.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis spark-warehouse
	find bench jobs lib tests -name __pycache__ -prune -exec rm -rf {} + 2>/dev/null || true

# What isn't a Python package and can't be locked. Asked each time: it takes a tenth of a second.
.PHONY: prerequisites
prerequisites:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	    echo "reput needs Python 3.11 or later; $(PYTHON) is $$($(PYTHON) -V 2>/dev/null || echo missing)." >&2; \
	    echo "Name another one: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	    echo "$(PYTHON) can't make virtual environments (on Debian and Ubuntu: install python3-venv)." >&2; exit 1; }
	@java="$${JAVA_HOME:+$$JAVA_HOME/bin/}java"; \
	 found=$$("$$java" -version 2>&1 | sed -n 's/.* version "\([0-9._]*\).*/\1/p' | head -n 1 || true); \
	 case $${found%%.*} in \
	    17|21) ;; \
	    ''|[1-9]|1[0-6]) \
	        echo "reput needs Java 17 or later (17 and 21 are known to work); $$java is $${found:-missing}." >&2; \
	        echo "Install one (on Debian and Ubuntu: openjdk-17-jdk-headless), or let JAVA_HOME name it." >&2; exit 1;; \
	    *) echo "note: this is Java $$found; 17 and 21 are known to work" >&2;; \
	 esac

# For the tests of the page that `reput report` writes. Debian's is installed where nobody has to be asked.
CHROMES := chromium chromium-browser google-chrome google-chrome-stable

.PHONY: browser
browser: ## find a browser for the tests, or install Debian's Chromium
	@found() { for name in "$${CHROME:-}" $(CHROMES); do \
	    if [[ -n $$name ]] && command -v "$$name" >/dev/null; then return 0; fi; done; return 1; }; \
	 if found; then exit 0; fi; \
	 as=; \
	 if [[ $$(id -u) != 0 ]]; then as="sudo -n"; fi; \
	 if command -v apt-get >/dev/null && $$as true 2>/dev/null; then \
	    echo "Installing Chromium, for the tests" >&2; \
	    $$as apt-get -qq update && \
	    $$as env DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends \
	        chromium fonts-liberation >/dev/null && found && exit 0; \
	 fi; \
	 echo "The tests need a browser; none of $(CHROMES) is there, and none could be installed." >&2; \
	 echo "Install one (on Debian: apt-get install chromium), or let CHROME name it." >&2; exit 1

# Spark comes as source only: without build isolation it is built with the setuptools of build.txt.
$(VENV)/run: requirements/build.txt requirements/run.txt | prerequisites
	$(PYTHON) -m venv --clear $(VENV)
	$(PIP) install --quiet --require-hashes -r requirements/build.txt
	$(PIP) install --quiet --require-hashes --no-build-isolation --use-pep517 -r requirements/run.txt
	touch $@

$(VENV)/bin/reput: $(VENV)/run pyproject.toml | prerequisites
	$(PIP) install --quiet --no-deps --no-build-isolation -e .
	@# Where PYTHONDONTWRITEBYTECODE is set, each command would compile all modules anew: 0.1 to 0.3 s.
	$(VENV)/bin/python -m compileall -q lib
	@# Spark starts in half the time with it; without it all works, too.
	$(VENV)/bin/reput doctor --no-spark --class-archive make >/dev/null || true
	touch $@

# Apart: it is of another licence than all that reput is made with.
$(VENV)-compose/run: requirements/compose.txt | prerequisites
	$(PYTHON) -m venv --clear $(VENV)-compose
	$(VENV)-compose/bin/python -m pip --disable-pip-version-check install --quiet --require-hashes -r requirements/compose.txt
	touch $@

$(VENV)/dev: $(VENV)/run requirements/dev.txt | $(VENV)/bin/reput
	$(PIP) install --quiet --require-hashes --no-build-isolation --use-pep517 -r requirements/dev.txt
	$(VENV)/bin/python -m compileall -q bench tests
	touch $@
