"""SGLang's torch sampling path: `sampler.py` of the wheel, everything else of `sglang` a stub.

Level 1, all steps folded: softmax of logits / T, then top-k and top-p jointly on that softmax, min-p,
`torch.multinomial`; a greedy row is one with k = 1 and T = 1, as `SamplingParams` makes it.  The
seeded path hashes with a kernel that needs a GPU and is not declared.
"""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module
from importlib.metadata import version
from types import ModuleType, SimpleNamespace
from typing import Any, Final

import torch
from jaxtyping import Float32
from torch import Tensor

from refsampler.backends.engines.stubs import load_file, package_folder, stub
from refsampler.backends.protocol import Capabilities, Fold, Rows
from refsampler.semantics import Scope, profile

__all__ = ["SglangKernel", "backend"]

_ALL: Final = 1 << 30
_PLATFORMS: Final = (
    "is_cuda",
    "is_hip",
    "is_musa",
    "is_npu",
    "is_xpu",
    "is_gfx1250_supported",
    "get_bool_env_var",
)


class SglangKernel:
    """Level 1: SGLang's `top_k_top_p_min_p_sampling_from_probs_torch`.

    Raises:
        ModuleNotFoundError: sglang is not installed.
        RuntimeError: it answers known questions otherwise than it should.

    """

    def __init__(self) -> None:
        self._sglang = _sampler_module()
        # The pipeline penalises around a kernel, over prompt and output.
        semantics = replace(profile("sglang"), repetition_scope=Scope.PROMPT_OUTPUT)
        self.capabilities = Capabilities(
            name="sglang",
            version=f"{version('sglang')}, torch path",
            level=1,
            semantics=semantics,
            folds=frozenset(Fold),
        )
        self._check()

    def draw(self, logits: Float32[Tensor, "B V"], rows: Rows) -> Tensor:
        """Return int32 ids; the input stays as it is."""
        count, vocab = logits.shape
        temperature = torch.ones(count) if rows.temperature is None else rows.temperature
        greedy = temperature == 0
        if bool(greedy.all()):
            return logits.argmax(dim=-1).to(torch.int32)
        probs = (logits / temperature.masked_fill(greedy, 1)[:, None]).softmax(dim=-1)
        top_k = torch.full((count,), _ALL) if rows.top_k is None else rows.top_k.long()
        top_k = top_k.masked_fill(top_k >= vocab, _ALL).masked_fill(greedy, 1)
        top_p = torch.ones(count) if rows.top_p is None else rows.top_p
        min_p = torch.zeros(count) if rows.min_p is None else rows.min_p
        off = bool((top_k == _ALL).all() and (top_p == 1).all() and (min_p == 0).all())
        ids: Tensor
        if off:
            ids = self._sglang.sampling_from_probs_torch(probs)
        else:
            most = int(top_k.max())
            ids = self._sglang.top_k_top_p_min_p_sampling_from_probs_torch(
                probs,
                top_k,
                top_p,
                min_p,
                bool((min_p > 0).any()),
                None,
                None,
                max_top_k=most if most < _ALL else None,
            )
        return ids.reshape(-1).to(torch.int32)

    def _check(self) -> None:
        logits = torch.tensor([[0.0, 3.0, 9.0, 1.0]]).expand(3, -1)
        rows = _rows(top_k=[1, 4, 4], top_p=[1.0, 0.5, 1.0], temperature=[1.0, 1.0, 0.0])
        given = self.draw(logits, rows).tolist()
        if given != [2, 2, 2]:
            raise RuntimeError(f"sglang: ids {given}, [2, 2, 2] are right")


def _rows(**fields: list[Any]) -> Rows:
    """Return parameters of a few rows."""
    count = len(fields["top_k"])
    nothing = torch.zeros(count, dtype=torch.int64)
    return Rows(
        top_k=torch.tensor(fields["top_k"], dtype=torch.int32),
        top_p=torch.tensor(fields["top_p"]),
        temperature=torch.tensor(fields["temperature"]),
        min_p=None,
        seed=nothing,
        step=nothing,
        seeded=nothing.bool(),
        generators={},
    )


def _sampler_module() -> ModuleType:
    """Import sampler.py, on no GPU of any kind."""
    folder = package_folder("sglang", "sglang")
    stub("sglang")
    # by name: an attribute of a stub package would be another stub
    environment = import_module("sglang.srt.environ")
    common = import_module("sglang.srt.utils.common")
    for name in _PLATFORMS:
        setattr(common, name, lambda *_, **__: False)
    gumbel = SimpleNamespace(get=lambda: False)
    envs = SimpleNamespace(SGLANG_OPT_USE_GUMBEL_SAMPLE=gumbel)
    setattr(environment, "envs", envs)  # noqa: B010 - a module that has no such attribute yet
    return load_file("refsampler_sglang_sampler", folder / "srt" / "layers" / "sampler.py")


def backend() -> SglangKernel:
    """Return the kernel; a factory, because sglang is optional."""
    return SglangKernel()
