"""The words in which steps with drafts are written: one request with its positions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from refsampler.conformance.case import Case
from refsampler.conformance.checks.base import clause_ids
from refsampler.conformance.designed.build import row
from refsampler.conformance.logits import LogitsRecipe, RowRecipe
from refsampler.request import Request

__all__ = ["Drafted", "led", "only", "steps_case"]


@dataclass(frozen=True, slots=True)
class Drafted:
    """One request of a step.

    Attributes:
        asked: the request, without drafts.
        drafts: ids.
        targets: a row for each draft and one for the bonus.
        laws: the rows that the drafts come from; none if they are certain.

    """

    asked: Request
    drafts: tuple[int, ...]
    targets: tuple[RowRecipe, ...]
    laws: tuple[RowRecipe, ...] = ()


def steps_case(vocab: int, parts: Sequence[Drafted], *clauses: str, **fields: Any) -> Case:
    """Return the case of a step: rows are positions (see `Case`)."""
    rows = [one for part in parts for one in part.targets]
    laws = tuple(one for part in parts for one in part.laws)
    requests = [
        replace(part.asked, output=(*part.asked.output, *part.drafts[:at]), drafts=part.drafts[at:])
        for part in parts
        for at in range(len(part.drafts) + 1)
    ]
    return Case(
        LogitsRecipe(vocab, tuple(rows)),
        tuple(requests),
        clauses=clause_ids(*clauses),
        drafts=LogitsRecipe(vocab, laws) if laws else None,
        **fields,
    )


def only(*ids: int) -> tuple[RowRecipe, ...]:
    """Return rows of one id each."""
    return tuple(row({one: 0.0}) for one in ids)


def led(*ids: int) -> tuple[RowRecipe, ...]:
    """Return rows whose argmax is clear and whose other ids stay likely."""
    return tuple(row({one: 2.0}, base=0.0) for one in ids)
