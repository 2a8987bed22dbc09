"""The draws that a bias needs on one law: ``refsampler power --law``."""

from __future__ import annotations

import math
from typing import Final

import click
import numpy as np

from refsampler.conformance.commands.tables import echo_table
from refsampler.conformance.evidence.arrays import FloatArray
from refsampler.conformance.evidence.budget import FIXED_DRAWS, RUN_CLAUSES, Budget
from refsampler.conformance.evidence.faultlaws import TEMPERATURE, llm_logits
from refsampler.conformance.evidence.guarantees import (
    BETA,
    Direction,
    draws_needed_directional,
    draws_needed_tv,
)
from refsampler.conformance.evidence.law import BANK_SHARE, LawCase
from refsampler.conformance.evidence.pool import case_log_threshold

__all__ = ["print_draws"]

_FLOOR: Final = 1e-5
_SECONDS: Final = 21e-9  # a logit, by the reference kernel without filters


def print_draws(source: str, row: int, vocab: int, tv: float, delta: float) -> None:
    """Print the draws for any law at distance tv, and for every declared alternative.

    Args:
        source: `zipf`, or a file with a case.
        row: of the case.
        vocab: of zipf.
        tv: total variation that must be seen, whatever its direction.
        delta: tolerance.

    """
    case = _zipf(vocab, delta) if source == "zipf" else _of_file(source, row, delta)
    vocab = case.cells.cell_of_id.size
    threshold = case_log_threshold(Budget(RUN_CLAUSES).log_threshold("draw.law"), 1.0)
    click.echo(
        f"{case.probs.size} cells, V = {vocab}, delta = {delta:g}; draws after which the bias is "
        f"rejected but for {BETA:g}, as the only case of a run"
    )
    any_law = draws_needed_tv(case.probs, tv, FIXED_DRAWS, delta=delta)
    rows = [(f"any law at TV >= {tv:g}", f"{tv:.2e}", any_law)]
    for one, law, log_e in zip(case.alternatives, case.laws, case.log_ratios, strict=True):
        needed = threshold - math.log(BANK_SHARE * one.weight)
        draws = draws_needed_directional(Direction(law, log_e), needed)
        distance = 0.5 * float(np.abs(law - case.probs).sum())
        rows.append((one.name, f"{distance:.2e}", draws))
    rows = [rows[0], *sorted(rows[1:], key=lambda one: one[2])]
    echo_table(
        ("bias", "TV", "draws", "seconds"),
        [(name, distance, *_cost(draws, vocab)) for name, distance, draws in rows],
    )


def _cost(draws: float, vocab: int) -> tuple[str, str]:
    if math.isinf(draws):
        return ("inside the tolerance", "")
    return (f"{draws:.3g}", f"{draws * vocab * _SECONDS:.2g}")


def _case(name: str, logprobs: FloatArray, delta: float) -> LawCase:
    live = np.isfinite(logprobs)
    return LawCase.build(name, logprobs, core=live, hull=live, delta=delta, floor=_FLOOR)


def _zipf(vocab: int, delta: float) -> LawCase:
    return _case("zipf", llm_logits(0, vocab) / TEMPERATURE, delta)


def _of_file(source: str, row: int, delta: float) -> LawCase:
    """Return the law of a row of a case, on its core."""
    from refsampler.conformance.commands.law import CaseParam, checked_row, law_of_row
    from refsampler.semantics import profile

    case = CaseParam().convert(source, None, None)
    exact = law_of_row(case, checked_row(case, row), profile("vllm"))
    if not bool(exact.valid) or bool(exact.greedy):
        raise click.BadParameter(f"row {row} has no law to draw from", param_hint="--row")
    logprobs, core, hull, lumped = (
        part[0].numpy() for part in (exact.logprobs, exact.core, exact.hull, exact.lumped)
    )
    return LawCase.build(
        str(case.id),
        logprobs.astype(np.float64),
        core=core,
        hull=hull,
        delta=delta,
        floor=_FLOOR,
        lumped=lumped,
        lump_logprob=exact.lump_logprob.item(),
    )
