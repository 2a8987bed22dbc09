"""Exact sampling kernels in Triton: one source for NVIDIA and AMD GPUs and the interpreter.

`kernel.py` is the backend, `launch.py` decides which kernels a batch needs, `device/` holds them.
Without a filter or with top-k the logits are read once (top-k reopens the few chunks that can hold
a kept id), with top-p alone twice, and a third time in rare rows.
"""

__all__: list[str] = []
