# The two commands of the README are `make demo` and `make test`; each makes .venv first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: setup lock demo test test-quick coverage test-guest test-agent lint lint-all lint-agent docs check wheel bench clean
setup: $(STAMP)

PIP := $(BIN)/pip --quiet --disable-pip-version-check
LOCKS := $(addprefix requirements/,installer.lock all.lock torch.txt)

# Every package with its hash; torch and torchvision by version, from the index that pip is set up with. uv is quicker than
# pip, which takes over where uv reaches no index (it does not read pip's settings).
$(STAMP): pyproject.toml $(LOCKS)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Edgebed needs Python 3.11 or newer; $$($(PYTHON) --version) found. Hint: make PYTHON=/path/to/python3.11"; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { echo "Hint for Debian/Ubuntu: apt-get install python3-venv"; exit 1; }
	$(PIP) install --require-hashes -r requirements/installer.lock
	$(BIN)/uv pip install --quiet --compile-bytecode --python $(BIN)/python --require-hashes -r requirements/all.lock || \
	  { echo "uv could not install the packages; pip tries"; $(PIP) install --require-hashes -r requirements/all.lock; }
	$(PIP) install $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) -r requirements/torch.txt
	$(PIP) install --no-deps --no-build-isolation -e .
	@touch $@

# Writes the locks again from pyproject.toml. RENEW=--upgrade takes the newest versions, RENEW="-P NAME" that of one package.
lock: setup
	requirements/renew $(RENEW)

demo: setup
	$(BIN)/edgebed run profiles/experiments/demo.yaml --seeds 1,2,3

# Most tests run on several workers, those that start a fleet all on one of them; those that calibrate or measure time
# run alone.
WORKERS ?= 2
test test-quick: export PYTHONDONTWRITEBYTECODE :=  # each of the processes would compile every module again
# Computations on this host pause meanwhile.
TIMED := $(BIN)/python -m orchestrator.files.timed_host
TESTS := tests/unit tests/contract tests/component tests/e2e
SLOWEST := --durations=40 --file-times build/test-times
test: setup
	$(TIMED) $(BIN)/pytest -n $(WORKERS) --dist loadscope -m "not alone" $(SLOWEST)/parallel.json $(TESTS)
	$(TIMED) $(BIN)/pytest -m alone $(SLOWEST)/alone.json $(shell grep -rl --include="test_*.py" "mark\.alone" tests)

# What needs no fleet, no broker and no other program: for every change, in about two minutes.
test-quick: setup
	$(BIN)/pytest -n $(WORKERS) --dist loadscope --file-times build/test-times/quick.json tests/unit tests/contract

# Lines that the tests of unit and contract reach; COVERED=tests/component takes other tests.
COVERED ?= tests/unit tests/contract
coverage: setup
	$(BIN)/pytest -n $(WORKERS) --cov=edgebed --cov=orchestrator --cov=edge_agent --cov-report=term:skip-covered $(COVERED)

# The fleets' tests on a machine with cgroups of version 2, systemd and netem: this one, or the one of EDGEBED_GUEST.
test-guest: setup
	tests/guest/run

# The agent's unit tests on another Python, which has none of the orchestrator's packages: JetPack 6 has Python 3.10.
# AGENT_TORCH=torch==2.3.1 takes another torch.
AGENT_PYTHON ?= python3.10
AGENT_TORCH ?= torch
test-agent:
	$(AGENT_PYTHON) -m venv build/agent
	build/agent/bin/pip --quiet install '$(AGENT_TORCH)' . hypothesis psutil pytest pytest-asyncio pytest-timeout pytest-xdist
	build/agent/bin/pytest -n $(WORKERS) -m "not alone" tests/unit

# The agent's types are those of Python 3.10, too. With --jobs=2 both are checked at once.
lint: lint-all lint-agent
lint-all: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
lint-agent: setup
	$(BIN)/mypy --python-version 3.10 --follow-imports=silent -p edgebed -p edge_agent

# The site, in build/site. A link that leads nowhere, or a page that is not in the navigation, is an error.
docs: setup
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

check: lint docs test

# The wheel, in build/dist.
wheel: setup
	$(PIP) wheel --no-deps --no-build-isolation --wheel-dir build/dist .

bench: setup
	$(BIN)/python -m benchmarks

clean:
	rm -rf $(VENV) build *.egg-info .mypy_cache .ruff_cache .pytest_cache
