"""Logprobs in every mode that a sampler offers, and what no logprob may ever be.

A sampler whose `sample` takes a keyword `logprobs_mode` is asked in all four modes; any other is
taken to be in raw_logprobs, the default.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Bool, Float64
from scipy.special import logsumexp
from torch import Tensor

from refsampler.backends.protocol import BatchSampler, Capabilities, Feature
from refsampler.clauses import ClauseId
from refsampler.conformance.answers import SamplerAnswer, read_output
from refsampler.conformance.case import Case
from refsampler.conformance.checks.base import Asked, Check, Finding, Kind, Trial, clause_ids
from refsampler.conformance.checks.logprobs import Columns, judge_row
from refsampler.conformance.designed.logprobs import finite_cases, mode_cases
from refsampler.conformance.sessions import asking
from refsampler.conformance.subject import OpenSubject, derived_seed, seeded
from refsampler.law import target_law
from refsampler.logprobs import LOGPROBS_MODES, LogprobsTensors
from refsampler.metadata import SamplingMetadata
from refsampler.request import Request
from refsampler.sampler import SamplerOutput

__all__ = ["CHECKS", "offers_modes"]

_FINITE, _RAW, _NEUTRAL = (ClauseId(f"logprobs.{name}") for name in ("finite", "raw", "neutral"))
_SHOWN = clause_ids("logprobs.raw", "logprobs.rank")
_OTHER_STAGE = {
    "raw_logprobs": "processed_logprobs",
    "processed_logprobs": "raw_logprobs",
    "raw_logits": "processed_logits",
    "processed_logits": "raw_logits",
}
"""Mode -> the mode that shows the same quantity of the other stage."""
_Sample = Callable[[Tensor, SamplingMetadata], SamplerOutput]


def offers_modes(subject: OpenSubject) -> bool:
    """Say whether the sampler takes a keyword `logprobs_mode`."""
    sample = getattr(subject.backend, "sample", None)
    try:
        return sample is not None and "logprobs_mode" in inspect.signature(sample).parameters
    except (TypeError, ValueError):
        return False


def _mode_cases(capabilities: Capabilities, _run_seed: int) -> tuple[Case, ...]:
    if capabilities.level != 2 or Feature.LOGPROBS not in capabilities.features:
        return ()
    features = capabilities.features
    return mode_cases(
        masks=Feature.MASKS in features,
        penalties=Feature.PENALTIES in features,
        seeds=Feature.SEED in features,
    )


def _ask_modes(subject: OpenSubject, case: Case) -> Asked:
    """Ask in each mode, and in each mode again without anyone wanting logprobs."""
    modes = LOGPROBS_MODES if offers_modes(subject) else ("raw_logprobs",)
    findings: list[Finding] = []
    for mode in modes:
        shown, confused = (_stage(subject, case, one) for one in (mode, _OTHER_STAGE[mode]))
        answer = _sample(subject, case, mode if offers_modes(subject) else None)
        silent = _sample(subject, _silent(case), mode if offers_modes(subject) else None)
        findings += [_of_mode(one, mode) for one in _judge(case, answer, shown, confused, mode)]
        findings += [_of_mode(one, mode) for one in _judge_silent(case, answer, silent)]
    first = {(one.clause, one.guess): one for one in findings[::-1]}
    return Asked(tuple(first.values()), 2 * len(modes) * len(case.requests))


def _of_mode(found: Finding, mode: str) -> Finding:
    """Say in which mode; what is processed wrongly is shown wrongly by an obedient one too."""
    guess = mode.startswith("processed") and found.clause in _SHOWN
    return replace(found, seen=f"{found.seen} in mode {mode}", guess=guess)


def _sample(subject: OpenSubject, case: Case, mode: str | None) -> SamplerAnswer:
    assert isinstance(subject.backend, BatchSampler)
    device = subject.capabilities.device
    logits = case.build_logits(device)
    metadata = _metadata(case, device)
    with asking(), seeded(derived_seed(subject.run_seed, case.id), device):
        if mode is None:
            output = subject.backend.sample(logits, metadata)
        else:
            output = subject.backend.sample(logits, metadata, logprobs_mode=mode)  # type: ignore[call-arg]  # seen to take it
    return read_output(output, *logits.shape)


def _metadata(case: Case, device: str) -> SamplingMetadata:
    """Return the batch, with filters on its greedy rows too if any row has them.

    Requests cannot ask for that, but a batch of an engine may hold it; a greedy row minds none.
    """
    metadata = SamplingMetadata.from_requests(case.requests, case.logits.vocab, device=device)
    if metadata.top_k is None or metadata.temperature is None:
        return metadata
    greedy = metadata.temperature == 0
    return replace(metadata, top_k=torch.where(greedy, 2, metadata.top_k).to(torch.int32))


def _silent(case: Case) -> Case:
    def without(asked: Request) -> Request:
        params = replace(asked.params, logprobs=None, logprob_token_ids=None)
        return replace(asked, params=params)

    return replace(case, requests=tuple(map(without, case.requests)))


@dataclass(frozen=True, slots=True, eq=False)
class _Stage:
    """What a mode shows of every row.

    Attributes:
        values: in float64: raw, or what the draw was made from.
        lawful: rows that have a law; of the others nothing is promised.
        sure: rows of which neither ties nor rounding leave open what the filters keep.
        shifted: values of a row may have any sum in common, as log-probabilities have that go on as
            logits.

    """

    values: Float64[np.ndarray, "rows vocab"]
    lawful: Bool[np.ndarray, " rows"]
    sure: Bool[np.ndarray, " rows"]
    shifted: bool

    def beside(self, row: int, columns: Columns) -> Float64[np.ndarray, " vocab"]:
        """Return the values of a row, moved to those shown where any sum may be in them."""
        values: Float64[np.ndarray, " vocab"] = self.values[row]
        if not self.shifted or not len(columns.ids):
            return values
        there, here = columns.values[0], values[columns.ids[0]]
        if np.isfinite([there, here]).all():
            values = values + (there - here)
        return values


def _stage(subject: OpenSubject, case: Case, mode: str) -> _Stage:
    logits = case.logits.build(case.dtype.torch)
    if mode.startswith("raw"):
        values = logits.double().numpy()
        lawful = sure = np.isfinite(values.max(axis=-1))
    else:
        semantics = subject.capabilities.semantics
        law = target_law(logits, case.requests, semantics)
        values = law.processed.numpy()
        lawful = law.valid.numpy()
        sure = (law.exact & (law.lump_count == 0)).numpy()
    if mode.endswith("logprobs"):
        with np.errstate(invalid="ignore"):  # rows without a law
            values = values - logsumexp(values, axis=-1, keepdims=True)
    space = subject.capabilities.semantics.filter_space
    shifted = mode == "processed_logits" and space == "logprob"
    return _Stage(values, lawful, sure, shifted)


def _judge(
    case: Case, answer: SamplerAnswer, shown: _Stage, confused: _Stage, mode: str
) -> Iterator[Finding]:
    """Judge every row by what the mode shows; one that is all right of the other stage is of that."""
    tensors = answer.output.logprobs_tensors if answer.output is not None else None
    if tensors is None or tensors.logprob_token_ids.numel() == 0:
        if any(_asks(one) for one in case.requests):
            yield Finding(ClauseId("logprobs.gather"), "logprobs for rows that ask", "none")
        return
    for row, columns in enumerate(_columns(tensors)):
        if not shown.lawful[row]:
            continue
        request = case.requests[row]
        sampled = int(answer.ids[row])
        if shown.sure[row]:
            yield from _judge_values(row, request, sampled, columns, shown, confused, mode)
        if mode == "processed_logprobs" and len(columns.values):
            value = columns.values[0]
            if not np.isfinite(value):
                yield Finding(_FINITE, "a finite logprob of the sampled id", f"{value}", row=row)
        if _asks(request) and np.isnan(columns.values).any():
            yield Finding(_FINITE, "no NaN", "NaN", row=row)


def _judge_values(
    row: int,
    request: Request,
    sampled: int,
    columns: Columns,
    shown: _Stage,
    confused: _Stage,
    mode: str,
) -> Iterator[Finding]:
    found = [*judge_row(row, request.params, sampled, columns, shown.beside(row, columns))]
    could_be = confused.lawful[row] and confused.sure[row]
    if (
        found
        and could_be
        and not [*judge_row(row, request.params, sampled, columns, confused.values[row])]
    ):
        found = [Finding(_RAW, mode, f"values of {_OTHER_STAGE[mode]}", row=row)]
    yield from found


def _asks(request: Request) -> bool:
    params = request.params
    return params.logprobs is not None or bool(params.logprob_token_ids)


def _columns(tensors: LogprobsTensors) -> Iterator[Columns]:
    ids = tensors.logprob_token_ids.cpu().numpy()
    values = tensors.logprobs.double().cpu().numpy()
    valid = tensors.valid.cpu().numpy()
    ranks = tensors.selected_token_ranks.cpu().numpy()
    for row, kept in enumerate(valid):
        yield Columns(ids[row][kept], values[row][kept], int(ranks[row]))


def _judge_silent(case: Case, answer: SamplerAnswer, silent: SamplerAnswer) -> Iterator[Finding]:
    """Compare greedy and seeded ids with those of the batch in which nobody asks."""
    if len(answer.ids) != len(silent.ids):
        return
    for row, request in enumerate(case.requests):
        fixed = request.params.greedy or request.params.seed is not None
        if fixed and answer.ids[row] != silent.ids[row]:
            expected = f"id {silent.ids[row]}, as without logprobs"
            yield Finding(_NEUTRAL, expected, f"id {answer.ids[row]}", row=row)


def _finite_cases(capabilities: Capabilities, _run_seed: int) -> tuple[Case, ...]:
    if capabilities.level == 1 or Feature.LOGPROBS not in capabilities.features:
        return ()
    return finite_cases(masks=Feature.MASKS in capabilities.features)


def _judge_finite(trial: Trial) -> tuple[Finding, ...]:
    """Look for NaN, for -inf of ids that nothing masked, and for sampled ids of -inf."""
    arrangement = trial.arrangements[0]
    logits = arrangement.case.build_logits().double().numpy()
    for draw in arrangement.draws:
        tensors = draw.output.logprobs_tensors if draw.output is not None else None
        if tensors is None or tensors.logprob_token_ids.numel() == 0:
            continue
        for row, columns in enumerate(_columns(tensors)):
            lawful = arrangement.expected.row(row).valid
            masked = ~np.isfinite(logits[row][columns.ids])
            low = np.isneginf(columns.values)
            if np.isnan(columns.values).any():
                return (Finding(_FINITE, "no NaN", "NaN", row=row),)
            if lawful and (low & ~masked).any():
                token = columns.ids[np.flatnonzero(low & ~masked)[0]]
                expected = f"a finite logprob of id {token}, which nothing masks"
                return (Finding(_FINITE, expected, "-inf", row=row),)
            if lawful and not low[masked].all():
                return (Finding(_FINITE, "-inf of a masked id", f"{columns.values}", row=row),)
    return ()


CHECKS: tuple[Check, ...] = (
    Check(
        "logprobs-modes",
        clause_ids("logprobs.raw", "logprobs.gather", "logprobs.rank", "logprobs.neutral", _FINITE),
        Kind.EXACT,
        _mode_cases,
        ask=_ask_modes,
    ),
    Check("logprobs-finite", (_FINITE,), Kind.EXACT, _finite_cases, _judge_finite),
)
