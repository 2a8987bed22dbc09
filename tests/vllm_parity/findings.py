"""Findings: the outcome of one comparison, and what may excuse a difference."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

import torch
from torch import Tensor

from refsampler.law import TargetLaw
from refsampler.request import Request
from tests.vllm_parity.sides import LogprobsMode, Side

__all__ = ["ROUNDING", "Batch", "Finding", "Kind"]

ROUNDING = 2.0**-22
"""Error of float32 arithmetic, relative to the largest intermediate (the contract's figure)."""

INVISIBLE = 125 * math.log(2)
"""Nats below the top at which float32 may flush a relative mass to 0."""


class Kind(StrEnum):
    """How a comparison ended."""

    AGREES = "agrees"
    OPEN = "open"
    DEPARTS = "departs"
    UNEXPLAINED = "unexplained"


@dataclass(frozen=True, slots=True)
class Finding:
    """One comparison of one row, or of the whole batch where `row` is None.

    Attributes:
        check: what was compared.
        kind: how it ended.
        clause: the clause that leaves it open or departs; idle where both agree.
        row: index of the row.
        expected: what the reference has.
        seen: what vLLM has.

    """

    check: str
    kind: Kind
    clause: str = ""
    row: int | None = None
    expected: str = ""
    seen: str = ""


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch, both samplers' results, and the exact law.

    Attributes:
        logits: as both got them.
        requests: one a row.
        mode: of the logprobs.
        ours: the reference.
        real: vLLM.
        law: of the batch.
        greedy_law: of the same batch with every request greedy.

    """

    logits: Tensor
    requests: tuple[Request, ...]
    mode: LogprobsMode
    ours: Side
    real: Side
    law: TargetLaw
    greedy_law: TargetLaw

    def rounded_repetition(self, row: int) -> bool:
        """Say whether x / r and x * (1 / r) may differ in float32."""
        return math.frexp(self.requests[row].params.repetition_penalty)[0] != 0.5

    def rounding(self, row: int) -> float:
        """Return what float32 may have done to a row's logits, in nats after the temperature."""
        return ROUNDING * (4 + float(self.law.magnitude[row]))

    def kept_sets(self, row: int) -> tuple[Kind, str]:
        """Return how the two kept sets of a random row compare, and by which clause."""
        ours, real = (side.processed[row].isfinite() for side in (self.ours, self.real))
        core, hull = self.law.core[row], self.law.hull[row]
        outside = [(core & ~kept) | (kept & ~hull) for kept in (ours, real)]
        params = self.requests[row].params
        if torch.stack(outside).any():
            return Kind.UNEXPLAINED, "top-p.keep"
        if torch.equal(ours, real):
            return Kind.AGREES, ""
        tied = self.law.lumped[row]
        if self.law.exact[row] and (ours & tied).sum() != (real & tied).sum():
            # without rounding the number of equal ids that stay is known, only not which
            return Kind.UNEXPLAINED, "top-p.ties"
        values = self.ours.before_filters[row][ours != real]
        if values.unique().numel() == 1 and ours.sum() == real.sum():
            return Kind.OPEN, "top-p.ties"
        behind = self.ours.before_filters[row].max() - values
        if params.top_p == 1 and bool((behind >= INVISIBLE * params.temperature).all()):
            return Kind.OPEN, "top-p.off"
        return Kind.OPEN, "top-p.keep" if params.top_p < 1 else "min-p.keep"
