PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
RUNS := reports/runs
VLLM_VENV := .venv-vllm

.PHONY: check test lint amd-compile gpu-check vllm-parity clean

check: $(STAMP)
	$(BIN)/refsampler check native --report $(RUNS)/native
	$(BIN)/refsampler check transformers --report $(RUNS)/transformers

test: lint
	$(BIN)/python -m pytest -n 2

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

vllm-parity:
	$(PYTHON) tests/vllm_parity/setup_env.py --venv $(VLLM_VENV)
	$(VLLM_VENV)/bin/python -m tests.vllm_parity.run --report reports/vllm-parity

clean:
	rm -rf $(VENV) $(RUNS) build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis .coverage

# Stale when the dependencies or their pins changed.
$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,cpu,transformers]'
	touch $@
