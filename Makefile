# One verb each. Plain `make` lists them; it works with the make 3.81 that macOS ships.

VENV    := .venv
BIN     := $(VENV)/bin
TORCHED := $(VENV)/.installed-torch
RUNTIME := $(VENV)/.installed-runtime
DEV     := $(VENV)/.installed-dev
DOCS    := $(VENV)/.installed-docs
BENCH   := $(VENV)/.installed-bench
VLLM    := .cache/vllm/.installed
LLAMA   := .cache/llama/.installed
KERNELS := $(wildcard engine/model/cpu/*.c engine/model/cpu/*.h)
TORCH   := $(shell sed -n '/^torch==/p' constraints.txt)
PARTS   := --editable midstream --editable distributions/gateway --editable
EXTRAS  := cuda,gguf,images,mcp,otel,speech,translation
PIP     := PIP_DISABLE_PIP_VERSION_CHECK=1 $(BIN)/python -m pip install --no-compile --constraint constraints.txt

# Where torch comes from. Default: CPU_INDEX on Linux without an NVIDIA GPU, unless pip's configuration names a source
# or that index can't be reached; elsewhere pip's own index.
TORCH_INDEX ?=
CPU_INDEX := https://download.pytorch.org/whl/cpu
# Tried in this order; or name one: make install PYTHON=/opt/python/bin/python3
PYTHON ?= python3.11 python3.12 python3.13 python3.14 python3 python
# The model that `make run` serves, as --model takes it; unset: the bundled one.
MODEL ?=
# Options for the command behind a verb: make run ARGS='--port 9000'
ARGS ?=

.DEFAULT_GOAL := help
.PHONY: tests docs help install run lint check specs test test-long coverage sanitize test-clients test-upstreams vllm test-vllm test-wheel test-pythons test-peers bench bench-engine bench-peers check-gpu chaos attack release clean
.DELETE_ON_ERROR:
.NOTPARALLEL:

help: ## show this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1	\2/p' $(firstword $(MAKEFILE_LIST)) | expand -t 23

install: $(DEV) ## make .venv with all that working here needs

run: $(RUNTIME) ## install what is missing, start the service, print its address; MODEL=smollm2 fetches a small real model (93 MB)
	@PYTHONMALLOC=$${PYTHONMALLOC:-malloc} $(BIN)/midstream serve $(if $(MODEL),--model '$(MODEL)') $(ARGS)

lint: $(DEV) ## ruff: rules and format
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

check: $(DEV) ## mypy strict, the page against its sources, the specifications against the code, the sizes against their marks
	@$(BIN)/mypy
	@$(BIN)/python page/check.py
	@$(BIN)/python -m specs --check
	@$(BIN)/python -m tools.measure --check

specs: $(DEV) ## write the specifications and the page's types anew, from the types of the code
	@$(BIN)/python -m specs

PYTEST := env -u PYTHONDONTWRITEBYTECODE HF_HUB_OFFLINE=1 $(BIN)/pytest -n auto --dist loadfile --no-loadscope-reorder --durations 15
HERE := not clients and not models and not peers and not vllm

test: $(DEV) ## every test that does not take long: a quarter of an hour
	@$(PYTEST) -m '$(HERE) and not long' --hypothesis-profile quick $(ARGS)

test-long: $(DEV) ## what takes a processor a quarter of a minute or more: models and engines that start, attacks, replicas that die, wheels, benchmarks, kernels without a GPU
	@$(PYTEST) -m '$(HERE) and long' $(ARGS)

coverage: $(DEV) ## all of both, with branch coverage of 95 % or more; takes half as long again
	@$(PYTEST) -m '$(HERE)' --cov --cov-report=term-missing:skip-covered $(ARGS)

tests: # a folder, so make would call it done
	@echo "The verb is: make test" >&2; exit 2

docs: $(DOCS) ## the documentation as a site, strictly: no link leads nowhere; the service has it at /docs
	@$(BIN)/python docs/site/build.py $(ARGS)

sanitize: $(DEV) ## tests of the C kernels, compiled with AddressSanitizer and UndefinedBehaviorSanitizer
	@$(BIN)/python -m tests.sanitize $(ARGS)

test-clients: $(DEV) ## stock clients of OpenAI's API, the npm package, the guides and examples, each installed beside the others in .cache
	@HF_HUB_OFFLINE=1 $(BIN)/pytest -v tests/clients tests/browser/examples tests/browser/test_embedding.py tests/browser/test_ai_sdk.py $(ARGS)

test-upstreams: $(BENCH) ## each failure of an upstream, and real ones: transformers serve, another Midstream
	@HF_HUB_OFFLINE=1 $(BIN)/pytest -v tests/upstreams $(ARGS)

vllm: $(VLLM) ## an environment of its own for vLLM, that `midstream serve --engine vllm` starts; for CPUs where no GPU is

test-vllm: $(DEV) $(VLLM) ## the real vLLM behind a real gateway: chat, memory, cancel, overload, kills and restarts
	@HF_HUB_OFFLINE=1 $(BIN)/pytest -v -m vllm tests/vllm $(ARGS)

test-models: $(DEV) ## a real model (--model smollm2) beside transformers; fetched once into .cache (93 MB)
	@HF_HUB_OFFLINE=1 $(BIN)/pytest -v -o timeout=600 -m models tests/models $(ARGS)

test-wheel: $(DEV) ## tests of turns and frames against the installed wheel, whose imports are rewritten
	@HF_HUB_OFFLINE=1 $(BIN)/python -m tests.deploy.wheel_suite $(ARGS)

test-pythons: $(DEV) ## what needs no torch, on every Python from 3.11 on that is there
	@HF_HUB_OFFLINE=1 $(BIN)/python -m tests.pythons $(ARGS)

test-peers: $(DEV) ## each peer that `make bench-peers` installed answers a little
	@HF_HUB_OFFLINE=1 $(BIN)/pytest -v -m peers tests/bench $(ARGS)

bench: $(BENCH) ## tokens/s and latencies beside two other servers of the same model
	@$(BIN)/python -m tests.bench $(ARGS)

bench-engine: $(DEV) ## the engine beside its peers on random weights, against its targets
	@$(BIN)/python -m tests.bench.engine $(ARGS)

bench-peers: $(DEV) $(VLLM) $(LLAMA) ## beside vLLM and llama-server, which are installed first in a quarter of an hour
	@HF_HUB_OFFLINE=1 $(BIN)/python -m tests.bench.peers $(ARGS)

# It installs nothing, since machines with a GPU often have no network.
check-gpu: ## the engine and the service on one CUDA device, offline, in eight minutes: right or wrong, and how fast
	@bash tests/gpu/check.sh

chaos: $(DEV) ## fault injection: kills, failovers, broken links, nonsense; up to two hours, a table and docs/bench/chaos.json
	@HF_HUB_OFFLINE=1 $(BIN)/python -m tests.chaos $(ARGS)

attack: $(DEV) ## attacks by one client and by twenty, and what the others notice; three quarters of an hour, a table in docs/attack.md
	@HF_HUB_OFFLINE=1 $(BIN)/python -m tests.attack $(ARGS)

release: $(DEV) ## build and check all packages, then ask before each upload; ARGS=--dry-run uploads nothing
	@$(BIN)/python distributions/release.py $(ARGS)

clean: ## remove .venv and caches; conversations stay
	rm -rf $(VENV) .cache build dist *.egg-info midstream/*.egg-info engine/*.so .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage .coverage.* htmlcov
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# ensurepip is asked for because Debian's python3 makes a venv without pip when python3-venv is missing.
$(BIN)/python:
	@for candidate in $(PYTHON); do \
	    if "$$candidate" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then \
	        echo "Making $(VENV) with $$("$$candidate" --version)."; \
	        exec "$$candidate" -m venv $(VENV); \
	    fi; \
	done; \
	echo "Midstream needs Python 3.11 or newer with the venv module, and none of these is: $(PYTHON)." >&2; \
	echo "Debian and Ubuntu: apt install python3-venv.  macOS: brew install python.  Or: make run PYTHON=/path/to/python3" >&2; \
	exit 1

HAS_GPU := command -v nvidia-smi >/dev/null || test -e /proc/driver/nvidia/version -o -e /dev/dxg
HAS_SOURCE := $(BIN)/python -m pip config list | grep -E 'index-url|find-links|no-index' >/dev/null

# torch goes first and by its exact pin: a looser one can pull in gigabytes of GPU packages.
# A named index serves torch alone, so its dependencies are left to the second step.
$(TORCHED): constraints.txt | $(BIN)/python
	@echo "Installing the service (1 of 2: $(TORCH)): takes about a minute, longer on a slow network."
	@index='$(TORCH_INDEX)'; \
	if [ -z "$$index" ] && [ "$$(uname)" = Linux ] && ! { $(HAS_GPU); } && ! { $(HAS_SOURCE); }; then \
	    echo "No NVIDIA GPU: taking PyTorch's build for CPUs from $(CPU_INDEX)."; \
	    $(PIP) --retries 1 --timeout 15 --index-url $(CPU_INDEX) --no-deps '$(TORCH)' && touch $@ && exit; \
	    echo "That index can't be used. Taking the build of pip's own index, which may be gigabytes." >&2; \
	fi; \
	$(PIP) $${index:+--index-url "$$index" --no-deps} '$(TORCH)'
	@touch $@

$(RUNTIME): pyproject.toml midstream/pyproject.toml distributions/gateway/pyproject.toml constraints.txt $(KERNELS) $(TORCHED) | $(BIN)/python
	@echo "Installing the service (2 of 2: all else)."
	@rm -f engine/_cpu_kernels*.so
	@$(BIN)/python -m pip -qq uninstall --yes midstream-server # an older one owns bin/midstream, and would take it along
	@$(PIP) $(PARTS) '.[gguf,speech]'
	@touch $@

# pip knows dependency groups from 25.1 on; Python brings an older one to a new environment.
$(DEV): $(RUNTIME)
	@echo "Installing the tools for tests, types and style."
	@$(PIP) --quiet 'pip>=25.1'
	@$(PIP) $(PARTS) '.[$(EXTRAS)]' --group dev
	@touch $@

$(DOCS): constraints.txt | $(BIN)/python
	@echo "Installing what makes the site."
	@$(PIP) zensical
	@touch $@

$(VLLM): tools/vllm_install.py | $(RUNTIME)
	@$(BIN)/python -m tools.vllm_install $(if $(TORCH_INDEX),--torch-index $(TORCH_INDEX)) .cache/vllm
	@touch $@

$(LLAMA): tests/bench/llama.sh | $(RUNTIME)
	@bash $< .cache/llama $(BIN)/python

$(BENCH): $(DEV)
	@echo "Installing what the servers beside ours need."
	@$(PIP) --group bench
	@touch $@
