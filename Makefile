# Everything runs in .venv, which `make setup` builds with any Python from 3.11 on:
#     make test PYTHON=python3.12

PYTHON ?= python3
# Three workers, on two cores as well: most of what a scenario takes is waiting.
# A worker that dies has met a defect that no test can report: the run ends there.
PYTEST_FLAGS ?= -n 3 --dist loadgroup --max-worker-restart 0

VENV := .venv
BIN := $(VENV)/bin
DEMO := $(VENV)/.installed-demo
DEV := $(VENV)/.installed-dev
BENCH := $(VENV)/.installed-bench
PIP_INSTALL := $(BIN)/python -m pip install -qq --disable-pip-version-check

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup tools demo test lint format fuzz asan attack simulate sinkfuzz bench clean

help: ## show this list
	@sed -n -e 's/^\([a-z]*\):.*## \(.*\)/\1          \2/' \
		-e 's/^\([a-z ]\{9\}\) */  make \1/p' Makefile

setup: $(DEV) ## build .venv with meshmsg and its development tools

# Never fails: tests that miss one of them say so.
tools: setup ## install tshark, nft, ip, prometheus and chromium, which some tests run (root, with apt)
	@sh tests/install_tools.sh $(VENV)/.missing-tools

demo: $(DEMO) ## see meshmsg at work
	@$(BIN)/python examples/market_data/demo.py

# The suite kills, stalls and floods real processes, three tests at a time. What fails in that company
# is shown, and must pass alone; a run that was broken off has failed.
test: lint tools ## lint, check the types and run the tests
	$(BIN)/python -m pytest $(PYTEST_FLAGS) || { [ $$? = 1 ] && echo "Once more, alone, what failed:" && \
		$(BIN)/python -m pytest --last-failed --last-failed-no-failures none; }

lint: setup ## check style, types and what may import what
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

format: setup ## rewrite the code in the project's style
	$(BIN)/ruff check --fix --exit-zero --quiet
	$(BIN)/ruff format

fuzz: setup ## run the long tests, for minutes
	FUZZ_FRAMES=$${FUZZ_FRAMES:-100000} \
		$(BIN)/python -m pytest tests/long tests/scenarios/multicast tests/docs -m slow --timeout 3600 -o faulthandler_timeout=4000 $(PYTEST_FLAGS)

asan: setup ## run the decoders' tests with sanitizers in the compiled code, for minutes
	@sh tests/asan.sh $(BIN)/python $(ASAN_FLAGS)

attack: setup ## attack live peers with a million messages, for half an hour (MESSAGES= SEED= ATTACK_FLAGS=)
	$(BIN)/python -m tests.attack.run \
		--messages $${MESSAGES:-1000000} --seed $${SEED:-1} $(ATTACK_FLAGS)

simulate: setup ## try multicast, the durable log and whole meshes in random worlds (SEEDS=10000 START=0)
	$(BIN)/python -m tests.simulation.multicast.run \
		--seeds $${SEEDS:-10000} --start $${START:-0}
	$(BIN)/python -m tests.simulation.durable.run \
		--seeds $${SEEDS:-10000} --start $${START:-0}
	$(BIN)/python -m tests.simulation.mesh.run --start $${START:-0} \
		--seeds $$(( ($${SEEDS:-10000} + 9) / 10 ))

sinkfuzz: setup ## kill the sink daemon 20 times while a million events come (SINK_KILLS= SINK_SEED=)
	$(BIN)/python -m pytest tests/spark/session/test_sink_kill.py -m slow --timeout 7200 -o faulthandler_timeout=7500

bench: $(BENCH) ## measure speed and latency beside others (BENCH_FLAGS="--quick --only 64B")
	@sh benchmarks/install_servers.sh
	$(BIN)/python benchmarks/run.py $(BENCH_FLAGS)

clean: ## remove .venv and everything built
	rm -rf $(VENV) build dist *.egg-info htmlcov .coverage .coverage.*
	rm -rf .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# A stamp is older than one of these exactly when there is something to install or to compile.
$(DEMO): pyproject.toml $(wildcard meshmsg/c/*.[ch]) | $(BIN)/python
	@echo "Installing meshmsg and Spark into $(VENV) ..."
	@$(PIP_INSTALL) --editable '.[spark]'
	@touch $@

$(DEV): pyproject.toml $(wildcard meshmsg/c/*.[ch]) | $(BIN)/python
	@echo "Installing meshmsg and its development tools into $(VENV) ..."
	@$(PIP_INSTALL) --editable '.[dev]'
	@touch $@ $(DEMO)

# A rival that cannot be installed is left out, and the tables say so.
$(BENCH): $(DEV)
	@echo "Installing what the benchmarks need into $(VENV) ..."
	@$(PIP_INSTALL) --editable '.[dev,bench]' || { \
		$(PIP_INSTALL) matplotlib psutil zfec; \
		for rival in cyclonedds eclipse-zenoh iceoryx2 lcm lmdb nats-py pika; do \
			$(PIP_INSTALL) $$rival || echo "$$rival cannot be installed here"; \
		done; }
	@touch $@

# --clear mends a .venv whose interpreter has gone; a half-built one is not left behind.
$(BIN)/python:
	@command -v "$(PYTHON)" >/dev/null || { \
		echo "meshmsg needs Python 3.11 or newer, and there is no '$(PYTHON)' here." \
			"Name one with: make PYTHON=/path/to/python3" >&2; exit 1; }
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "meshmsg needs Python 3.11 or newer; '$(PYTHON)' is $$("$(PYTHON)" --version 2>&1)." \
			"Name another with: make PYTHON=/path/to/python3" >&2; exit 1; }
	@"$(PYTHON)" -c 'import ensurepip, venv' 2>/dev/null || { \
		echo "'$(PYTHON)' has no venv module. Install it (on Debian and Ubuntu: the package" \
			"python3-venv) or name another Python with: make PYTHON=/path/to/python3" >&2; exit 1; }
	@"$(PYTHON)" -m venv --clear $(VENV) || { rm -rf $(VENV); exit 1; }
