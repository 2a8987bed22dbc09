"""vLLM's Triton kernels on a CPU: Triton's interpreter in place of the placeholder that vLLM puts there.

To be imported before anything of vLLM.  Only the kernels of the rejection sampler run in it: vLLM is
told that there is no Triton, so that its filters and its draw stay the torch ones that were compared
already.
"""

from __future__ import annotations

import os
import sys
from types import ModuleType

__all__ = ["install"]

_LOG2_E = 1.4426950408889634


def install() -> None:
    """Put a module with the interpreted Triton where vLLM looks for Triton."""
    os.environ["TRITON_INTERPRET"] = "1"
    import triton
    import triton.language

    if "vllm.triton_utils" in sys.modules:
        raise RuntimeError("vLLM was imported before")
    shim = ModuleType("vllm.triton_utils")
    fields = {
        "triton": triton,
        "tl": triton.language,
        "tldevice": None,
        "HAS_TRITON": False,
        "LOG2E": _LOG2_E,
        "LOGE2": 1 / _LOG2_E,
    }
    for name, value in fields.items():
        setattr(shim, name, value)
    sys.modules[shim.__name__] = shim
