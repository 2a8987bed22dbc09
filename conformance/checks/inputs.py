"""Dtypes, layouts, extreme numbers, vocabulary padding, rows without a law, few finite ids."""

from __future__ import annotations

from dataclasses import replace

from refsampler.backends.protocol import Capabilities, Feature
from refsampler.clauses import ClauseId
from refsampler.conformance.case import Case
from refsampler.conformance.checks.base import Check, Finding, Kind, Trial, clause_ids
from refsampler.conformance.designed import inputs
from refsampler.request import Request

__all__ = ["CHECKS", "legal"]


def _flagged(trial: Trial) -> tuple[Finding, ...]:
    """Report a row that is flagged and has a law, or has none and is not flagged; exact."""
    arrangement = trial.arrangements[0]
    lawful = [arrangement.expected.row(row).valid for row in range(len(arrangement.case.requests))]
    for call, draw in enumerate(arrangement.draws):
        flags = [] if draw.output is None else draw.output.valid.tolist()
        for row, (right, flag) in enumerate(zip(lawful, flags, strict=False)):
            if right != flag:
                expected, seen = (f"valid = {one}" for one in (right, flag))
                return (Finding(ClauseId("mask.flagged"), expected, seen, row=row, call=call),)
    return ()


def legal(capabilities: Capabilities, cases: tuple[Case, ...]) -> tuple[Case, ...]:
    """Leave out rows that ask for what the backend does not declare."""
    if capabilities.level == 1:
        return cases if Feature.SEED in capabilities.features else _without(cases, seed=True)
    features = capabilities.features
    return _without(
        cases,
        seed=Feature.SEED not in features,
        masks=Feature.MASKS not in features,
        penalties=Feature.PENALTIES not in features,
    )


def _without(
    cases: tuple[Case, ...], *, seed: bool = False, masks: bool = False, penalties: bool = False
) -> tuple[Case, ...]:
    def unfit(request: Request) -> bool:
        params = request.params
        masked = params.allowed_token_ids or params.bad_words_token_ids or params.logit_bias
        return bool(
            (seed and params.seed is not None)
            or (masks and (masked or params.min_tokens))
            or (penalties and params.penalised)
        )

    kept = []
    for case in cases:
        rows = [row for row, request in enumerate(case.requests) if not unfit(request)]
        if rows or not case.requests:
            recipe = replace(case.logits, rows=tuple(case.logits.rows[row] for row in rows))
            asked = tuple(case.requests[row] for row in rows)
            kept.append(replace(case, logits=recipe, requests=asked))
    return tuple(kept)


CHECKS: tuple[Check, ...] = (
    Check(
        "layouts",
        clause_ids("input.layout"),
        Kind.NEAR_CERTAIN,
        lambda capabilities, _: legal(capabilities, inputs.layout_cases()),
    ),
    Check(
        "dtypes",
        clause_ids("input.dtypes"),
        Kind.NEAR_CERTAIN,
        lambda capabilities, _: legal(capabilities, inputs.dtype_cases(capabilities)),
    ),
    Check(
        "extreme-numbers",
        clause_ids("input.extreme"),
        Kind.NEAR_CERTAIN,
        lambda capabilities, _: legal(capabilities, inputs.extreme_cases()),
    ),
    Check(
        "vocabulary-padding",
        clause_ids("output.vocab-padding"),
        Kind.NEAR_CERTAIN,
        lambda capabilities, _: legal(capabilities, inputs.padding_cases()),
    ),
    Check(
        "few-finite-ids",
        clause_ids("draw.support"),
        Kind.NEAR_CERTAIN,
        lambda capabilities, _: legal(capabilities, inputs.few_finite_cases()),
    ),
    Check(
        "rows-without-law",
        clause_ids("nonfinite.contained", "batch.isolation"),
        Kind.NEAR_CERTAIN,
        lambda capabilities, _: legal(capabilities, inputs.nonfinite_cases()),
    ),
    Check(
        "empty-supports",
        clause_ids("mask.empty", "mask.flagged", "nonfinite.contained"),
        Kind.NEAR_CERTAIN,
        lambda capabilities, _: legal(capabilities, inputs.empty_cases()),
        judge=_flagged,
    ),
)
