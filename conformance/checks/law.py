"""The law of the draw: e-processes on designed rows, pooled into `draw.law`."""

from __future__ import annotations

import numpy as np

from refsampler.backends.protocol import Capabilities
from refsampler.conformance.case import Case
from refsampler.conformance.checks.base import Check, Kind, clause_ids
from refsampler.conformance.designed.laws import law_cases
from refsampler.conformance.evidence.alternatives import BANK, Alternative
from refsampler.conformance.evidence.law import LawCase
from refsampler.law import target_law

__all__ = ["CHECKS", "PROFILES", "prepare"]

PROFILES = ("quick", "full")


def prepare(
    case: Case, capabilities: Capabilities, bank: tuple[Alternative, ...] = BANK
) -> LawCase:
    """Compute the exact law of a case of one row, and everything that bets against it.

    The tolerance is the declared delta and what float32 rounding moves, 2^-23 M.
    """
    logits = case.logits.build(case.dtype.torch)
    law = target_law(logits, case.requests, capabilities.semantics, thinking=case.thinking)
    return LawCase.build(
        case.id,
        law.logprobs[0].numpy().astype(np.float64),
        core=law.core[0].numpy(),
        hull=law.hull[0].numpy(),
        delta=capabilities.delta + 2.0**-23 * float(law.magnitude[0]),
        floor=capabilities.floor,
        lumped=law.lumped[0].numpy(),
        lump_logprob=float(law.lump_logprob[0]),
        alternatives=bank,
    )


CHECKS: tuple[Check, ...] = (
    Check(
        "laws",
        clause_ids("draw.law"),
        Kind.LAW,
        lambda _capabilities, _run_seed: law_cases(),
    ),
)
