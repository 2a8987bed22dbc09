"""What is judged of every case: form, range, untouched input, supports and near-certain rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Bool

from refsampler.backends.protocol import Capabilities, Feature
from refsampler.clauses import ClauseId
from refsampler.conformance.case import Case
from refsampler.conformance.checks.attribution import (
    CERTAIN,
    Attribution,
    Evidence,
    Kept,
    Seen,
    attribute,
)
from refsampler.conformance.checks.base import Arrangement, Finding, Kind, Trial, clause_ids
from refsampler.conformance.checks.expected import Expected, RowExpected
from refsampler.conformance.checks.standing import owned_clauses

__all__ = ["EVERY_CASE", "draw_charge", "judge_calls", "judge_rows"]

EVERY_CASE = clause_ids(
    "output.form", "output.range", "output.returns", "input.untouched", "draw.support"
)
"""Clauses that every case speaks about, whatever it was made for."""

_SHOWN_IDS = 8
_BLAMED_ROWS = 3
"""Kinds of rows of one batch whose breach is explained; more would only say the same again."""


def draw_charge(draws: int, certain: float = CERTAIN) -> float:
    """Return a bound on the probability that a right backend fails near-certain rows.

    Each draw may be improbable with probability e^-certain, and so may each certain id stay away; of the
    latter a kind of row has at most one for each of its draws.
    """
    return 2 * draws * float(np.exp(-certain))


def judge_rows(trial: Trial) -> tuple[Finding, ...]:
    """Judge every row of every arrangement against its exact law, never side against side."""
    findings: list[Finding] = []
    for place, arrangement in enumerate(trial.arrangements):
        findings += judge_calls(trial.capabilities, arrangement)
        blamed = any(finding.candidates for finding in findings)
        if blamed:
            # what is wrong alone is wrong in every arrangement, and was said
            continue
        if all(len(draw.ids) == len(arrangement.case.requests) for draw in arrangement.draws):
            found = (
                *_judge_laws(trial, arrangement, rearranged=place > 0),
                *_judge_kept(trial, arrangement),
            )
            findings += (replace(one, arrangement=place) for one in found)
    return tuple(findings)


def judge_calls(capabilities: Capabilities, arrangement: Arrangement) -> Iterator[Finding]:
    """Judge form, untouched input and range of every call."""
    vocab = arrangement.case.logits.vocab
    rows = len(arrangement.case.requests)
    right = f"int32 or int64 [{rows}]" if capabilities.level == 1 else f"int32 [{rows}, 1]"
    for call, draw in enumerate(arrangement.draws):
        if draw.form:
            yield Finding(ClauseId("output.form"), right, draw.form, call=call)
        if draw.changed and Feature.IN_PLACE not in capabilities.features:
            yield Finding(
                ClauseId("input.untouched"), "logits as handed over", "other logits", call=call
            )
        beyond = np.flatnonzero((draw.ids < 0) | (draw.ids >= vocab))
        if len(beyond):
            row = int(beyond[0])
            yield Finding(
                ClauseId("output.range"),
                f"ids from 0 to {vocab - 1}",
                f"id {draw.ids[row]} in row {row}",
                row=row,
                call=call,
            )


def _judge_laws(trial: Trial, arrangement: Arrangement, *, rearranged: bool) -> Iterator[Finding]:
    """Judge the draws of rows that are alike together."""
    case, expected = arrangement.case, arrangement.expected
    if not arrangement.draws or not case.requests:
        return
    ids = np.stack([draw.ids for draw in arrangement.draws])
    inside = (ids >= 0) & (ids < case.logits.vocab)
    alike: dict[tuple[int, bool], list[int]] = {}
    for row, (kind, request) in enumerate(
        zip(expected.kind_of.tolist(), case.requests, strict=True)
    ):
        alike.setdefault((kind, request.params.seed is not None), []).append(row)
    blamed = 0
    for (kind, seeded), rows in sorted(alike.items()):
        law = expected.distinct[kind]
        if not law.valid or blamed >= _BLAMED_ROWS:
            continue
        drawn = ids[:, rows][inside[:, rows]]
        if not len(drawn):
            continue
        counts = np.bincount(drawn, minlength=case.logits.vocab)
        near = trial.kind is not Kind.EXACT
        seen = Seen(counts, fresh=not seeded, near_certain=near, certain=trial.certain)
        if not seen.fits(law):
            blamed += 1
            yield from _blame(trial, arrangement, rows[0], seen, law, rearranged)


def _judge_kept(trial: Trial, arrangement: Arrangement) -> Iterator[Finding]:
    """Compare the ids that a kernel says it kept with those it must and may keep."""
    if Feature.PROCESSED not in trial.capabilities.features:
        return
    case = arrangement.case
    for call, draw in enumerate(arrangement.draws):
        if draw.processed is None or len(draw.processed) != len(case.requests):
            continue
        finite = torch.isfinite(draw.processed).cpu().numpy()
        for row in _misfits(finite, arrangement.expected)[:1]:
            law, kept = arrangement.expected.row(row), Kept(finite[row])
            clauses = _explain(trial, arrangement, row, kept).clauses
            clauses = clauses or (ClauseId("draw.support"),)
            expected, seen = _difference(kept, law)
            yield Finding(clauses[0], expected, seen, row=row, call=call, candidates=clauses)
            return


def _misfits(kept: Bool[np.ndarray, "rows vocab"], expected: Expected) -> list[int]:
    """Return the rows, in order, of which a right backend keeps other ids; those alike at once."""
    wrong: list[int] = []
    for kind, law in enumerate(expected.distinct):
        rows = np.flatnonzero(expected.kind_of == kind)
        if law.valid:
            wrong += rows[Kept(kept[rows]).misfits(law)].tolist()
    return sorted(wrong)


def _difference(kept: Kept, law: RowExpected) -> tuple[str, str]:
    """Return expected and seen in words, by one id that is kept or left out wrongly."""
    count = int(kept.ids.sum())
    extra = np.flatnonzero(kept.ids & ~law.allowed)
    if len(extra):
        return f"id {extra[0]} not kept: {_ids(law.allowed)}", f"id {extra[0]} kept, {count} in all"
    if kept.miscounted(law):
        tied = int((kept.ids & law.tied).sum())
        return f"{law.count} of {int(law.tied.sum())} equal ids kept", f"{tied} of them kept"
    lost = np.flatnonzero(law.core & ~kept.ids)
    return f"id {lost[0]} kept: {_ids(law.core)}", f"id {lost[0]} not kept, {count} in all"


def _blame(
    trial: Trial,
    arrangement: Arrangement,
    row: int,
    seen: Seen,
    law: RowExpected,
    rearranged: bool,
) -> Iterator[Finding]:
    """Name the clause that was broken, and the parameter that had no effect, if that is so."""
    words = _Words.of(seen, law)
    explained = _explain(trial, arrangement, row, seen)
    clauses, guess = explained.clauses, False
    if not all(one.valid for one in arrangement.expected.distinct):
        lawless = clause_ids("mask.empty", "nonfinite.contained")
        clauses = (*(one for one in lawless if one in arrangement.case.clauses), *clauses)
    if not clauses:
        if _only_padding(arrangement.case, row, seen, law):
            clauses = clause_ids("output.vocab-padding")
        else:
            clauses = _unexplained(trial, law, impossible=words.impossible, rearranged=rearranged)
            guess = True
    yield Finding(
        clauses[0],
        words.expected,
        words.seen,
        words.charge,
        row,
        candidates=clauses,
        unless=ClauseId("seed.effect") if words.absent else None,
        guess=guess,
    )
    effect = ClauseId("effect.parameters")
    if explained.ignored is not None and effect in arrangement.case.clauses:
        given, name = explained.ignored
        value = getattr(arrangement.case.requests[row].params, name)
        expected = f"{name} = {value} changes the ids"
        yield Finding(effect, expected, "ids as without it", words.charge, row, given=given)


def _explain(trial: Trial, arrangement: Arrangement, row: int, evidence: Evidence) -> Attribution:
    capabilities = trial.capabilities
    owned = owned_clauses(capabilities)
    return attribute(arrangement.case, row, evidence, capabilities.semantics, owned)


def _unexplained(
    trial: Trial, law: RowExpected, *, impossible: bool, rearranged: bool
) -> tuple[ClauseId, ...]:
    """Name the clauses of a wrong id that no single step explains."""
    owned = owned_clauses(trial.capabilities)
    own = [clause for clause in trial.case.clauses if clause in owned]
    if own and (rearranged or not impossible or own[0].partition(".")[0] in _CONTEXTS):
        return (own[0],)
    return (ClauseId("greedy.argmax" if law.greedy else "draw.support"),)


def _only_padding(case: Case, row: int, seen: Seen, law: RowExpected) -> bool:
    """Whether the case has padding, and every wrong id lies in it."""
    if ClauseId("output.vocab-padding") not in case.clauses:
        return False
    banned = np.isneginf(case.logits.rows[row].build(case.logits.vocab))
    padding = np.logical_and.accumulate(banned[::-1])[::-1]
    wrong = seen.impossible(law)
    return bool(len(wrong)) and bool(padding[wrong].all())


_CONTEXTS = frozenset({"batch", "nonfinite", "greedy", "input", "mask", "seed", "penalty"})
"""Groups whose cases are about the surroundings of a row: an unexplained id there is theirs."""


@dataclass(frozen=True, slots=True)
class _Words:
    """Expected and seen in words."""

    expected: str
    seen: str
    charge: float
    impossible: bool
    absent: bool = False

    @classmethod
    def of(cls, seen: Seen, law: RowExpected) -> _Words:
        wrong, rare, missing = seen.impossible(law), seen.improbable(law), seen.missing(law)
        if len(wrong):
            what = f"id {wrong[0]} in {seen.counts[wrong[0]]} of {seen.draws} draws"
            which = "the argmax" if law.greedy else "an id of the support"
            return cls(f"{which}: {_ids(law.allowed)}", what, 0.0, impossible=True)
        charge = draw_charge(seen.draws, seen.certain)
        if len(rare):
            top = int(np.argmax(law.most))
            what = f"id {rare[0]} in {seen.counts[rare[0]]} of {seen.draws} draws"
            nats = law.most[rare[0]]
            return cls(f"id {top}; id {rare[0]} is {-nats:.0f} nats down", what, charge, False)
        token = missing[0]
        if law.tied[token]:
            equals = _ids(law.tied)
            what = f"none of them in {seen.draws} draws"
            return cls(f"{law.count} of the equal ids {equals}", what, charge, False, absent=True)
        share = np.exp(law.least[token])
        what = f"id {token} in 0 of {seen.draws} draws"
        return cls(f"id {token} with probability {share:.3g}", what, charge, False, absent=True)


def _ids(mask: np.ndarray) -> str:
    """Return a set of ids, shortened."""
    ids = np.flatnonzero(mask)
    shown = ", ".join(map(str, ids[:_SHOWN_IDS]))
    return f"{{{shown}{', ...' if len(ids) > _SHOWN_IDS else ''}}}"
