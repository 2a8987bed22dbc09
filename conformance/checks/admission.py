"""Admission: what is out of range is refused by name, and leaves everything else as it was."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from typing import Any

from refsampler.backends.protocol import Capabilities, Feature, Session
from refsampler.clauses import ClauseId
from refsampler.conformance.case import Case
from refsampler.conformance.checks.base import Asked, Check, Finding, Kind
from refsampler.conformance.checks.expected import Expected
from refsampler.conformance.closing import quietly
from refsampler.conformance.designed import sessions as designed
from refsampler.conformance.designed.build import Row, batch
from refsampler.conformance.sessions import asking, opened, sample_step
from refsampler.conformance.subject import OpenSubject, SubjectError, derived_seed
from refsampler.params import SamplingParams
from refsampler.request import Request

__all__ = ["CHECKS", "BadRequest", "bad_requests", "unchecked"]

_CLAUSE = ClauseId("input.validated")
_V = designed.VOCAB
_NEW = 99


@dataclass(frozen=True, slots=True)
class BadRequest:
    """One number out of range.

    Attributes:
        field: of the parameters or of the request.
        value: all of the field.
        shown: what a good message shows of the value.
        bounds: of these at least one is in the message that names the allowed range.
        feature: without which nobody may ask for it at all.

    """

    field: str
    value: Any
    shown: str
    bounds: tuple[str, ...]
    feature: Feature | None = None


def unchecked(field: str, value: object) -> Request:
    """Return a request with a value that `SamplingParams` or `verify` would refuse."""
    params = copy.copy(SamplingParams())
    if field in {one.name for one in fields(SamplingParams)}:
        object.__setattr__(params, field, value)
        return Request(params)
    return Request(params, **{field: value})  # type: ignore[arg-type]  # prompt or output


def bad_requests(vocab: int, features: frozenset[Feature]) -> tuple[BadRequest, ...]:
    """Return numbers beyond both ends of every range, as far as the features reach."""
    last = str(vocab - 1)
    numbers: tuple[tuple[str, tuple[float, ...], tuple[str, ...], Feature | None], ...] = (
        ("temperature", (-0.5, math.nan, math.inf), ("0",), None),
        ("top_p", (0.0, -0.25, 1.5, math.nan), ("0", "1"), None),
        ("top_k", (-2,), ("-1", "0"), None),
        ("min_p", (-0.25, 1.5), ("0", "1"), None),
        ("repetition_penalty", (0.0, -1.5), ("0", "above", "positive", "2**-"), Feature.PENALTIES),
        ("frequency_penalty", (2.5, -2.5), ("2",), Feature.PENALTIES),
        ("presence_penalty", (2.5, -2.5), ("2",), Feature.PENALTIES),
        ("min_tokens", (-3, 77), ("0", "16"), Feature.MASKS),
        ("max_tokens", (0, -7), ("1",), None),
        ("seed", (2**64,), ("2**", "64", "18446744073709551615"), Feature.SEED),
        ("logprobs", (-5, vocab + 4), ("-1", "0", str(vocab)), Feature.LOGPROBS),
    )
    found = [
        BadRequest(field, value, _number(value), bounds, feature)
        for field, values, bounds, feature in numbers
        for value in values
    ]
    masks, beyond = Feature.MASKS, vocab + 3
    lists: tuple[tuple[str, Any, int | str, Feature | None], ...] = (
        ("prompt", (5, beyond), beyond, None),
        ("prompt", (-7,), -7, None),
        ("output", (5, beyond), beyond, None),
        ("output", (-7,), -7, None),
        ("allowed_token_ids", (beyond,), beyond, masks),
        ("allowed_token_ids", (3, -7), -7, masks),
        ("stop_token_ids", (beyond,), beyond, masks),
        ("eos_token_id", beyond, beyond, masks),
        ("bad_words_token_ids", ((3, beyond),), beyond, masks),
        ("bad_words_token_ids", ((-7, 3),), -7, masks),
        ("logit_bias", ((beyond, 1.0),), beyond, masks),
        ("logprob_token_ids", (beyond,), beyond, Feature.LOGPROBS),
        ("logprob_token_ids", (3, -7), -7, Feature.LOGPROBS),
    )
    found += [
        BadRequest(field, value, str(shown), (last, str(vocab)), feature)
        for field, value, shown, feature in lists
    ]
    found += [
        BadRequest("logit_bias", ((3, math.nan),), "nan", ("finite", "-inf"), masks),
        BadRequest("logit_bias", ((3, math.inf),), "inf", ("finite", "-inf"), masks),
        BadRequest("allowed_token_ids", (), "()", ("one", "1", "empty"), masks),
        BadRequest("bad_words_token_ids", ((3,), ()), "()", ("one", "1", "empty"), masks),
    ]
    return tuple(one for one in found if one.feature is None or one.feature in features)


def _number(value: float) -> str:
    return str(int(value)) if math.isfinite(value) and value == int(value) else str(value)


def _cases(capabilities: Capabilities, _run_seed: int) -> tuple[Case, ...]:
    """Return good requests of every kind, beside which bad ones knock."""
    if capabilities.level != 3:
        return ()
    rows: list[Row] = []
    for number, kind in enumerate(designed.asks(capabilities.features)):
        ids = tuple((first + 7 * number) % _V for first in (0, 19, 42, 62))
        rows.append(designed.member(kind, ids, greedy=number % 2 == 0, prompt=ids[:1]))
    return (batch(_V, rows, _CLAUSE),)


def _ask(subject: OpenSubject, case: Case) -> Asked:
    """Let every bad request knock at a running session; look at the good ones after each."""
    with opened(subject, _V, derived_seed(subject.run_seed, case.id), quietly) as session:
        return _ask_in(subject, case, session)


def _ask_in(subject: OpenSubject, case: Case, session: Session) -> Asked:
    with asking():
        for name, request in enumerate(case.requests):
            session.add(name, request)
    laws = Expected.of(case, subject.capabilities.semantics)
    names, rows = tuple(range(len(case.requests))), list(range(len(case.requests)))
    draws = 0

    def wrong() -> str:
        nonlocal draws
        ids = sample_step(subject, session, case, names, rows).ids
        draws += len(ids)
        return next(
            (
                f"id {token} for request {row}"
                for row, token in enumerate(ids)
                if not (0 <= token < _V and laws.row(row).allowed[token])
            ),
            "",
        )

    if wrong():
        return Asked((), draws)
    findings: list[Finding] = []
    for bad in bad_requests(_V, subject.capabilities.features):
        found = [*_knock(session, bad)]
        after = _after(wrong)
        if after and not found:
            expected = f"the other requests as before a bad {bad.field} was refused"
            found.append(Finding(_CLAUSE, expected, after))
        findings += found
        if after:
            break
    else:
        findings += _newcomer(subject, case, session)
    return Asked(tuple(findings), draws)


def _knock(session: Session, bad: BadRequest) -> Iterator[Finding]:
    """Try to add a bad request: an error that names field, value and range."""
    what = f"an error that names {bad.field}, {bad.shown} and the allowed range"
    try:
        session.add(_NEW, unchecked(bad.field, bad.value))
    except Exception as error:  # noqa: BLE001 - whatever it is, it has to say these things
        words = str(error)
        left = words.replace(bad.field, "", 1).replace(bad.shown, "", 1)
        parts = (bad.field in words, bad.shown in words, any(one in left for one in bad.bounds))
        if not all(parts):
            yield Finding(_CLAUSE, what, f"{type(error).__name__}: {words}")
        return
    yield Finding(_CLAUSE, what, f"{bad.field} = {bad.value!r} admitted")
    with asking():
        session.remove(_NEW)


def _after(wrong: Callable[[], str]) -> str:
    """Say what is wrong with the good requests now, empty if nothing is."""
    try:
        return wrong()
    except SubjectError as error:
        return str(error)


def _newcomer(subject: OpenSubject, case: Case, session: Session) -> Iterator[Finding]:
    """Add good requests under the id that was refused, as if nothing had happened."""
    laws = Expected.of(case, subject.capabilities.semantics)
    for row, request in enumerate(case.requests):
        try:
            with asking():
                session.add(_NEW, request)
            ids = sample_step(subject, session, case, (_NEW,), [row]).ids
            with asking():
                session.remove(_NEW)
        except SubjectError as error:
            yield Finding(_CLAUSE, "a good request after refused ones", str(error), row=row)
            return
        if len(ids) == 1 and not laws.row(row).allowed[int(ids[0]) % _V]:
            expected = "a good request after refused ones, under the same id"
            yield Finding(_CLAUSE, expected, f"id {ids[0]}", row=row)
            return


CHECKS: tuple[Check, ...] = (Check("bad-requests", (_CLAUSE,), Kind.EXACT, _cases, ask=_ask),)
