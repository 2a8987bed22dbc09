"""Masks, bias, penalties, histories and thinking."""

from __future__ import annotations

from refsampler.backends.protocol import Capabilities, Feature
from refsampler.conformance.case import Case
from refsampler.conformance.checks.base import Check, Kind, clause_ids
from refsampler.conformance.checks.inputs import legal
from refsampler.conformance.designed import processors, ragged

__all__ = ["CHECKS"]


def _thinking(capabilities: Capabilities, _run_seed: int) -> tuple[Case, ...]:
    """Return nothing for engines: the markers are part of the model, not of a request."""
    declared = Feature.THINKING in capabilities.features and capabilities.level == 2
    return processors.thinking_cases() if declared else ()


_VOCAB = 12
_MASKS = ("mask.allowed", "mask.bad-words", "mask.min-tokens", "bias.additive")
_PENALTIES = ("penalty.history", "penalty.repetition", "penalty.frequency", "penalty.presence")


def _other_masks(capabilities: Capabilities, _run_seed: int) -> tuple[Case, ...]:
    cases = (*processors.mask_cases(), *processors.bias_cases())
    more = (*ragged.swapped(cases), *ragged.ragged(cases, *_MASKS))
    return _if(capabilities, Feature.MASKS, (*more, *ragged.grammar_mask_cases(_VOCAB)))


def _other_penalties(capabilities: Capabilities, _run_seed: int) -> tuple[Case, ...]:
    cases, histories = processors.penalty_cases(), processors.history_cases()
    more = (
        *ragged.swapped((*cases, *histories)),
        *ragged.ragged(cases, *_PENALTIES),
        *ragged.grammar_penalty_cases(_VOCAB),
        *ragged.tied_cases(_VOCAB),
    )
    return _if(capabilities, Feature.PENALTIES, more)


def _one_path(capabilities: Capabilities, _run_seed: int) -> tuple[Case, ...]:
    masks = (*processors.mask_cases(), *processors.bias_cases())
    return (
        *_if(capabilities, Feature.MASKS, ragged.one_path(masks)),
        *_if(capabilities, Feature.PENALTIES, ragged.one_path(processors.penalty_cases())),
    )


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
    Check(
        "masks-ragged",
        clause_ids(*_MASKS, "order.pipeline", "effect.parameters"),
        Kind.NEAR_CERTAIN,
        _other_masks,
    ),
    Check(
        "penalties-ragged",
        clause_ids(*_PENALTIES, "order.pipeline", "effect.parameters", "greedy.tie"),
        Kind.NEAR_CERTAIN,
        _other_penalties,
    ),
    Check(
        "processors-on-one-path",
        clause_ids(
            *_MASKS,
            "penalty.repetition",
            "penalty.frequency",
            "penalty.presence",
            "order.pipeline",
            "effect.parameters",
        ),
        Kind.NEAR_CERTAIN,
        _one_path,
    ),
    Check("forced-thinking", clause_ids("thinking.force"), Kind.NEAR_CERTAIN, _thinking),
)


def _if(capabilities: Capabilities, feature: Feature, cases: tuple[Case, ...]) -> tuple[Case, ...]:
    """Return the cases if the backend does that step itself; a kernel inherits it.

    Rows that ask for another step, which the backend does not declare, are left out.
    """
    declared = capabilities.level > 1 and feature in capabilities.features
    return legal(capabilities, cases) if declared else ()
