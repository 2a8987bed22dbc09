PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
CHECK_STAMP := $(VENV)/.installed-for-checks
PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
RUNS := reports/runs
VLLM_VENV := .venv-vllm
ENGINES := llama-cpp lmdeploy mlx-lm onnxruntime-genai pytorch sglang transformers vllm

CHECKED := native transformers

# Hundreds of processes are started below: each would compile what it imports anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: check $(CHECKED:%=check-%) test lint amd-compile gpu-check ray-check docs vllm-parity engine engines clean

# Side by side, each on a core of its own; what one prints comes when it has ended.
check: $(CHECK_STAMP)
	@echo "testing $(CHECKED) side by side; takes one to two minutes"
	@$(MAKE) --no-print-directory --jobs=2 --output-sync=target $(CHECKED:%=check-%)

$(CHECKED:%=check-%): check-%: $(CHECK_STAMP)
	$(BIN)/refsampler check $* --jobs 1 --report $(RUNS)/$*

test: lint
	$(BIN)/python -m pytest -n 2 --dist worksteal

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Compiles for AMD GPUs without one; the table of what the kernels use is kept in reports/amd/.
amd-compile: $(STAMP)
	TRITON_INTERPRET=0 $(BIN)/python -m refsampler.backends.triton.targets

# On a machine with a GPU: the gate for each path that is installed there, then the speed table. PYTHON is one whose
# torch sees the GPU and in which refsampler is installed.
gpu-check:
	$(PYTHON) -m refsampler.backends.gpu_check --report $(RUNS)/gpu

# Two Ray nodes on this machine, of which one is killed, as are a worker and the driver; takes five minutes.
ray-check: $(STAMP)
	$(PIP_INSTALL) -e '.[ray]'
	$(BIN)/python -m pytest tests/test_fuzz_ray.py

# Generated pages.
docs: $(CHECK_STAMP)
	$(BIN)/python -m refsampler.conformance.reporting.contract_page > docs/contract.md

vllm-parity:
	$(PYTHON) tests/vllm_parity/setup_env.py --venv $(VLLM_VENV)
	$(VLLM_VENV)/bin/python -m tests.vllm_parity.run --report reports/vllm-parity
	$(VLLM_VENV)/bin/python -m tests.vllm_parity.speculative --report reports/vllm-parity

# `make engine NAME` builds the environment of one engine and says how to check it; `make engines` builds all of them.
ifeq (engine,$(firstword $(MAKECMDGOALS)))
WANTED := $(wordlist 2,$(words $(MAKECMDGOALS)),$(MAKECMDGOALS))
.PHONY: $(WANTED)
$(WANTED): ; @:
endif

engine: $(CHECK_STAMP)
	@for name in $(WANTED); do $(PYTHON) backends/engines/environments.py $$name || exit; done

engines: $(CHECK_STAMP)
	@for name in $(ENGINES); do $(PYTHON) backends/engines/environments.py $$name || exit; done

clean:
	rm -rf $(VENV) .venv-engines $(RUNS) build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis .coverage

# Both are stale when the dependencies or their pins changed; a check needs less than the tests do.
$(CHECK_STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP_INSTALL) -e '.[transformers]'
	touch $@

$(STAMP): $(CHECK_STAMP)
	$(PIP_INSTALL) -e '.[dev,cpu,transformers]'
	touch $@
