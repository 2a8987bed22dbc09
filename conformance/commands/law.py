"""``refsampler law``: the exact law of one row of a case."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import click
import msgspec
from torch import Tensor

from refsampler.conformance.case import Case, CaseId, decode_case
from refsampler.conformance.commands import Format, format_option
from refsampler.conformance.commands.tables import echo_table
from refsampler.law import TargetLaw, target_law
from refsampler.semantics import PROFILES, Semantics, profile

__all__ = [
    "CaseParam",
    "Mark",
    "RowLaw",
    "case_argument",
    "checked_row",
    "law",
    "law_of_row",
    "likeliest",
    "mark",
    "number",
    "row_option",
]

Mark = Literal["core", "lumped", "hull", "outside"]
"""Where an id stands in the law: kept for sure, one of a tie class, decided by rounding, or banned."""


class CaseParam(click.ParamType[Case]):
    """A case on the command line: a file with its JSON, or - for standard input."""

    name = "case"

    def convert(
        self, value: str | Case, param: click.Parameter | None, ctx: click.Context | None
    ) -> Case:
        """Return the case, or say what is wrong with the document."""
        if isinstance(value, Case):
            return value
        try:
            if value == "-":
                return decode_case(sys.stdin.buffer.read())
            return decode_case(Path(value).read_bytes())
        except OSError as error:
            self.fail(f"{value}: {error.strerror}", param, ctx)
        except json.JSONDecodeError as error:
            self.fail(f"{value} is no JSON: {error}", param, ctx)
        except (msgspec.ValidationError, ValueError, TypeError) as error:
            self.fail(f"{value} is no case: {error}", param, ctx)


case_argument = click.argument("case", type=CaseParam())
row_option = click.option("--row", type=click.IntRange(min=0), default=0, show_default=True)


@dataclass(frozen=True, slots=True)
class _Id:
    """An id that may be drawn; probability in the core, the lumped cell has one as a whole."""

    id: int
    mark: Mark
    logit: float
    probability: float | None
    logprob: float | None


@dataclass(frozen=True, slots=True)
class RowLaw:
    """The law of one row; counts are of ids, `magnitude` is M of `refsampler.law`."""

    case: CaseId
    row: int
    semantics: str
    valid: bool
    greedy: bool
    exact: bool
    magnitude: float
    core: int
    hull: int
    lumped: int
    lump_count: int
    lump_probability: float | None
    ids: tuple[_Id, ...]


@click.command()
@case_argument
@row_option
@click.option(
    "--semantics",
    type=click.Choice([one.profile for one in PROFILES]),
    default="vllm",
    show_default=True,
    help="Declared order, ties and boundaries.",
)
@click.option("--top", type=click.IntRange(min=1), default=20, show_default=True, help="Ids shown.")
@format_option
def law(case: Case, row: int, semantics: str, top: int, form: Format) -> None:
    """Print the exact law of a row of CASE, a file with its JSON or - for standard input.

    core: every right backend keeps it; hull: rounding may decide; lumped: one of a tie class of
    which a known number is kept.  Of a greedy row the ids are those it may return.
    """
    found = _law_of(case, checked_row(case, row), profile(semantics), top)
    if form == "json":
        click.echo(msgspec.json.encode(found))
        return
    for line in _facts(found):
        click.echo(line)
    cells = [
        (str(one.id), one.mark, number(one.logit), number(one.probability), number(one.logprob))
        for one in found.ids
    ]
    echo_table(
        ("id", "mark", "logit", "probability", "logprob"), cells, markdown=form == "markdown"
    )
    if found.hull > len(found.ids):
        click.echo(f"and {found.hull - len(found.ids)} ids more")


def checked_row(case: Case, row: int) -> int:
    """Return the row, or refuse it by the case's range."""
    rows = len(case.requests)
    if row >= rows:
        allowed = f"{row} is refused: allowed are the case's rows, 0 to {rows - 1}"
        raise click.BadParameter(allowed, param_hint="--row")
    return row


def law_of_row(case: Case, row: int, semantics: Semantics) -> TargetLaw:
    """Return the law of one row of a case, as a batch of one."""
    return target_law(
        case.build_logits()[row : row + 1],
        case.requests[row : row + 1],
        semantics,
        thinking=case.thinking,
    )


def _law_of(case: Case, row: int, semantics: Semantics, top: int) -> RowLaw:
    exact = law_of_row(case, row, semantics)
    logits = case.build_logits()[row]
    lump = exact.lump_logprob.item()
    return RowLaw(
        case=case.id,
        row=row,
        semantics=semantics.profile,
        valid=bool(exact.valid),
        greedy=bool(exact.greedy),
        exact=bool(exact.exact),
        magnitude=exact.magnitude.item(),
        core=int(exact.core.sum()),
        hull=int(exact.hull.sum()),
        lumped=int(exact.lumped.sum()),
        lump_count=int(exact.lump_count),
        lump_probability=math.exp(lump) if lump > -math.inf else None,
        ids=tuple(_describe(exact, logits, id_) for id_ in likeliest(exact)[:top]),
    )


def likeliest(exact: TargetLaw) -> Sequence[int]:
    """Return the hull: the core from the top, then the tie class, then what rounding decides."""
    hull = exact.hull[0].nonzero()[:, 0]
    core, lumped, logprobs = (
        part[0, hull].tolist() for part in (exact.core, exact.lumped, exact.logprobs)
    )
    ranked = zip(core, lumped, logprobs, hull.tolist(), strict=True)
    return [one[3] for one in sorted(ranked, key=lambda one: (-one[0], -one[1], -one[2], one[3]))]


def _describe(exact: TargetLaw, logits: Tensor, id_: int) -> _Id:
    logprob = exact.logprobs[0, id_].item()
    in_core = logprob > -math.inf
    return _Id(
        id=id_,
        mark=mark(exact, id_),
        logit=logits[id_].item(),
        probability=math.exp(logprob) if in_core else None,
        logprob=logprob if in_core else None,
    )


def mark(exact: TargetLaw, id_: int) -> Mark:
    """Return where an id stands in the law of one row."""
    if exact.core[0, id_]:
        return "core"
    if exact.lumped[0, id_]:
        return "lumped"
    return "hull" if exact.hull[0, id_] else "outside"


def number(value: float | None) -> str:
    """Return six digits, which tell apart what float32 can; empty without a value."""
    return "" if value is None else f"{value:.6g}"


def _facts(found: RowLaw) -> list[str]:
    """Return the head of the printed law, a fact a line."""
    kind = "greedy" if found.greedy else "random"
    lines = [f"case {found.case} row {found.row} ({kind}), semantics {found.semantics}"]
    if not found.valid:
        return [*lines, "no law: NaN, +inf or nothing finite"]
    certain = "exact" if found.exact else "rounding leaves ids open"
    lines.append(f"core {found.core}, hull {found.hull} ({certain}), M = {number(found.magnitude)}")
    if found.lumped:
        lines.append(
            f"lumped: {found.lump_count} of {found.lumped} equal ids are kept, together with "
            f"probability {number(found.lump_probability)}"
        )
    return lines
