"""Differences: what declared semantics say otherwise than `vllm`, and how far the laws are apart.

Conforming to one's own declaration and agreeing with vLLM are two things; a report says both.  The
distances are exact: between two laws of the same request on the same logits, without a draw.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Final

import torch
from jaxtyping import Float64
from torch import Tensor

from refsampler.conformance.logits import LogitsRecipe, RowRecipe
from refsampler.law import target_law
from refsampler.params import SamplingParams
from refsampler.request import Request
from refsampler.semantics import Semantics, Step

__all__ = ["TYPICAL", "Typical", "differences", "distance"]

_VOCAB: Final = 4096
_HISTORY: Final = tuple((37 * place) % 97 for place in range(120))
"""Ids that come again and again, longer than any engine's window."""


@dataclass(frozen=True, slots=True)
class Typical:
    """A request as people send it.

    Attributes:
        name: in words.
        request: what is asked.

    """

    name: str
    request: Request


TYPICAL: Final = (
    Typical(
        "T 0.8, top-k 50, top-p 0.9",
        Request(SamplingParams(temperature=0.8, top_k=50, top_p=0.9)),
    ),
    Typical("T 0.7, top-p 0.95", Request(SamplingParams(temperature=0.7, top_p=0.95))),
    Typical("T 1.5, top-p 0.8", Request(SamplingParams(temperature=1.5, top_p=0.8))),
    Typical("T 1.5, min-p 0.1", Request(SamplingParams(temperature=1.5, min_p=0.1))),
    Typical(
        "T 1, repetition 1.1, prompt and output",
        Request(SamplingParams(repetition_penalty=1.1), _HISTORY[:60], _HISTORY[60:]),
    ),
    Typical(
        "T 1, frequency 0.2, presence 0.2",
        Request(
            SamplingParams(frequency_penalty=0.2, presence_penalty=0.2),
            _HISTORY[:60],
            _HISTORY[60:],
        ),
    ),
)


def differences(semantics: Semantics) -> tuple[str, ...]:
    """Return in words what is declared otherwise than `vllm`; empty if nothing is."""
    ours = Semantics()
    found = [
        f"{one.name} = {getattr(semantics, one.name)}, not {getattr(ours, one.name)}"
        for one in fields(semantics)
        if one.name not in ("profile", "order")
        and getattr(semantics, one.name) != getattr(ours, one.name)
    ]
    if _after(semantics) != _after(ours):
        found.insert(0, f"order {', '.join(_after(semantics))}, not {', '.join(_after(ours))}")
    return tuple(found)


def distance(semantics: Semantics, typical: Typical) -> float:
    """Return the total variation between the declared law and that of `vllm`.

    Ids that rounding or a tie leaves open are left out of both; the logits have none.
    """
    return float((_law(semantics, typical) - _law(Semantics(), typical)).abs().sum()) / 2


def _after(semantics: Semantics) -> tuple[Step, ...]:
    """Return the order of the steps that every engine has; masks act on certain ids alike."""
    penalties = (Step.REPETITION, Step.FREQUENCY, Step.PRESENCE)
    steps = (*penalties, Step.TEMPERATURE, Step.MIN_P, Step.TOP_K, Step.TOP_P)
    return tuple(one for one in semantics.order if one in steps)


def _law(semantics: Semantics, typical: Typical) -> Float64[Tensor, " vocab"]:
    # 64 ids that may be meant, those of the history among them, above a long tail
    meant = tuple(range(64))
    row = RowRecipe("zipf", 5, base=-2.0, ids=meant, values=tuple(-one / 16 for one in meant))
    logits = LogitsRecipe(_VOCAB, (row,)).build()
    law = target_law(logits, (typical.request,), semantics)
    return torch.where(law.core, law.logprobs.exp(), 0.0)[0]
