# PinLater: `make demo` and `make test` are all a new machine needs; each gets what it lacks into .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SOURCES := $(shell find rust lua Cargo.toml Cargo.lock pyproject.toml -type f -not -path '*/target/*' 2>/dev/null)

.PHONY: demo demo-archive check test test-all bench bench-instructions bench-stalls load faults campaign clean setup wheel
.DEFAULT_GOAL := help

.PHONY: help
help:
	@printf '%s\n' 'make demo      thumbnails of 200 images by two worker processes, one killed on the way' \
	  'make demo-archive  a backlog of four times the memory of Redis goes to MariaDB and comes back (2 minutes)' \
	  'make check     formats, lint and types' \
	  'make test      the checks and the tests of each day (they start and stop their own servers); T=PATH runs a part' \
	  'make test-all  the checks and every test, as CI does' \
	  'make bench     the figures of the core and of tasks (minutes; a quiet machine)' \
	  'make bench-instructions  what a job costs in instructions, by valgrind' \
  'make bench-stalls  how long each call of a script holds the server (minutes)' \
	  'make load      200 users for 60 s on a Thrift service, by locust: USERS=200 T=60; checks that each job ran once' \
	  'make campaign  the long versions of the tests' \
	  'make faults    deliberate faults, each of which the tests of CI must notice' \
	  'make wheel     a wheel in dist/ for Linux distributions from 2014 on'

# Names what is missing on the machine, with the command that gets it.
.PHONY: check-machine
check-machine:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || \
	  { echo 'missing: Python 3.11 or later (make PYTHON=python3.12, or: apt-get install python3)'; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || { echo 'missing: the venv module (apt-get install python3-venv)'; exit 1; }
	@command -v cc >/dev/null || { echo 'missing: a C compiler (apt-get install gcc libc6-dev)'; exit 1; }
	@command -v cargo >/dev/null || { echo 'missing: Rust 1.85 or later (see rustup.rs, or: apt-get install rustup)'; exit 1; }

# The interpreter itself, not a link to it: the folder of the link may go, as that of .ci/without does.
$(VENV)/.tools: pyproject.toml | check-machine
	"$$($(PYTHON) -c 'import os, sys; print(os.path.realpath(sys.executable))')" -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1'
	$(BIN)/python -m pip install --quiet --group dev --group web
	$(BIN)/python -m pip install --quiet --group clock || echo 'libfaketime does not build here: tests that move a clock will be skipped'
	@touch $@

$(VENV)/.wheel-tools: $(VENV)/.tools
	$(BIN)/python -m pip install --quiet --group wheel
	@touch $@

$(VENV)/.load-tools: $(VENV)/.tools
	$(BIN)/python -m pip install --quiet --group load
	@touch $@

# The extension and the package, editable; again when Rust, Lua or the metadata change.
$(VENV)/.built: $(VENV)/.tools $(SOURCES)
	VIRTUAL_ENV=$(CURDIR)/$(VENV) $(BIN)/maturin develop --release --quiet --extras demo
	@touch $@

# Two makes side by side would fill one .venv at the same time: the second waits, then looks at what is left to do.
IN_TURN := $(if $(shell command -v flock 2>/dev/null),flock $(CURDIR)/Makefile) $(MAKE) --no-print-directory

setup: | check-machine
	@$(IN_TURN) $(VENV)/.built

demo: setup
	$(BIN)/pinlater demo $(FOLDER)

# It needs MariaDB (apt-get install mariadb-server).
demo-archive: setup
	$(BIN)/python -m pinlater.cli.demo.archive

# Side by side: mypy takes one core for as long as Clippy takes the other.
check: setup
	@$(MAKE) --no-print-directory --jobs 2 --output-sync lint types clippy

.PHONY: lint types
lint:
	$(BIN)/ruff check python tests benches examples
	cargo fmt --check
	cargo fmt --check --manifest-path rust/fuzz/Cargo.toml

types:
	$(BIN)/mypy

# In a target folder of its own: maturin sets variables for pyo3's build, and Cargo compiles pyo3 anew when they change.
.PHONY: clippy
clippy:
	cargo clippy --release --quiet --target-dir target/clippy -- -D warnings

# More processes than cores: half of the time tests wait. Each has servers of its own (PORT_SHARES in
# tests/support/servers.py limits their number). loadgroup gives one test at a time to whichever is free. Bytecode is
# kept: each process collects.
PYTEST = PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest
TOGETHER := -n 6 --dist loadgroup

# T=tests/worker/test_worker.py: that part, without the checks; one file in one process, as it collects but once.
test: $(if $(T),setup,check)
	$(PYTEST) $(if $(findstring .py,$(T)),,$(TOGETHER)) $(T)

test-all: check $(VENV)/.load-tools
	$(PYTEST) $(TOGETHER) -m 'not campaign' --durations=25 $(T)

bench: setup
	$(BIN)/python benches/native.py
	$(BIN)/python benches/core.py
	$(BIN)/python benches/tasks.py
	$(BIN)/python benches/worker.py $(if $(PEERS),--peers $(PEERS))
	$(BIN)/python benches/redelivery.py
	$(BIN)/python benches/archive.py

# BEFORE=FILE compares with what an earlier run wrote by --json; TREE=FOLDER counts another built checkout.
bench-instructions: setup
	$(BIN)/python benches/instructions.py $(if $(TREE),--tree $(TREE)) $(if $(BEFORE),--before $(BEFORE))

# A quiet machine; --sizes and --only of benches/stalls.py run a part.
bench-stalls: setup
	$(BIN)/python benches/stalls.py

# Without HOST=thrift://HOST:PORT or HOST=redis://HOST:PORT it starts a private server; KIND=direct: no Thrift. SHAPE=ramp,
# spike, sustained or backlog. PROCESSES=2: locust's workers. The report is in build/load.
load: setup
	@$(IN_TURN) $(VENV)/.load-tools
	$(BIN)/python benches/load/run.py $(if $(USERS),--users $(USERS)) $(if $(T),--seconds $(T)) $(if $(KIND),--kind $(KIND)) \
	  $(if $(SHAPE),--shape $(SHAPE)) $(if $(PROCESSES),--processes $(PROCESSES)) $(if $(HOST),--host $(HOST))

# The tests of CI must fail for each of some deliberate faults. T=archive: those whose names begin so.
faults: setup
	$(BIN)/python tests/faults.py $(T)

campaign: setup
	PINLATER_CAMPAIGN=1 $(PYTEST) -m '' --timeout 3600

wheel: | check-machine
	@$(IN_TURN) build-wheel

# zig links against the glibc of manylinux2014 (2.17), in a target folder of its own for the same reason.
.PHONY: build-wheel
build-wheel: $(VENV)/.wheel-tools
	rm -f dist/pinlater-*.whl
	PATH=$(CURDIR)/$(BIN):$$PATH $(BIN)/maturin build --release --quiet --zig --compatibility manylinux2014 \
	  --interpreter $(BIN)/python --target-dir target/wheel --out dist
	$(BIN)/auditwheel show dist/pinlater-*.whl

clean:
	rm -rf $(VENV) target dist build demo-output
