"""``refsampler trace``: a row after each of the nine steps, reference beside subject."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import click
import msgspec
import torch
from torch import Tensor

from refsampler.backends.protocol import Subject
from refsampler.conformance.case import Case, CaseId
from refsampler.conformance.commands import Format, format_option
from refsampler.conformance.commands.backends import SubjectParam
from refsampler.conformance.commands.law import (
    Mark,
    case_argument,
    checked_row,
    law_of_row,
    likeliest,
    mark,
    number,
    row_option,
)
from refsampler.conformance.commands.tables import echo_table
from refsampler.conformance.subject import Draw, OpenSubject, SubjectError
from refsampler.law import TargetLaw, trace_law
from refsampler.semantics import Semantics, Step

__all__ = ["Traced", "trace"]

_PLACE = {
    Step.ALLOWED: 3,
    Step.BAD_WORDS: 4,
    Step.MIN_TOKENS: 5,
    Step.LOGIT_BIAS: 5,
    Step.REPETITION: 6,
    Step.FREQUENCY: 6,
    Step.PRESENCE: 6,
    Step.THINKING: 6,
    Step.TEMPERATURE: 7,
    Step.MIN_P: 7,
    Step.TOP_K: 7,
    Step.TOP_P: 7,
}
"""Where a step stands among the nine of clause `order.pipeline`."""


@dataclass(frozen=True, slots=True)
class _Line:
    """The row after a step: how many ids live, how many values the step changed, some values.

    No value stands for an id of a tie class, whose law is known only as a whole.
    """

    place: int
    name: str
    live: int
    changed: int | None
    values: tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class _Sampled:
    """What a subject gave for the row."""

    name: str
    level: int
    id: int | None
    processed: Tensor | None
    logprobs: Mapping[int, float]
    trouble: str


@dataclass(frozen=True, slots=True)
class _Compared:
    """A subject beside the law: live ids outside the hull, core ids that it cut."""

    backend: str
    level: int
    id: int | None
    mark: Mark | None
    outside: tuple[int, ...]
    missing: tuple[int, ...]
    lines: tuple[_Line, ...]
    trouble: str


@dataclass(frozen=True, slots=True)
class Traced:
    """A row step by step; the values of a line belong to `ids`."""

    case: CaseId
    row: int
    semantics: str
    valid: bool
    ids: tuple[int, ...]
    steps: tuple[_Line, ...]
    admissible: int
    likeliest: tuple[int, ...]
    subject: _Compared | None


@click.command()
@case_argument
@click.argument("backend", type=SubjectParam(), required=False)
@row_option
@click.option("--seed", type=int, default=0, show_default=True, help="Of unseeded rows.")
@click.option("--top", type=click.IntRange(min=1), default=6, show_default=True, help="Ids shown.")
@format_option
def trace(case: Case, backend: Subject | None, row: int, seed: int, top: int, form: Format) -> None:
    """Print a row of CASE after each of the nine steps, and beside it what BACKEND shows.

    The steps follow the semantics that BACKEND declares, and vLLM's without one.  Shown are the
    likeliest ids of the law, the largest logits, and ids on which BACKEND differs.
    """
    found = _trace_of(case, checked_row(case, row), backend, seed, top)
    if form == "json":
        click.echo(msgspec.json.encode(found))
        return
    subject = found.subject
    lines = [*found.steps, *(subject.lines if subject else ())]
    law = "" if found.valid else ", no law: NaN, +inf or nothing finite"
    click.echo(f"case {found.case} row {found.row}, semantics {found.semantics}{law}")
    echo_table(
        ("step", "after", "live", "changed", *(f"id {one}" for one in found.ids)),
        [_cells(line) for line in sorted(lines, key=lambda line: line.place)],
        markdown=form == "markdown",
    )
    likeliest_ids = " ".join(map(str, found.likeliest)) or "none"
    click.echo(f"step 9: {found.admissible} ids admitted, likeliest {likeliest_ids}")
    if subject:
        click.echo(_in_words(subject))


def _trace_of(case: Case, row: int, backend: Subject | None, seed: int, top: int) -> Traced:
    semantics = Semantics() if backend is None else backend.capabilities.semantics
    exact = law_of_row(case, row, semantics)
    likely = likeliest(exact)[:top]
    sampled = None if backend is None else _sampled(backend, seed, case, row, exact)
    outside, missing = _differences(exact, sampled)
    logits = case.build_logits()[row]
    largest = logits.topk(min(top, len(logits))).indices.tolist()
    drawn = [sampled.id] if sampled and sampled.id is not None else []
    ids = tuple(dict.fromkeys([*likely, *drawn, *outside[:2], *missing[:2], *largest]))
    return Traced(
        case=case.id,
        row=row,
        semantics=semantics.profile,
        valid=bool(exact.valid),
        ids=ids,
        steps=_steps(case, row, semantics, exact, ids),
        admissible=int(exact.admissible.sum()),
        likeliest=tuple(likely),
        subject=None if sampled is None else _compared(exact, sampled, outside, missing, ids),
    )


def _sampled(backend: Subject, seed: int, case: Case, row: int, exact: TargetLaw) -> _Sampled:
    """Sample the whole batch once, and keep what concerns the row."""
    declared = backend.capabilities
    try:
        draw = OpenSubject(backend, seed).sample(case, 0, case.id)
    except SubjectError as error:
        return _Sampled(declared.name, declared.level, None, None, {}, str(error))
    id_ = int(draw.ids[row]) if len(draw.ids) == len(case.requests) else None
    in_range = id_ is not None and 0 <= id_ < case.logits.vocab
    return _Sampled(
        declared.name,
        declared.level,
        id_ if in_range else None,
        _processed(draw, row, exact),
        # around a kernel the logprobs are the reference's
        _logprobs(draw, row) if declared.level > 1 else {},
        draw.form if in_range or draw.form else f"id {id_} is out of range",
    )


def _processed(draw: Draw, row: int, exact: TargetLaw) -> Tensor | None:
    """Return the logits that a random row was drawn from, if the subject shows them."""
    shown = draw.processed
    # a kernel's logits of a greedy row are not what the row is drawn from
    if shown is None or len(shown) <= row or bool(exact.greedy | ~exact.valid):
        return None
    return shown[row].cpu()


def _logprobs(draw: Draw, row: int) -> Mapping[int, float]:
    """Return id -> value of the row's logprobs, empty unless the case asks for them."""
    tensors = draw.output and draw.output.logprobs_tensors
    if not tensors:
        return {}
    ids, values, valid = (
        one[row] for one in (tensors.logprob_token_ids, tensors.logprobs, tensors.valid)
    )
    return dict(zip(ids[valid].tolist(), values[valid].tolist(), strict=True))


def _compared(
    exact: TargetLaw,
    sampled: _Sampled,
    outside: tuple[int, ...],
    missing: tuple[int, ...],
    ids: Sequence[int],
) -> _Compared:
    lines = []
    if sampled.processed is not None:
        lines.append(_line(7, f"{sampled.name} shows", sampled.processed, None, ids))
    if sampled.logprobs:
        values = tuple(sampled.logprobs.get(one) for one in ids)
        lines.append(_Line(8, f"{sampled.name} logprobs", len(sampled.logprobs), None, values))
    return _Compared(
        backend=sampled.name,
        level=sampled.level,
        id=sampled.id,
        mark=mark(exact, sampled.id) if exact.valid and sampled.id is not None else None,
        outside=outside,
        missing=missing,
        lines=tuple(lines),
        trouble=sampled.trouble,
    )


def _differences(
    exact: TargetLaw, sampled: _Sampled | None
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the ids that the subject keeps against the law, and those that it cuts against it."""
    if sampled is None or sampled.processed is None:
        return (), ()
    alive = sampled.processed > -torch.inf
    outside = (alive & ~exact.hull[0]).nonzero()[:, 0].tolist()
    missing = (exact.core[0] & ~alive).nonzero()[:, 0].tolist()
    return tuple(outside), tuple(missing)


def _steps(
    case: Case, row: int, semantics: Semantics, exact: TargetLaw, ids: Sequence[int]
) -> tuple[_Line, ...]:
    """Return the nine steps but the last: what was given, each step of the order, the law."""
    logits = case.build_logits()[row]
    x = logits.double()
    lines = [
        _line(1, "raw logprobs", x.log_softmax(-1), None, ids),
        _line(2, "float32", x, None, ids),
    ]
    for step, after in trace_law(logits, case.requests[row], semantics, thinking=case.thinking):
        lines.append(_line(_PLACE[step], step.value, after, x, ids))
        x = after
    law = exact.logprobs[0]
    values = tuple(None if exact.lumped[0, one] else law[one].item() for one in ids)
    live = int(exact.core.sum() + exact.lump_count)
    return (*lines, _Line(8, "processed logprobs", live, None, values))


def _line(
    place: int, name: str, values: Tensor, before: Tensor | None, ids: Sequence[int]
) -> _Line:
    changed = None if before is None else int((values != before).sum())
    live = int((values > -torch.inf).sum())
    return _Line(place, name, live, changed, tuple(values[list(ids)].tolist()))


def _cells(line: _Line) -> tuple[str, ...]:
    changed = "" if line.changed is None else str(line.changed)
    return (str(line.place), line.name, str(line.live), changed, *map(number, line.values))


def _in_words(subject: _Compared) -> str:
    """Return what the subject gave, and how it stands to the law."""
    head = f"{subject.backend} (level {subject.level})"
    given = "no id" if subject.id is None else f"id {subject.id}"
    words = [f"{head}: {given}{f' ({subject.mark})' if subject.mark else ''}"]
    if any(line.place == 7 for line in subject.lines):
        words.append(f"{len(subject.outside)} ids kept outside the hull")
        words.append(f"{len(subject.missing)} ids of the core cut")
    return ", ".join([*words, subject.trouble] if subject.trouble else words)
