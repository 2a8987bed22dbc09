"""``refsampler power``: what the evidence sees."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import click

from refsampler.conformance.commands.evidence_tables import (
    Made,
    made_by,
    table_head,
    table_lines,
    write_table,
)
from refsampler.conformance.commands.power_law import print_draws
from refsampler.conformance.commands.tables import echo_table
from refsampler.conformance.evidence.faultbank import fault_cases
from refsampler.conformance.evidence.powertable import (
    RUN_CASES,
    DesignLine,
    PowerLine,
    design_line,
    geometric_mean,
    simulate,
)

__all__ = ["power"]

_OUT = Path("reports") / "evidence"
_DECLARED, _LEFT_OUT, _GAIN = 1.35, 4.0, 50.0

_out = click.option(
    "--out", type=click.Path(path_type=Path, file_okay=False), default=_OUT, show_default=True
)


@dataclass(frozen=True, slots=True)
class _PowerTable:
    """Measured power, with its geometric means."""

    made: Made
    repeats: int
    declared: float
    left_out: float
    generic: float
    in_run: float
    gain: float
    lines: tuple[PowerLine, ...]
    designs: tuple[DesignLine, ...]


@click.command()
@click.option("--table", is_flag=True, help="Simulate every known fault (minutes).")
@click.option(
    "--law", "source", metavar="FILE|zipf", help="A case with one law, or an LLM-like row."
)
@click.option("--row", type=click.IntRange(0), default=0, show_default=True, help="Of the case.")
@click.option("--vocab", type=click.IntRange(2), default=4096, show_default=True, help="Of zipf.")
@click.option("--tv", type=click.FloatRange(0, 1, min_open=True, max_open=True), default=0.01)
@click.option("--delta", type=click.FloatRange(0, 2e-3), default=1e-4, show_default=True)
@click.option("--repeats", type=click.IntRange(1), default=5, show_default=True, help="Of --table.")
@_out
def power(
    *,
    table: bool,
    source: str | None,
    row: int,
    vocab: int,
    tv: float,
    delta: float,
    repeats: int,
    out: Path,
) -> None:
    """Print the draws that a bias needs on one law, or measure all known faults.

    With --law: draws after which any law at total variation --tv, and each declared alternative, is
    rejected but for 1e-6.  With --table: median draws to rejection over the least that any test
    needs, written to --out; exit 1 if the stated figures are missed.
    """
    if table == (source is not None):
        raise click.UsageError("say either --table or --law")
    if source is not None:
        print_draws(source, row, vocab, tv, delta)
        return
    cases = fault_cases()
    with click.progressbar(length=len(cases), label="faults", file=sys.stderr) as bar:
        lines = simulate(cases, repeats, seed=20, tell=lambda _case: bar.update(1))
    designs = [line for case in cases if (line := design_line(case)) is not None]
    found = _PowerTable(
        made=made_by(f"refsampler power --table --repeats {repeats}"),
        repeats=repeats,
        declared=geometric_mean([one.declared for one in lines]),
        left_out=geometric_mean([one.left_out for one in lines]),
        generic=geometric_mean([one.generic for one in lines]),
        in_run=geometric_mean([one.in_run for one in lines]),
        gain=geometric_mean([one.gain for one in designs]),
        lines=tuple(lines),
        designs=tuple(designs),
    )
    write_table(out, "power", found, _power_text(found))
    facts = [
        ("declared in the bank", f"{found.declared:.2f}", f"<= {_DECLARED}"),
        ("left out of the bank", f"{found.left_out:.2f}", f"<= {_LEFT_OUT:g}"),
        ("without a bank", f"{found.generic:.2f}", ""),
        ("declared, at the run's weights", f"{found.in_run:.2f}", ""),
        ("gain of designed rows", f"{found.gain:.0f}", f">= {_GAIN:g}"),
    ]
    echo_table(("geometric mean", "measured", "stated"), facts)
    kept = found.declared <= _DECLARED and found.left_out <= _LEFT_OUT and found.gain >= _GAIN
    if not kept:
        raise SystemExit(1)


def _power_text(found: _PowerTable) -> str:
    rows = [
        (
            one.fault,
            f"{one.total_variation:.1e}",
            f"{one.least:.3g}",
            *(f"{value:.2f}" for value in (one.declared, one.left_out, one.generic, one.in_run)),
        )
        for one in found.lines
    ]
    means = (found.declared, found.left_out, found.generic, found.in_run)
    rows.append(("**geometric mean**", "", "", *(f"**{value:.2f}**" for value in means)))
    designs = [
        (one.fault, one.design, f"{one.typical:.3g}", f"{one.designed:.3g}", f"{one.gain:.3g}")
        for one in found.designs
    ]
    designs.append(("**geometric mean**", "", "", "", f"**{found.gain:.0f}**"))
    return "\n".join(
        [
            *table_head("Power of the evidence", found.made),
            "## Draws to rejection on LLM-like rows (V = 128256)",
            "",
            (
                f"Median of {found.repeats} simulated runs over ln(1e9)/KL, the least that any test "
                "needs; looks at every 5 % more draws, so a ratio may be 5 % too high, and a few runs "
                "make a noisy median, below 1 by luck.  *Declared*: one of 64 alternatives, a single "
                "case at 1e-9.  *Left out*: without it and without alternatives that are nearly the "
                "same law.  *Generic*: without any alternative.  *In the run*: declared, at the clause "
                f"weights of a whole run, as one of {RUN_CASES} law cases.  Faults that leave the "
                "support are not listed: their first draw outside decides."
            ),
            "",
            *table_lines(
                ("fault", "TV", "least", "declared", "left out", "generic", "in the run"), rows
            ),
            "## Designed rows",
            "",
            (
                "Median draws by the declared alternative (ln(64e9)/KL, or ln 2 over the mass outside "
                "the support; at least 1), in closed form."
            ),
            "",
            *table_lines(("fault", "designed row", "LLM-like row", "designed", "gain"), designs),
        ]
    )
