"""Masks, bias, penalties, histories and thinking."""

from __future__ import annotations

from refsampler.backends.protocol import Capabilities, Feature
from refsampler.conformance.case import Case
from refsampler.conformance.checks.base import Check, Kind, clause_ids
from refsampler.conformance.designed import processors

__all__ = ["CHECKS"]


def _thinking(capabilities: Capabilities, _run_seed: int) -> tuple[Case, ...]:
    """Return nothing for engines: the markers are part of the model, not of a request."""
    declared = Feature.THINKING in capabilities.features and capabilities.level == 2
    return processors.thinking_cases() if declared else ()


CHECKS: tuple[Check, ...] = (
    Check(
        "masks",
        clause_ids("mask.allowed", "mask.bad-words", "mask.min-tokens", "effect.parameters"),
        Kind.NEAR_CERTAIN,
        lambda capabilities, _: _if(capabilities, Feature.MASKS, processors.mask_cases()),
    ),
    Check(
        "logit-bias",
        clause_ids("bias.additive", "order.pipeline", "effect.parameters"),
        Kind.NEAR_CERTAIN,
        lambda capabilities, _: _if(capabilities, Feature.MASKS, processors.bias_cases()),
    ),
    Check(
        "penalties",
        clause_ids(
            "penalty.repetition",
            "penalty.frequency",
            "penalty.presence",
            "order.pipeline",
            "effect.parameters",
        ),
        Kind.NEAR_CERTAIN,
        lambda capabilities, _: _if(capabilities, Feature.PENALTIES, processors.penalty_cases()),
    ),
    Check(
        "penalty-histories",
        clause_ids("penalty.history"),
        Kind.NEAR_CERTAIN,
        lambda capabilities, _: _if(capabilities, Feature.PENALTIES, processors.history_cases()),
    ),
    Check("forced-thinking", clause_ids("thinking.force"), Kind.NEAR_CERTAIN, _thinking),
)


def _if(capabilities: Capabilities, feature: Feature, cases: tuple[Case, ...]) -> tuple[Case, ...]:
    """Return the cases if the backend does that step itself; a kernel inherits it."""
    return cases if capabilities.level > 1 and feature in capabilities.features else ()
