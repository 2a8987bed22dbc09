"""vLLM 0.25.1's Triton top-k/top-p filter, in Triton's interpreter, before vLLM's own race.

Level 1.  What runs on a GPU for eight rows and more; vLLM itself never takes it on a machine without
one.  The interpreter hands loop indices over as plain integers, so the one cast of such an index is
left out, and everything else is the file as installed, with the block sizes that it has for a CPU.
A row takes half a second there, so equal rows of a call are filtered once; a gate is a matter of
`--clause 'top-*'`.
"""

from __future__ import annotations

import os
import sys
import tempfile
import weakref
from contextlib import ExitStack
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import numpy as np
import torch
from jaxtyping import Float32
from torch import Tensor

from refsampler.backends.engines.stubs import load_file, package_folder
from refsampler.backends.protocol import Capabilities, Drawn, Feature, Rows
from refsampler.semantics import Semantics

__all__ = ["VllmTritonKernel", "backend"]

_CAST: Final = "row_id.to(tl.int64)"
_PROGRAMS: Final = 4
"""In place of the number of a GPU's processors."""


class VllmTritonKernel:
    """Level 1: of values equal to the k-th it keeps those of the lowest ids.

    Raises:
        ModuleNotFoundError: vLLM or Triton is not installed.
        RuntimeError: it answers known questions otherwise than it should.

    """

    def __init__(self) -> None:
        with ExitStack() as files:
            folder = files.enter_context(tempfile.TemporaryDirectory(prefix="refsampler-vllm-"))
            self._filter, self._race = _modules(Path(folder))
            self._check()
            # the interpreter takes a kernel's source from its file
            weakref.finalize(self, files.pop_all().close)
        self.capabilities = Capabilities(
            name="vllm-triton",
            version=f"{version('vllm')}, Triton {version('triton')} interpreted",
            level=1,
            semantics=replace(Semantics(), top_k_ties="exactly_k"),
            features=frozenset({Feature.PROCESSED, Feature.SAME_PATH}),
        )

    def draw(self, logits: Float32[Tensor, "B V"], rows: Rows) -> Drawn:
        """Return int64 ids and the logits they were drawn from; the input stays as it is."""
        kept = self._kept(logits, rows.top_k, rows.top_p)
        return Drawn(self._race(kept.softmax(dim=-1), {}), kept)

    def _kept(self, logits: Tensor, top_k: Tensor | None, top_p: Tensor | None) -> Tensor:
        """Filter each row that differs from those before it."""
        given = [one[:, None] for one in (top_k, top_p) if one is not None]
        whole = torch.cat([logits, *given], dim=1).numpy()
        _, first, same = np.unique(whole, axis=0, return_index=True, return_inverse=True)
        wanted = [None if one is None else one[first] for one in (top_k, top_p)]
        kept: Tensor = self._filter(logits[first], *wanted)
        return kept[same.reshape(-1)]

    def _check(self) -> None:
        logits = torch.tensor([[0.0, 3.0, 9.0, 1.0]] * 2)
        top_k = torch.tensor([2, 4], dtype=torch.int32)
        kept = self._filter(logits, top_k, torch.tensor([1.0, 0.5])).isfinite().tolist()
        right = [[False, True, True, False], [False, False, True, False]]
        if kept != right:
            raise RuntimeError(f"vllm-triton: kept {kept}, {right} is right")


def _modules(folder: Path) -> tuple[Any, Any]:
    """Import the filter, with the interpreted Triton where vLLM looks for it, and the race."""
    path = package_folder("vllm", "vllm") / "v1" / "sample" / "ops" / "topk_topp_triton.py"
    os.environ["TRITON_INTERPRET"] = "1"
    import triton
    import triton.language

    shim = ModuleType("vllm.triton_utils")
    # vLLM is told that there is none, so that it makes nothing of it by itself
    for name, value in (("triton", triton), ("tl", triton.language), ("HAS_TRITON", False)):
        setattr(shim, name, value)
    sys.modules[shim.__name__] = shim
    source = path.read_text(encoding="utf-8")
    if source.count(_CAST) != 1:
        raise RuntimeError(f"{path} is not the file that the adapter knows")
    ours = folder / path.name
    ours.write_text(source.replace(_CAST, "row_id"), encoding="utf-8")
    module = load_file("refsampler_vllm_topk_topp_triton", ours)
    module.num_compute_units = lambda _index: _PROGRAMS  # type: ignore[attr-defined]
    from vllm.v1.sample.ops.topk_topp_sampler import random_sample

    return module.apply_top_k_top_p_triton, random_sample


def backend() -> VllmTritonKernel:
    """Return the kernel; a factory, because vLLM is optional."""
    return VllmTritonKernel()
