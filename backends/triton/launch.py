"""Calls of a known form repeat the launches of the first one."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Final

import torch
from torch import Tensor
from triton.runtime import driver

from refsampler.backends.triton.call import Batch, Call, Workspace
from refsampler.backends.triton.direct import Plan
from refsampler.backends.triton.geometry import Geometry

__all__ = ["Launcher"]

_PLANS: Final = 8
"""Forms of calls whose launches and workspaces a thread keeps."""
_Columns = tuple[Tensor | None, ...]
"""The tensors of a call, in the order of `Batch`."""


class Launcher:
    """Launches the kernels over workspaces of its own, one a thread, stream and form of call.

    Args:
        geometry: sizes of blocks.
        nvidia: whether the compiler is NVIDIA's, which takes limits on registers and PTX.

    """

    def __init__(self, geometry: Geometry, *, nvidia: bool) -> None:
        self._geometry = geometry
        self._nvidia = nvidia
        self._local = threading.local()

    def __call__(self, logits: Tensor, columns: _Columns) -> Tensor:
        """Return int32 ids [B]; B and V are at least 1; `columns` are the other tensors."""
        device = logits.device
        on_gpu = device.type == "cuda"
        out = torch.empty(logits.shape[0], dtype=torch.int32, device=device)
        if on_gpu and torch.cuda.is_current_stream_capturing():
            # What a graph holds must outlive the call, and what is reused must not be a graph's.
            self._launch(logits, columns, out)
            return out
        stream = driver.active.get_current_stream(device.index) if on_gpu else 0
        pointers = [logits.data_ptr()]
        pointers += [0 if one is None else one.data_ptr() for one in columns]
        pointers.append(out.data_ptr())
        aligned = tuple([one and one % 16 + 1 for one in pointers])
        form = (logits.shape, logits.stride(), logits.dtype, device, stream, aligned)
        plans = self._plans()
        plan = plans.get(form)
        if plan is not None:
            plan.run(pointers)
            self._local.last = plan.work
            return out
        call, work, neutral = self._launch(logits, columns, out)
        self._local.last = work
        given = [logits, *columns, out]
        places = {id(one): place for place, one in enumerate(given) if one is not None}
        distinct = len(places) == sum(one is not None for one in given)
        if call.made and distinct:
            plans[form] = Plan(call.made, places, stream, work, neutral)
            if len(plans) > _PLANS:
                plans.popitem(last=False)
        return out

    def left_over(self) -> Tensor:
        """Return `todo` of this thread's last batch that no graph captured."""
        last: Workspace = self._local.last
        return last.todo

    def _plans(self) -> OrderedDict[object, Plan]:
        """Return this thread's."""
        plans: OrderedDict[object, Plan] | None = getattr(self._local, "plans", None)
        if plans is None:
            plans = self._local.plans = OrderedDict()
        return plans

    def _launch(
        self, logits: Tensor, columns: _Columns, out: Tensor
    ) -> tuple[Call, Workspace, tuple[Tensor, ...]]:
        """Launch through Triton."""
        neutral = self._neutral(logits.shape[0], logits.device)
        batch = Batch(logits, *columns).complete(neutral)  # type: ignore[arg-type]  # in its order
        work = Workspace(self._geometry, batch)
        call = Call(self._geometry, batch, work, out, nvidia=self._nvidia)
        call.launch()
        return call, work, neutral

    def _neutral(self, rows: int, device: torch.device) -> tuple[Tensor, ...]:
        """Return p or T, k, min-p and noise that do nothing, for at least so many rows."""
        kept: tuple[Tensor, ...] | None = getattr(self._local, "neutral", None)
        if kept is not None and len(kept[0]) >= rows and kept[0].device == device:
            return kept
        kept = (
            torch.ones(rows, device=device),
            torch.zeros(rows, dtype=torch.int32, device=device),
            torch.zeros(rows, device=device),
            torch.zeros(rows, dtype=torch.int64, device=device),
        )
        # Under capture these are filled when the graph is replayed, so only the graph may use them.
        if device.type != "cuda" or not torch.cuda.is_current_stream_capturing():
            self._local.neutral = kept
        return kept
