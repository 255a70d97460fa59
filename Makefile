# The project's commands; `make help` lists them. Each installs what it needs into $(VENV) first, once.
#
#   PYTHON=python3.10      interpreter for a new $(VENV); default: the first fit of python3.11, python3.10, python3
#   VENV=.venv             where everything is installed
#   RLLIB_VENV=.venv-rllib where RLlib is, which pins an old Gymnasium
#   DEMO_ARGS=             options for `fleet-gym demo`, e.g. DEMO_ARGS="--dynamics physics"
#   PYTEST_ARGS=           options for pytest, e.g. PYTEST_ARGS="-x --durations=20"

VENV ?= .venv
RLLIB_VENV ?= .venv-rllib
PYTHON ?=
DEMO_ARGS ?=
PYTEST_ARGS ?=
# One file stays on one worker: module fixtures compile, load URDFs and encode only once.
PYTEST_WORKERS ?= -n 2 --dist loadfile
# These measure the memory of their own process, so each file gets one to itself, and other tests none of it.
MEMORY_TESTS := tests/profiling/test_growth.py tests/profiling/test_native_phases.py tests/profiling/test_signals.py \
	tests/testing/test_leaks.py tests/testing/test_leaks_house.py \
	tests/wrappers/test_memory_profiling.py tests/wrappers/test_memory_profiling_leaks.py
# What is known to depend on Gymnasium's version.
GYMNASIUM_TESTS := tests/adapters tests/test_package.py tests/test_single_env.py tests/test_vector_env.py \
	tests/wrappers/test_camera_obs_video_recorder.py tests/wrappers/test_camera_obs_video_recorder_episodes.py \
	tests/wrappers/test_camera_obs_video_recorder_fleet.py tests/wrappers/test_flatten_robots.py \
	tests/wrappers/test_time_profiling.py

BIN := $(VENV)/bin
INSTALL := sh scripts/pip_install.sh $(BIN)/python

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test test-most test-memory test-integrations test-rllib lint docs bench clean

help: ## show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/\1|\2/' | \
		while IFS='|' read -r target text; do printf '  make %-18s %s\n' "$$target" "$$text"; done

demo: $(VENV)/.stamp-core ## drive a fleet to its goals; leaves videos and a memory report in fleet-gym-demo/
	@$(BIN)/fleet-gym demo $(DEMO_ARGS)

test: test-most test-memory ## run the tests (no root, no system packages)

test-most: $(VENV)/.stamp-test
	$(BIN)/python -m pytest -q $(PYTEST_WORKERS) --ignore=tests/integration $(MEMORY_TESTS:%=--ignore=%) $(PYTEST_ARGS)

test-memory: $(VENV)/.stamp-test
	@for file in $(MEMORY_TESTS); do echo "$$file"; $(BIN)/python -m pytest -q "$$file" $(PYTEST_ARGS) || exit 1; done

test-integrations: $(VENV)/.stamp-integration ## run the tests against fresh clones, browsers, trainers (as root: all)
	@sh scripts/system_packages.sh
	@test "$$(id -u)" -eq 0 || echo "not root: tests/integration/*_as_root.py are left out"
	$(BIN)/python -m pytest -q tests/integration --ignore=tests/integration/rllib \
		$$(test "$$(id -u)" -eq 0 || echo "--ignore-glob=*_as_root.py") $(PYTEST_ARGS)
	@$(MAKE) --no-print-directory test-rllib

test-rllib: ## run RLlib on fleets, and on the Gymnasium it pins (our oldest) what depends on Gymnasium
	@$(MAKE) --no-print-directory VENV=$(RLLIB_VENV) $(RLLIB_VENV)/.stamp-integration-rllib
	$(RLLIB_VENV)/bin/python -m pytest -q $(PYTEST_WORKERS) tests/integration/rllib $(GYMNASIUM_TESTS) $(PYTEST_ARGS)

lint: $(VENV)/.stamp-lint ## check style, format and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: $(VENV)/.stamp-docs ## build the documentation into site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

bench: $(VENV)/.stamp-examples ## run every benchmark, one after the other
	@for script in benchmarks/*.py; do echo "== $$script"; $(BIN)/python "$$script" || exit 1; done

clean: ## remove $(VENV), $(RLLIB_VENV) and everything built
	rm -rf $(VENV) $(RLLIB_VENV) build dist site fleet-gym-demo *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find fleet_gym tests benchmarks examples -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/.stamp-venv:
	@python=$$(sh scripts/find_python.sh $(PYTHON)) && echo "creating $(VENV) with $$python" && "$$python" -m venv $(VENV)
	@touch $@

$(VENV)/.stamp-core: pyproject.toml $(VENV)/.stamp-venv
	@echo "installing fleet_gym into $(VENV) (about 1 GB, a minute or more)"
	@$(INSTALL) -e .
	@touch $@

# .stamp-test, .stamp-integration, .stamp-lint, .stamp-docs: the extra of that name
$(VENV)/.stamp-%: pyproject.toml $(VENV)/.stamp-venv
	@echo "installing fleet_gym[$*] into $(VENV) (about 1 GB, a minute or more)"
	@$(INSTALL) -e ".[$*]"
	@touch $@
