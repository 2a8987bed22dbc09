"""What no case can say: contradicting flags, masks of another width, float64 logits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from refsampler.backends.protocol import BatchSampler, Capabilities, Feature
from refsampler.clauses import ClauseId
from refsampler.conformance.answers import read_output
from refsampler.conformance.case import Case
from refsampler.conformance.checks.attribution import CERTAIN
from refsampler.conformance.checks.base import Asked, Check, Finding, Kind, clause_ids
from refsampler.conformance.checks.expected import Expected
from refsampler.conformance.checks.rows import draw_charge
from refsampler.conformance.designed.build import batch, peak, request, row
from refsampler.conformance.logits import LogitsRecipe
from refsampler.conformance.sessions import asking
from refsampler.conformance.subject import OpenSubject, SubjectError, derived_seed, seeded
from refsampler.metadata import SamplingMetadata
from refsampler.request import Request
from refsampler.sampler import SamplerOutput

__all__ = ["CHECKS", "NAMES_OF_MASKS", "sample_metadata"]

NAMES_OF_MASKS = ("mask", "width", "size", "shape", "vocab", "allowed")
"""Words by which a refusal says that it is about the mask."""

_FLAGS, _WIDTH = ClauseId("batch.flags"), ClauseId("mask.width")
_DTYPES = ClauseId("input.dtypes")
_DOUBLE = ("dtype", "float64", "double")
_V = 12


def sample_metadata(
    subject: OpenSubject,
    case: Case,
    metadata: SamplingMetadata,
    *,
    dtype: torch.dtype | None = None,
) -> SamplerOutput:
    """Hand a sampler metadata of our own making, and logits of another dtype if one is given.

    Raises:
        SubjectError: the backend raised.

    """
    assert isinstance(subject.backend, BatchSampler)
    device = subject.capabilities.device
    logits = case.build_logits(device).to(dtype or case.dtype.torch)
    with asking(), seeded(derived_seed(subject.run_seed, case.id), device):
        return subject.backend.sample(logits, metadata)


def _metadata(subject: OpenSubject, case: Case) -> SamplingMetadata:
    return SamplingMetadata.from_requests(
        case.requests, case.logits.vocab, device=subject.capabilities.device
    )


def _flag_cases(capabilities: Capabilities, _run_seed: int) -> tuple[Case, ...]:
    """Return greedy, random and mixed rows, and no rows."""
    if capabilities.level != 2:
        return ()
    greedy, drawn = (peak(3), request(temperature=0.0)), (peak(7), request())
    batches = ([greedy, greedy], [drawn, drawn], [greedy, drawn], [drawn] * 9)
    none = Case(LogitsRecipe(_V, ()), (), clauses=(_FLAGS,))
    return (*(batch(_V, rows, _FLAGS) for rows in batches), none)


def _ask_flags(subject: OpenSubject, case: Case) -> Asked:
    """Set both flags: an AssertionError, but an empty output where there are no rows."""
    metadata = replace(_metadata(subject, case), all_greedy=True, all_random=True)
    try:
        output = sample_metadata(subject, case, metadata)
    except SubjectError as error:
        if case.requests and isinstance(error.__cause__, AssertionError):
            return Asked()
        expected = "AssertionError" if case.requests else "ids [0, 1], no flag read"
        return Asked((Finding(_FLAGS, expected, str(error)),))
    if case.requests:
        return Asked((Finding(_FLAGS, "AssertionError", "ids, as if nothing were wrong"),))
    form = read_output(output, 0, _V).form
    return Asked((Finding(_FLAGS, "ids [0, 1]", form),) if form else ())


def _width_cases(capabilities: Capabilities, _run_seed: int) -> tuple[Case, ...]:
    """Return rows whose best id lies where a narrow mask has nothing to say."""
    if capabilities.level != 2 or Feature.MASKS not in capabilities.features:
        return ()
    best = row({0: 100.0, 5: 50.0, 11: 200.0}, base=-2000.0)
    lists: Sequence[tuple[int, ...]] = ((0, 5, 11), (5, 0), (0, 11), (0, 3, 11))
    rows = [(best, request(allowed_token_ids=ids)) for ids in lists]
    greedy = [(best, request(allowed_token_ids=ids, temperature=0.0)) for ids in lists]
    return (batch(_V, rows, _WIDTH), batch(_V, [*greedy, *rows], _WIDTH))


def _ask_width(subject: OpenSubject, case: Case) -> Asked:
    """Cut the mask, down to one column that would broadcast, and widen it."""
    metadata = _metadata(subject, case)
    mask = metadata.allowed_token_ids_mask
    assert mask is not None
    if _judge_width(subject, case, metadata, _V) is not None:
        # what ignores a fitting mask has another clause against it
        return Asked((), len(case.requests))
    findings = []
    for width in (1, _V - 1, _V - 5, _V + 1, _V + 20):
        free = torch.zeros(len(mask), max(0, width - _V), dtype=torch.bool, device=mask.device)
        other = torch.cat([mask[:, :width], free], dim=1).contiguous()
        changed = replace(metadata, allowed_token_ids_mask=other)
        found = _judge_width(subject, case, changed, width)
        if found is not None:
            findings.append(found)
    return Asked(tuple(findings), 5 * len(case.requests))


def _judge_width(
    subject: OpenSubject, case: Case, metadata: SamplingMetadata, width: int
) -> Finding | None:
    """Take a refusal that names the mask, or ids as if what the mask lacks were banned."""
    expected = f"an error about a mask of width {width}, or ids from the first {min(width, _V)}"
    try:
        output = sample_metadata(subject, case, metadata)
    except SubjectError as error:
        named = any(word in str(error).lower() for word in NAMES_OF_MASKS)
        return None if named else Finding(_WIDTH, expected, str(error))
    ids = read_output(output, len(case.requests), _V).ids
    padded = replace(case, requests=tuple(_within(one, width) for one in case.requests))
    laws = Expected.of(padded, subject.capabilities.semantics)
    for place, token in enumerate(ids):
        if not (0 <= token < _V and laws.row(place).allowed[token]):
            return Finding(_WIDTH, expected, f"id {token} in row {place}", row=place)
    return None


def _within(asked: Request, width: int) -> Request:
    """Return the request whose list ends where the mask does."""
    listed = tuple(token for token in asked.params.allowed_token_ids or () if token < width)
    return replace(asked, params=replace(asked.params, allowed_token_ids=listed))


def _double_cases(capabilities: Capabilities, _run_seed: int) -> tuple[Case, ...]:
    """Return rows whose id is certain, or one of two."""
    if capabilities.level != 2:
        return ()
    pair = row({2: 0.0, 7: -0.5})
    rows = [(peak(3), request()), (peak(9), request(temperature=0.0)), (pair, request(top_k=2))]
    return (batch(_V, rows * 8, _DTYPES),)


def _ask_double(subject: OpenSubject, case: Case) -> Asked:
    """Hand over float64 logits: refused by name, or computed right."""
    metadata = _metadata(subject, case)
    expected = "float64 logits refused by name, or ids of their law"
    try:
        output = sample_metadata(subject, case, metadata, dtype=torch.float64)
    except SubjectError as error:
        named = any(one in str(error).lower() for one in _DOUBLE)
        return Asked() if named else Asked((Finding(_DTYPES, expected, str(error)),))
    read = read_output(output, len(case.requests), _V)
    laws = Expected.of(case, subject.capabilities.semantics)
    if len(read.ids) != len(case.requests):
        return Asked((Finding(_DTYPES, expected, read.form),))
    for place, token in enumerate(read.ids):
        law = laws.row(place)
        if not (0 <= token < _V and law.most[token] > -CERTAIN):
            seen = f"id {token} in row {place}"
            charge = draw_charge(len(read.ids))
            return Asked((Finding(_DTYPES, expected, seen, charge, place),), len(read.ids))
    return Asked((), len(read.ids))


CHECKS: tuple[Check, ...] = (
    Check("double-logits", (_DTYPES,), Kind.NEAR_CERTAIN, _double_cases, ask=_ask_double),
    Check("both-flags", clause_ids(_FLAGS), Kind.EXACT, _flag_cases, ask=_ask_flags),
    Check("mask-widths", clause_ids(_WIDTH), Kind.EXACT, _width_cases, ask=_ask_width),
)
