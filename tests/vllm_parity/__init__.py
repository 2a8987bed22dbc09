"""The reference against the real vLLM sampler, in a virtual environment of its own."""

import os

# Read when vLLM is first imported; its notices about missing GPU parts say nothing new here.
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
