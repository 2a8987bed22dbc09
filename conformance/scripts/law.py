"""Scripts that show a wrong law again: draws of one row, counted beside its exact law."""

from __future__ import annotations

from typing import Final

import numpy as np

from refsampler.backends.protocol import Capabilities
from refsampler.conformance.case import Case
from refsampler.conformance.scripts.adapter import adapter_parts
from refsampler.conformance.subject import derived_seed
from refsampler.law import target_law

__all__ = ["law_script"]

_CELLS: Final = 32
_ROWS: Final = 4096
_REQUESTS: Final = 256
"""Rows of an engine, which admits every one as a request of its own."""
_MORE: Final = 4
"""The script knows no alternative to bet on, so it draws more."""
_SIGMAS: Final = 7.0
"""What counts as shown again: a right sampler goes so far in one of 33 cells with probability below
1e-10, and in their sum of squares below 1e-6."""

_TEXT: Final = """
# probabilities of the most likely ids; all other ids are counted together
PROBS = {probs}
DRAWS = {draws}

torch.manual_seed({seed})
x = logits()
draw = begin(x, {seed})
counts, drawn = dict.fromkeys(PROBS, 0), 0
print(f"drawing {{DRAWS}} ids of one row")
while drawn < DRAWS:
    ids = draw(x.clone()).flatten().tolist()
    drawn += len(ids)
    for token in ids:
        counts[token if token in PROBS else None] += 1

worst = square = 0.0
for token, p in PROBS.items():
    spread = max((p * (1 - p) / drawn) ** 0.5, 1e-12)
    seen = counts[token] / drawn
    off = (seen - p) / spread if p > 0 else inf if seen else 0.0
    worst, square = max(worst, abs(off)), square + off * off * (1 - p)
    if abs(off) > 3:
        print(f"id {{token}}: expected {{p:.6g}}, seen {{seen:.6g}}, {{off:+.1f}} standard deviations")
free = len(PROBS) - 1
together = (square - free) / (2 * free) ** 0.5
print(f"{{drawn}} draws: at most {{worst:.1f}} standard deviations off, all together {{together:.1f}}")
sys.exit(1 if max(worst, together) > {sigmas:g} else 0)
"""


def law_script(case: Case, spec: str, capabilities: Capabilities, run_seed: int, draws: int) -> str:
    """Return the text of the script.

    Args:
        case: of one row.
        spec: of the backend.
        capabilities: of the backend.
        run_seed: of the run; the script's seeds are others.
        draws: that reached an e-value of 1e6 on fresh seeds.

    """
    at_most = _REQUESTS if capabilities.level == 3 else _ROWS
    rows = max(1, min(at_most, 2**19 // case.logits.vocab, draws))
    head = adapter_parts(
        case,
        spec,
        capabilities,
        title=f"draw.law is broken by {spec}: one row, drawn until the bias shows.",
        copies=rows,
    )
    logits = case.logits.build(case.dtype.torch)
    law = target_law(logits, case.requests, capabilities.semantics, thinking=case.thinking)
    probs = np.exp(law.logprobs[0].numpy().astype(np.float64))
    probs = probs / probs.sum()
    most = np.argsort(-probs, kind="stable")[:_CELLS]
    named: dict[int | None, float] = {int(token): float(probs[token]) for token in np.sort(most)}
    named[None] = max(0.0, 1.0 - sum(named.values()))
    seed = derived_seed(run_seed, case.id, "script")
    return head + _TEXT.format(probs=named, draws=_MORE * draws, seed=seed, sigmas=_SIGMAS)
