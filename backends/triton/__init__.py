"""Exact sampling kernels in Triton: one source for NVIDIA and AMD GPUs and the interpreter.

`kernel.py` is the backend, `call.py` decides which kernels a batch needs, `device/` holds them, and
`launch.py` repeats the launches of calls it knows.  Without a filter or with top-k the logits are
read once (top-k reopens the few chunks that can hold a kept id), with top-p alone twice, and again
in rows of which every proposal fell outside the nucleus: rare ones unless p is small.
"""

__all__: list[str] = []
