# Each target but `gpu` sets up a virtual environment first; that needs Python 3.11 or newer with venv. With Python 3.11 the versions in
# constraints.txt are installed, with a newer Python the newest that satisfy pyproject.toml.
#
#   make demo    train the digits example from its YAML, print a summary, write runs/digits/report.html
#   make test    lint, types, import contracts, tests, doctests; as root it installs Chromium, for the tests of the page, with apt-get
#                `make types` and `make doctests` for these parts of it
#   make bench   what watching costs, into benchmarks/RESULTS.md; FULL=1 for longer runs, MACHINE=h100 for a second machine
#   make matrix  the tests with other versions, into docs/versions.md; ONLY="floors newest" for some, hours and 6 GB of disk for all
#   make gpu     on a machine with a CUDA GPU: its tests, then what watching costs there; DEVICE=cpu tries it without one
#   make wheels  build the compiled and the pure wheel, check them, run each in a bare environment; AARCH64=1 emulates that too
#   make clients train packages built on Lightning, plain and watched, into docs/clients.md; CLIENTS="darts gluonts" for some
#   make gallery  all healthy and faulty trainings at three seeds, into docs/health.md, docs/check.md and docs/baselines.md;
#                 SEEDS=0 for one seed; PEERS=1 for other packages
#   make site    build the documentation site into build/site/html; a warning is an error
#   make links   ask for every address that the site names outside of itself
#   make clean   remove what the targets made

PYTHON ?= python3
# Tests wait for browsers, for other processes and for the disk: three workers keep two cores busy.
WORKERS ?= 3
DEVICE ?= cuda
# To avoid gigabytes of CUDA packages, add PyTorch's CPU index. pip prefers 2.13.0+cpu there to 2.13.0 on PyPI, which has the rest:
#   make test PIP_TORCH="--extra-index-url https://download.pytorch.org/whl/cpu"
PIP_TORCH ?=
# Every extra: the tests use all of them. The groups of developers need pip 25.1.
EXTRAS := capture,cli,lightning,pandas,pytorch-lightning,torchjd,transformers
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# constraints.txt is for Python 3.11.
PINNED := $(if $(filter 3.11,$(shell $(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])')),-c constraints.txt)
TORCH := $(if $(PINNED),$(shell grep '^torch==' constraints.txt),torch)
# Tests start hundreds of processes. Each compiles the whole package in 1 s, unless one may keep what it has compiled.
export PYTHONDONTWRITEBYTECODE :=
# Each worker has one thread: workers with two threads each, on two cores, wait for one another most of the time.
# These tests run a second time with what serves where nothing is compiled: plain torch, the general hooks and TensorBoard. The
# same code serves beside the compiled part too, for what the compiled part declines; so these are the tests that hold how a
# table, a module's hooks, a trail and an event file are written where nothing else writes them.
FALLBACK := $(patsubst %,tests/stats/test_%.py,table accuracy) tests/stats/kernels/test_trail.py \
	$(patsubst %,tests/hooks/test_%.py,action module_hooks) tests/tensorboard/test_template.py \
	$(patsubst %,tests/engine/watching/test_%.py,pairs snapshots) \
	$(patsubst %,tests/conformance/test_%.py,accumulation checkpointing copies)

.PHONY: demo test types doctests bench matrix gpu wheels clients gallery site links clean

demo: $(READY)
	rm -rf runs/digits
	$(BIN)/lightning-hooks fit --config configs/digits.yaml
	@echo
	$(BIN)/python examples/findings.py runs/digits
	@echo
	$(BIN)/lightning-hooks doctor runs/digits
	@echo
	$(BIN)/lightning-hooks report runs/digits
	@echo "See the run: open runs/digits/report.html, or run $(BIN)/lightning-hooks view runs, or $(BIN)/tensorboard --logdir runs (tab Hooks)"

test: $(READY)
	.ci/chromium
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(MAKE) --no-print-directory --output-sync=target -j2 types doctests
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal
	OMP_NUM_THREADS=1 LIGHTNING_HOOKS_KERNEL=reference $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -m "not slow" $(FALLBACK)

# Each of these two has one thread, so `test` runs them side by side.
types: $(READY)
	$(BIN)/mypy

doctests: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --doctest-modules lightning_hooks

bench: $(READY)
	$(BIN)/python -m pip install --quiet -c constraints.txt --group bench
	FULL=$(FULL) $(BIN)/python -m benchmarks.run $(if $(MACHINE),--machine $(MACHINE))

matrix: $(READY)
	$(BIN)/python -m tests.environments.matrix $(ONLY)

# With the interpreter and the packages that are there, from this folder: nothing is installed or fetched. Done in nine minutes.
gpu:
	$(PYTHON) -m benchmarks.gpu --device $(DEVICE)

wheels:
	PYTHONS="$(PYTHONS)" VENVS="$(VENVS)" AARCH64="$(AARCH64)" .ci/wheels

clients: $(READY)
	$(BIN)/python -m tests.environments.clients $(CLIENTS)

# What `make test` tries of a sample: that each training is built anew and has its fault. The commands before run the rest.
GALLERY_TESTS := $(patsubst %,tests/galleries/%,checks/test_catalogue.py health/test_catalogue.py health/test_symptoms.py recorder)
# With PEERS=1 other packages run the same trainings at seed 0; what is recorded in peers.jsonl is not run again.
gallery: $(READY)
	$(BIN)/python -m $(if $(PEERS),tests.environments.peers,galleries.health.run)
	$(BIN)/python -m galleries.health.table
	$(BIN)/python -m galleries.readme
	$(BIN)/python -m galleries.checks.run $(if $(PEERS),--peer)
	$(BIN)/python -m galleries.reference.run
	$(BIN)/python -m galleries.reference.table
	OMP_NUM_THREADS=1 GALLERY=all $(BIN)/python -m pytest -n $(WORKERS) $(GALLERY_TESTS)

SITE := build/site
SPHINX := $(BIN)/python -m sphinx --fail-on-warning --keep-going --quiet -c website $(SITE)/source

# The pages of `lightning-hooks explain` are a part of the package: a test says when they are to be written anew.
site: $(SITE)/source
	rm -rf $(SITE)/html
	$(SPHINX) $(SITE)/html --builder html
	@echo "open $(SITE)/html/index.html"

links: $(SITE)/source
	$(SPHINX) $(SITE)/links --builder linkcheck

# Assembled anew each time: it depends on what does not exist.
$(SITE)/source: $(READY) always
	$(BIN)/python -m pip install --quiet $(PINNED) --group docs
	$(BIN)/python -m website.assemble $@

always:

# Rebuilt when the versions, the metadata (entry points, dependencies) or the compiled part change.
$(READY): constraints.txt pyproject.toml setup.py $(wildcard lightning_hooks/backends/src/*)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and \
		"lightning_hooks needs Python 3.11 or newer, found %d.%d: run make PYTHON=python3.11 ..." % sys.version_info[:2])'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1'
	$(BIN)/python -m pip install --quiet $(PINNED) $(PIP_TORCH) $(TORCH)
	$(BIN)/python -m pip install --quiet $(PINNED) --group dev -e '.[$(EXTRAS)]'
	touch $@

clean:
	rm -rf $(VENV) runs build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	rm -f lightning_hooks/backends/*.so
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
