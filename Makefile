# Everything here works on a fresh machine with python3, a C++ compiler and make. The CUDA half is
# built where an nvcc of torch's CUDA major is found.
#
#   make demo      set up, build for this machine, and show the three workloads in a table; without a
#                  GPU the CPU half alone, within minutes
#   make test      set up, lint, build the wheel, test it, try it with two versions of torch
#   make develop   set up and build in place: `.venv/bin/python` then imports this checkout
#   make gpu-test  build in place with the torch of $(PYTHON) and run the tests that need a GPU
#   make sanitize  the engines under compute-sanitizer's four tools, after gpu-test's build
#   make docs      the documentation as a site in build/site; broken links are errors
#   make cross     compile the core library for the other machine type (x86-64 or aarch64)
#   make matrix    ask the package registries whether every torch of the build matrix exists
#   make lint format wheel clean distclean

PYTHON ?= python3
VENV ?= .venv
COMPAT_VENV ?= .venv-compat
DEMO_VENV ?= .venv-demo
TORCH_VERSION ?= 2.11.0
COMPAT_TORCH_VERSION ?= 2.13.0
DEPENDENCIES ?= build docs lint test
WORKERS ?= 2
PYTEST_ARGS ?=

# The architectures of this machine's GPUs, or of the reference GPU if there is none. A release has
# more (.github/build-matrix.json).
GPU_ARCHS := $(shell nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null \
               | grep '^[0-9.]*$$' | sort -u | sed 's/^9\.0$$/9.0a/')
export TORCH_CUDA_ARCH_LIST ?= $(or $(GPU_ARCHS),9.0a)
export PIP_DISABLE_PIP_VERSION_CHECK = 1
# Python must not import conv2d_ext from the current folder: the checkout has no libraries. For the
# same reason the tests are started with `pytest` and not with `python -m pytest`, which would put
# the current folder on sys.path, and the demo with `convx` instead of `python -m conv2d_ext`.
INSTALLED = env PYTHONSAFEPATH=1 CONVX_WHEEL="$$(ls $(CURDIR)/dist/conv2d_ext-*.whl)"
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

# The demo has an environment and a build folder of its own, so that `make test` still builds and
# checks both halves. Without a GPU it builds the CPU half with a CPU build of torch, a tenth of the
# download; pip takes it from PyTorch's index, and from PyPI where that index cannot be reached.
ifeq ($(GPU_ARCHS),)
DEMO_TORCH ?= $(COMPAT_TORCH_VERSION)
DEMO_INDEX ?= --retries 1 --timeout 15 --extra-index-url https://download.pytorch.org/whl/cpu
DEMO_BUILD = CONVX_CUDA=0
else
DEMO_TORCH ?= $(TORCH_VERSION)
endif
DEMO_READY = $(DEMO_VENV)/.ready-$(DEMO_TORCH)
DEMO_INSTALL = $(DEMO_VENV)/.installed

# The machine type that this machine is not.
CROSS_MACHINE = $(if $(filter aarch64 arm64,$(shell uname -m)),x86_64,aarch64)
CROSS_CXX ?= $(CROSS_MACHINE)-linux-gnu-g++
CROSS_PACKAGE = g++-$(subst _,-,$(CROSS_MACHINE))-linux-gnu

.PHONY: demo test develop gpu-test sanitize lint docs format wheel smoke pytest cross matrix clean distclean
.NOTPARALLEL:
.DELETE_ON_ERROR:

demo: $(DEMO_INSTALL)
	@$(DEMO_VENV)/bin/convx demo

test: lint matrix docs cross smoke pytest

# The whole suite, against the wheel as installed.
pytest: $(INSTALL)
	$(INSTALLED) $(ONE_THREAD) $(BIN)/pytest -n $(WORKERS) $(PYTEST_ARGS)

# The wheel that was built with one torch also works with a second one.
smoke: $(COMPAT_INSTALL)
	$(INSTALLED) $(COMPAT_VENV)/bin/pytest -q tests/packaging/smoke.py

lint: $(ENV_READY)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	@echo "clang-format --dry-run -Werror (csrc)" && $(BIN)/clang-format --dry-run -Werror $(CXX_FILES)
	$(BIN)/mypy
	$(BIN)/check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml
	$(BIN)/check-jsonschema --builtin-schema vendor.github-actions .github/actions/*/action.yml
	$(BIN)/check-jsonschema --builtin-schema vendor.dependabot .github/dependabot.yml
	$(BIN)/check-jsonschema --builtin-schema vendor.github-issue-forms .github/ISSUE_TEMPLATE/bug.yml
	$(BIN)/zizmor --offline --no-progress --quiet .github

docs: $(ENV_READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict --site-dir build/site

matrix: $(ENV_READY)
	$(BIN)/python .github/scripts/check_matrix.py

cross: $(ENV_READY)
	@if command -v $(CROSS_CXX) > /dev/null; then \
	  $(BIN)/python tests/packaging/cross_compile.py $(CROSS_CXX) build/cross; \
	else \
	  echo "skipped: the core library for $(CROSS_MACHINE), since $(CROSS_PACKAGE) is not installed"; \
	fi

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

# racecheck follows so many mbarriers of a block; by default, too few for cuda_weight_grad.
sanitize:
	for tool in memcheck 'racecheck --num-cuda-barriers 1024' initcheck synccheck; do jobs=; \
	  for part in $$(seq $(SANITIZE_PARTS)); do \
	    CONVX_SANITIZER=$${tool%% *} $(SANITIZE) $$tool $(PYTHON) tests/engines/sanitize.py $$part/$(SANITIZE_PARTS) & \
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

$(DEMO_READY): pyproject.toml
	@echo "setting up $(DEMO_VENV) with torch $(DEMO_TORCH)"
	@test -x $(DEMO_VENV)/bin/python || $(PYTHON) -m venv $(DEMO_VENV)
	@$(DEMO_VENV)/bin/python -m pip install -qq 'pip>=25.1'
	@$(DEMO_VENV)/bin/pip install -qq --no-deps $(DEMO_INDEX) torch==$(DEMO_TORCH)
	@$(DEMO_VENV)/bin/pip install -qq torch==$(DEMO_TORCH) numpy --group build
	@rm -f $(DEMO_VENV)/.ready-* && touch $@

$(DEMO_INSTALL): $(DEMO_READY) $(SOURCES) setup.py README.md LICENSE
	@rm -rf build/demo/lib* build/demo/dist && mkdir -p build/demo
	@echo "building $(or $(GPU_ARCHS:%=for %),the CPU half); build/demo/log has the compiler's output"
	@$(DEMO_BUILD) $(DEMO_VENV)/bin/python setup.py --quiet build --build-base build/demo \
	  bdist_wheel --bdist-dir build/demo/bdist --dist-dir build/demo/dist > build/demo/log 2>&1 \
	  || { tail -n 40 build/demo/log; exit 1; }
	@grep --max-count=1 '^convx: ' build/demo/log
	@$(DEMO_VENV)/bin/pip install --quiet --no-deps --force-reinstall build/demo/dist/*.whl
	@touch $@

# build/lib is removed, since a file that was deleted from the sources would stay in it and get into
# the wheel. build/temp stays, so that only changed sources are compiled.
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
	rm -rf $(VENV) $(COMPAT_VENV) $(DEMO_VENV)
