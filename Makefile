# Everything here works on a fresh machine with python3, a C++ compiler and make. The CUDA half is
# built where an nvcc of torch's CUDA major is found.
#
#   make demo      set up, build, and show the three workloads in a table
#   make test      set up, lint, build the wheel, try it with two versions of torch
#   make develop   set up and build in place: `.venv/bin/python` then imports this checkout
#   make gpu-test  build in place with the torch of $(PYTHON) and run the tests that need a GPU
#   make sanitize  the engines under compute-sanitizer's four tools, after gpu-test's build
#   make docs      the documentation as a site in build/site; broken links are errors
#   make lint format wheel clean distclean

PYTHON ?= python3
VENV ?= .venv
COMPAT_VENV ?= .venv-compat
TORCH_VERSION ?= 2.11.0
COMPAT_TORCH_VERSION ?= 2.13.0
DEPENDENCIES ?= build docs lint test
WORKERS ?= 2
PYTEST_ARGS ?=

# Of this machine's GPUs, or of the reference GPU; a release has more (.github/build-matrix.json).
GPU_ARCHS := $(shell nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null \
               | grep '^[0-9.]*$$' | sort -u | sed 's/^9\.0$$/9.0a/')
export TORCH_CUDA_ARCH_LIST ?= $(or $(GPU_ARCHS),9.0a)
export PIP_DISABLE_PIP_VERSION_CHECK = 1
# Python must not take conv2d_ext from the current folder: the checkout's has no libraries. For the
# same reason the tests are started with `pytest` and not with `python -m pytest`, which would put
# the current folder on sys.path, and the demo with `convx` instead of `python -m conv2d_ext`.
INSTALLED = env PYTHONSAFEPATH=1 CONVX_WHEEL="$$(ls $(CURDIR)/dist/convx-*.whl)"
# One thread per worker: the workers share the cores.
ONE_THREAD = env OMP_NUM_THREADS=1 MKL_NUM_THREADS=1

BIN = $(VENV)/bin
ENV_READY = $(VENV)/.ready-$(TORCH_VERSION)
COMPAT_READY = $(COMPAT_VENV)/.ready-$(COMPAT_TORCH_VERSION)
WHEEL = dist/.built
INSTALL = $(VENV)/.installed
COMPAT_INSTALL = $(COMPAT_VENV)/.installed
SOURCES := $(shell find csrc conv2d_ext -type f \
             ! -name '*.so' ! -name '*.pyc' ! -name '_build_info.json')
CXX_FILES := $(shell find csrc -name '*.h' -o -name '*.cpp' -o -name '*.cu' -o -name '*.cuh' -o -name '*.inl')

.PHONY: demo test develop gpu-test sanitize lint docs format wheel smoke pytest clean distclean
.NOTPARALLEL:
.DELETE_ON_ERROR:

demo: $(INSTALL)
	$(BIN)/convx demo

test: lint docs smoke pytest

# The whole suite, against the wheel as installed.
pytest: $(INSTALL)
	$(INSTALLED) $(ONE_THREAD) $(BIN)/pytest -n $(WORKERS) $(PYTEST_ARGS)

# The wheel that was built with one torch also works with another.
smoke: $(COMPAT_INSTALL)
	$(INSTALLED) $(COMPAT_VENV)/bin/pytest -q tests/packaging/smoke.py

lint: $(ENV_READY)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	@echo "clang-format --dry-run -Werror (csrc)" && $(BIN)/clang-format --dry-run -Werror $(CXX_FILES)
	$(BIN)/mypy
	$(BIN)/check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml
	$(BIN)/zizmor --offline --no-progress --quiet .github

docs: $(ENV_READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict --site-dir build/site

format: $(ENV_READY)
	$(BIN)/ruff check --fix
	$(BIN)/ruff format
	@$(BIN)/clang-format -i $(CXX_FILES)

wheel: $(WHEEL)

develop: $(ENV_READY)
	rm -f $(INSTALL)
	$(BIN)/pip install --no-build-isolation --no-deps -e .

gpu-test:
	$(PYTHON) setup.py build_ext --inplace
	$(ONE_THREAD) $(PYTHON) -m pytest -m gpu $(PYTEST_ARGS)

SANITIZE = compute-sanitizer --error-exitcode 1 --print-limit 5 --tool

SANITIZE_PARTS ?= 4

sanitize:
	for tool in memcheck racecheck initcheck synccheck; do jobs=; \
	  for part in $$(seq $(SANITIZE_PARTS)); do \
	    CONVX_SANITIZER=$$tool $(SANITIZE) $$tool $(PYTHON) tests/engines/sanitize.py $$part/$(SANITIZE_PARTS) & \
	    jobs="$$jobs $$!"; done; \
	  for job in $$jobs; do wait $$job || exit 1; done; done

$(ENV_READY): pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet 'pip>=25.1'
	$(BIN)/pip install --quiet torch==$(TORCH_VERSION) $(DEPENDENCIES:%=--group %)
	rm -f $(VENV)/.ready-* && touch $@

$(COMPAT_READY):
	test -x $(COMPAT_VENV)/bin/python || $(PYTHON) -m venv $(COMPAT_VENV)
	$(COMPAT_VENV)/bin/pip install --quiet torch==$(COMPAT_TORCH_VERSION) numpy pytest
	rm -f $(COMPAT_VENV)/.ready-* && touch $@

# build/lib is removed, since a file that was deleted from the sources would stay in it and get into
# the wheel; build/temp stays, so that only what changed is compiled.
$(WHEEL): $(ENV_READY) $(SOURCES) setup.py pyproject.toml README.md LICENSE
	rm -rf dist build/lib* build/bdist*
	$(BIN)/python -m build --wheel --no-isolation
	touch $@

$(INSTALL): $(WHEEL)
	$(BIN)/pip install --quiet --no-deps --force-reinstall dist/*.whl
	touch $@

$(COMPAT_INSTALL): $(COMPAT_READY) $(WHEEL)
	$(COMPAT_VENV)/bin/pip install --quiet --no-deps --force-reinstall dist/*.whl
	touch $@

clean:
	rm -rf build dist *.egg-info conv2d_ext/*.so conv2d_ext/_build_info.json
	rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -not -path './.venv*' -prune -exec rm -rf {} +

distclean: clean
	rm -rf $(VENV) $(COMPAT_VENV)
