"""Logprobs of a sampler in its default mode: values from the untouched logits, gather, ranks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float64
from scipy.special import logsumexp

from refsampler.backends.protocol import Capabilities, Feature
from refsampler.clauses import ClauseId
from refsampler.conformance.case import Case
from refsampler.conformance.checks.base import Check, Finding, Kind, Trial, clause_ids
from refsampler.conformance.designed.logprobs import logprobs_cases
from refsampler.conformance.subject import Draw
from refsampler.params import SamplingParams

__all__ = ["CHECKS", "Columns", "judge_draw", "judge_row"]

_ABSOLUTE = 2e-5
_RELATIVE = 2.0**-22


def _cases(capabilities: Capabilities, _run_seed: int) -> tuple[Case, ...]:
    if capabilities.level == 1 or Feature.LOGPROBS not in capabilities.features:
        return ()
    return logprobs_cases(seeds=Feature.SEED in capabilities.features)


def _silent(case: Case) -> tuple[Case, ...]:
    """Return the batch, and the batch without anyone asking."""
    requests = tuple(
        replace(one, params=replace(one.params, logprobs=None, logprob_token_ids=None))
        for one in case.requests
    )
    return (case, replace(case, requests=requests))


@dataclass(frozen=True, slots=True)
class Columns:
    """One row of the result; padding is left out."""

    ids: np.ndarray
    values: np.ndarray
    rank: int


def _judge(trial: Trial) -> tuple[Finding, ...]:
    """Judge every row's columns, then that asking changed no id."""
    asking = trial.arrangements[0]
    findings = [found for draw in asking.draws for found in judge_draw(asking.case, draw)]
    findings += _judge_neutral(trial)
    first = {finding.clause: finding for finding in findings[::-1]}
    return tuple(first.values())


def judge_draw(case: Case, draw: Draw) -> Iterator[Finding]:
    """Judge the raw logprobs of a batch, row by row."""
    if len(draw.ids) != len(case.requests):
        return
    tensors = draw.output.logprobs_tensors if draw.output is not None else None
    if tensors is None:
        yield _finding("logprobs.gather", "logprobs for rows that ask", "none", 0)
        return
    raw = case.build_logits().double().numpy()
    exact = raw - logsumexp(raw, axis=-1, keepdims=True)
    ids = tensors.logprob_token_ids.cpu().numpy()
    values = tensors.logprobs.double().cpu().numpy()
    valid = tensors.valid.cpu().numpy()
    if ids.size == 0:
        if values.shape != exact.shape:
            yield _finding("logprobs.gather", f"full rows {exact.shape}", f"{values.shape}", 0)
        elif not _close(values, exact).all():
            yield _finding("logprobs.raw", "log-softmax of the logits given", "other values", 0)
        return
    ranks = tensors.selected_token_ranks.cpu().numpy()
    for row, request in enumerate(case.requests):
        kept = valid[row]
        columns = Columns(ids[row][kept], values[row][kept], int(ranks[row]))
        yield from judge_row(row, request.params, int(draw.ids[row]), columns, exact[row])


def judge_row(
    row: int,
    params: SamplingParams,
    sampled: int,
    columns: Columns,
    exact: Float64[np.ndarray, " vocab"],
) -> Iterator[Finding]:
    """Judge what one row got, against the values that its mode shows in float64."""
    listed = params.logprob_token_ids
    if params.logprobs is None and not listed:
        return
    if not len(columns.ids) or columns.ids[0] != sampled:
        yield _finding("logprobs.gather", f"sampled id {sampled} first", f"{columns.ids[:1]}", row)
        return
    count = len(exact) if params.logprobs == -1 else params.logprobs or 0
    if listed:
        if tuple(columns.ids[1:]) != listed:
            yield _finding("logprobs.gather", f"ids {listed}", f"{columns.ids[1:]}", row)
    else:
        best = np.sort(exact)[::-1][:count]
        given = np.unique(columns.ids[1 : 1 + count])
        if len(given) < count or not _close(np.sort(exact[given])[::-1], best).all():
            seen = f"{columns.ids[1:]}"
            yield _finding("logprobs.gather", f"the {count} most probable ids", seen, row)
    right = exact[columns.ids]
    if not _close(columns.values, right).all():
        at = int(np.flatnonzero(~_close(columns.values, right))[0])
        token = columns.ids[at]
        seen = f"{columns.values[at]:.7g} for id {token}"
        yield _finding("logprobs.raw", f"{right[at]:.7g} for id {token}", seen, row)
        # ranks among other values say nothing more
        return
    # of a row without support an id comes that has none
    away = abs(exact[sampled]) if np.isfinite(exact[sampled]) else 0.0
    band = _ABSOLUTE + _RELATIVE * away
    # equal logits have equal values in every arithmetic, so that exact ties count
    low = int((exact > exact[sampled] + band).sum()) + int((exact == exact[sampled]).sum())
    high = int((exact >= exact[sampled] - band).sum())
    if not low <= columns.rank <= high:
        yield _finding("logprobs.rank", f"rank {high} of id {sampled}", f"rank {columns.rank}", row)


def _judge_neutral(trial: Trial) -> Iterator[Finding]:
    asking, silent = trial.arrangements[:2]
    for with_, without in zip(asking.draws, silent.draws, strict=True):
        if len(with_.ids) != len(without.ids) or len(with_.ids) != len(asking.case.requests):
            continue
        for row, request in enumerate(asking.case.requests):
            fixed = request.params.greedy or request.params.seed is not None
            if fixed and with_.ids[row] != without.ids[row]:
                expected = f"id {without.ids[row]}, as without logprobs"
                yield _finding("logprobs.neutral", expected, f"id {with_.ids[row]}", row)


def _finding(clause: str, expected: str, seen: str, row: int) -> Finding:
    return Finding(ClauseId(clause), expected, seen, row=row)


def _close(values: np.ndarray, exact: np.ndarray) -> np.ndarray:
    """Compare as float32 log-softmax allows; equal infinities are close, NaN is not."""
    with np.errstate(invalid="ignore"):
        near = np.abs(values - exact) <= _ABSOLUTE + _RELATIVE * np.abs(exact)
    close: np.ndarray = near | (values == exact)
    return close


CHECKS: tuple[Check, ...] = (
    Check(
        "logprobs",
        clause_ids("logprobs.raw", "logprobs.gather", "logprobs.rank", "logprobs.neutral"),
        Kind.EXACT,
        _cases,
        _judge,
        arrange=_silent,
    ),
)
