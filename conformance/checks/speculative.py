"""Speculative decoding: what each step may emit, what is refused, and seeded requests alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import combinations
from typing import Final

import torch
from torch import Tensor

from refsampler.backends.protocol import Capabilities, Feature
from refsampler.batch_update import BatchUpdate
from refsampler.clauses import ClauseId
from refsampler.conformance.case import Case
from refsampler.conformance.checks.base import Asked, Check, Finding, Kind, clause_ids
from refsampler.conformance.checks.verified import places_of, wrong_walk
from refsampler.conformance.designed import draft_rules
from refsampler.conformance.designed import speculative as designed
from refsampler.conformance.subject import OpenSubject, SubjectError, derived_seed
from refsampler.conformance.verifying import Answer, Step, step_of, verify
from refsampler.processors import LogitsProcessor

__all__ = ["CHECKS", "ENOUGH", "given_step"]

_PROCESSORS, _DEGENERATE, _DRAFT_LAW = clause_ids(
    "spec.processors", "spec.degenerate", "spec.draft-law"
)
_LAW, _GREEDY, _PADDING = clause_ids("spec.law", "spec.greedy", "output.vocab-padding")
_SEEDED = clause_ids("seed.batch", "seed.reproducible")
ENOUGH: Final = 24
"""Flat ids that are compared: all equal with probability 7^-24 = 5e-21, a pair of calls."""


def given_step(case: Case, device: str = "cpu") -> Step:
    """Return the step of a case as it is handed over: a law without a residual is rounded up."""
    step = step_of(case, device)
    if _DEGENERATE in case.clauses and step.draft_probs is not None:
        step = replace(step, draft_probs=step.draft_probs * designed.ROUNDED_UP)
    return step


def _ask(subject: OpenSubject, case: Case) -> Asked:
    """Verify a step again and again; every walk has to be one that some noise allows."""
    step = given_step(case, subject.capabilities.device)
    places = places_of(case, step, subject.capabilities.semantics)
    drawn = 0
    for call in range(case.calls):
        answer = verify(subject, step, derived_seed(subject.run_seed, case.id, call))
        drawn += sum(map(len, answer.ids))
        findings = [*_of_form(subject.capabilities, case, answer, call)]
        for number, ids in enumerate(answer.ids):
            wrong = "" if findings else wrong_walk(places[number], ids)
            if wrong:
                seen = f"{wrong} (request {number + 1} emits {list(ids)})"
                expected = "what some noise allows by the exact laws"
                named = _explaining(case, greedy=places[number][0].greedy)
                findings.append(
                    Finding(named[0], expected, seen, row=number, call=call, candidates=named)
                )
        if findings:
            return Asked(tuple(findings), drawn)
    return Asked((), drawn)


def _explaining(case: Case, *, greedy: bool) -> tuple[ClauseId, ...]:
    """Return the clauses that explain a wrong walk: the case's, and what is wrong in any case.

    The others count only where cases of their own show them.  Those of `spec.law` have equal rows,
    so that no mistake about rows or positions shows there.
    """
    clauses = case.clauses
    if _LAW in clauses:
        return clauses
    if _PADDING in clauses:
        return (*clauses, _DRAFT_LAW)
    return tuple(dict.fromkeys((*clauses, *((_GREEDY,) if greedy else (_DRAFT_LAW, _LAW)))))


def _of_form(
    capabilities: Capabilities, case: Case, answer: Answer, call: int
) -> Iterator[Finding]:
    """Yield what is wrong with an answer whatever the laws are."""
    if answer.form:
        yield Finding(ClauseId("output.form"), "ids, then -1", answer.form, call=call)
    if answer.changed and Feature.IN_PLACE not in capabilities.features:
        yield Finding(ClauseId("input.untouched"), "the same logits", "other logits", call=call)
    vocab = case.logits.vocab
    outside = [token for ids in answer.ids for token in ids if not 0 <= token < vocab]
    if outside:
        seen = f"id {outside[0]}"
        yield Finding(ClauseId("output.range"), f"ids from 0 to {vocab - 1}", seen, call=call)


class _Custom(LogitsProcessor):
    """A processor of a user's own, which lifts id 1."""

    def is_argmax_invariant(self) -> bool:
        return False

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        pass

    def apply(self, logits: Tensor) -> Tensor:
        return logits + (torch.arange(logits.shape[-1], device=logits.device) == 1)


def _ask_refusal(subject: OpenSubject, case: Case) -> Asked:
    """Hand over a batch that no verifier can honour; ValueError is the right answer."""
    step = step_of(case, subject.capabilities.device)
    params = case.requests[0].params
    custom = () if params.min_p or params.logit_bias else (_Custom,)
    if custom and subject.capabilities.level == 3:
        return Asked(unasked="an engine is given requests, never processors")
    what = "a custom processor" if custom else "min_p" if params.min_p else "logit_bias"
    seed = derived_seed(subject.run_seed, case.id)
    try:
        answer = verify(subject, step, seed, speculative=False, custom=custom)
    except SubjectError as error:
        if error.refused:
            return Asked(draws=1)
        seen = str(error)
    else:
        seen = f"ids {list(map(list, answer.ids))}"
    found = Finding(_PROCESSORS, f"{what} refused with ValueError beside drafts", seen)
    return Asked((found,), 1)


def _ask_fresh(subject: OpenSubject, case: Case) -> Asked:
    """Verify a step in several calls: none may accept, recover or add what another did."""
    step = step_of(case, subject.capabilities.device)
    answers = []
    for call in range(case.calls):
        answer = verify(subject, step, derived_seed(subject.run_seed, case.id, call))
        wrong = tuple(_of_form(subject.capabilities, case, answer, call))
        if wrong:
            return Asked(wrong, call)
        answers.append(answer.ids)
    draws = case.calls * len(step.requests)
    for first, second in combinations(range(case.calls), 2):
        pairs = list(zip(answers[first], answers[second], strict=True))
        same = [len(one) == len(other) for one, other in pairs]
        repeated = ["accepts the same drafts"] if all(same) else []
        for length, words in ((1, "puts the same ids in their place"), (2, "adds the same ids")):
            ends = [one[-1] == two[-1] for one, two in pairs if len(one) == len(two) == length]
            repeated += [words] if len(ends) >= ENOUGH and all(ends) else []
        if repeated:
            seen = f"call {second + 1} {', '.join(repeated)} as call {first + 1}"
            charge = float(max(2.0 ** -len(pairs), designed.FLAT_IDS**-ENOUGH))
            return Asked((Finding(_LAW, "fresh noise in every call", seen, charge),), draws)
    return Asked((), draws)


def _ask_seeded(subject: OpenSubject, case: Case) -> Asked:
    """Compare what a seeded request emits alone, again, and among others in another order."""
    step = step_of(case, subject.capabilities.device)
    parts = _parts(step)
    findings: dict[ClauseId, Finding] = {}
    for call in range(case.calls):
        seeds = [derived_seed(subject.run_seed, case.id, call, at) for at in range(len(parts))]
        fresh = [
            replace(
                one,
                requests=tuple(
                    replace(asked, params=replace(asked.params, seed=seed))
                    for asked in one.requests
                ),
            )
            for one, seed in zip(parts, seeds, strict=True)
        ]
        alone = [verify(subject, one, 1).ids for one in fresh]
        again = [verify(subject, one, 2).ids for one in fresh]
        order = [*range(1, len(parts)), 0]
        together = verify(subject, _joined([fresh[at] for at in order]), 3).ids
        for place, at in enumerate(order):
            right = alone[at][:1]
            for clause, other in zip(
                _SEEDED, (together[place : place + 1], again[at][:1]), strict=True
            ):
                if other != right:
                    how = "alone" if clause == "seed.batch" else "the first time"
                    words = f"ids {list(map(list, right))} as {how}"
                    seen = f"ids {list(map(list, other))}"
                    findings.setdefault(clause, Finding(clause, words, seen, row=at, call=call))
    # what does not even repeat says nothing about its neighbours
    found = findings.get(_SEEDED[1]) or findings.get(_SEEDED[0])
    draws = 3 * case.calls * len(case.requests)
    return Asked(() if found is None else (found,), draws)


def _parts(step: Step) -> list[Step]:
    """Return each request as a step of its own."""
    sizes = [len(one) for one in step.drafts]
    assert step.draft_probs is not None
    rows = torch.split(step.logits, [size + 1 for size in sizes])
    laws = torch.split(step.draft_probs, sizes)
    return [
        Step((one,), logits, probs)
        for one, logits, probs in zip(step.requests, rows, laws, strict=True)
    ]


def _joined(parts: list[Step]) -> Step:
    """Return several steps as one."""
    laws = [one.draft_probs for one in parts if one.draft_probs is not None]
    return Step(
        tuple(one.requests[0] for one in parts),
        torch.cat([one.logits for one in parts]),
        torch.cat(laws),
    )


def _seeded_cases(capabilities: Capabilities, _run_seed: int) -> tuple[Case, ...]:
    seedable = {Feature.SPECULATIVE, Feature.SEED} <= capabilities.features
    return (designed.seeded_case(),) if seedable else ()


_Made = Callable[[frozenset[Feature]], tuple[Case, ...]]


def _check(name: str, clause: str, made: _Made) -> Check:
    def cases(capabilities: Capabilities, _run_seed: int) -> tuple[Case, ...]:
        features = capabilities.features
        return made(features) if Feature.SPECULATIVE in features else ()

    return Check(name, clause_ids(clause), Kind.EXACT, cases, ask=_ask)


CHECKS: tuple[Check, ...] = (
    _check("draft-positions", "spec.draft-law", lambda _: designed.position_cases()),
    _check("disjoint-laws", "spec.law", lambda _: designed.law_cases()),
    _check("empty-residuals", "spec.degenerate", lambda _: designed.degenerate_cases()),
    _check("greedy-drafts", "spec.greedy", designed.greedy_cases),
    _check("draft-histories", "spec.history", draft_rules.history_cases),
    _check("draft-constraints", "spec.processors", draft_rules.constraint_cases),
    _check("padded-drafts", "output.vocab-padding", lambda _: (designed.padded_case(),)),
    replace(
        _check("refused-beside-drafts", "spec.processors", lambda _: designed.refused_cases()),
        ask=_ask_refusal,
    ),
    replace(
        _check("fresh-steps", "spec.law", lambda _: (designed.fresh_case(),)),
        kind=Kind.NEAR_CERTAIN,
        ask=_ask_fresh,
    ),
    Check("seeded-drafts", _SEEDED, Kind.EXACT, _seeded_cases, ask=_ask_seeded),
)
