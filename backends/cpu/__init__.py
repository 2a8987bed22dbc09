"""The fast exact CPU sampler: rows streamed from memory once, by numba, without a sort.

`kernel.py` is what Python sees, `loops.py` what it calls.  `rows.py` takes one row down one of
three paths: `top_k.py`, `mass.py` without top-k, `small_p.py` where p is small.  `passes.py`,
`scalars.py` and `vectors.py` are what those are made of.  Numba is imported when a kernel is made.
"""

from refsampler.backends.cpu.kernel import Compiled, CpuKernel

__all__ = ["Compiled", "CpuKernel", "backend", "deep", "with_processed"]


def backend() -> CpuKernel:
    """Return the sampler."""
    return CpuKernel()


def with_processed() -> CpuKernel:
    """Return the sampler that shows the logits it drew from."""
    return CpuKernel(processed=True)


def deep() -> CpuKernel:
    """Return the sampler, declared to be right down to ids of probability 1e-9.

    The gate then draws tails of that grade for some minutes.
    """
    return CpuKernel(floor=1e-9)
