"""Scripts that show a wrong law again: draws of one row, counted beside its exact law."""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from scipy.optimize import brentq

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
_ALPHA: Final = 1e-9
"""With which a right sampler ends with 1: half for the cells one by one, half for all together."""

_TEXT: Final = """
import math

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

def nats(seen, p):
    # what a frequency adds to the relative entropy of what was seen against the law
    if not seen:
        return 0.0
    return seen * math.log(seen / p) if p > 0 else inf


# a right sampler exceeds either limit with probability below {alpha:g}
ONE, TOGETHER = {one:.3f}, {together:.3f}
worst = total = 0.0
for token, p in PROBS.items():
    seen = counts[token] / drawn
    off = drawn * (nats(seen, p) + nats(1 - seen, 1 - p))
    worst, total = max(worst, off), total + drawn * nats(seen, p)
    if off > 5:
        print(f"id {{token}}: expected {{p:.6g}}, seen {{seen:.6g}}, {{off:.1f}} nats")
print(f"{{drawn}} draws: one id is off by {{worst:.1f}} nats of {{ONE:.1f}}, all by {{total:.1f}} of {{TOGETHER:.1f}}")
sys.exit(1 if worst > ONE or total > TOGETHER else 0)
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
    named[None] = float(np.delete(probs, most).sum())
    one, together = _limits(len(named))
    return head + _TEXT.format(
        probs=named,
        draws=_MORE * draws,
        seed=derived_seed(run_seed, case.id, "script"),
        alpha=_ALPHA,
        one=one,
        together=together,
    )


def _limits(cells: int) -> tuple[float, float]:
    """Return what n times the relative entropy of one cell and of all of them does not exceed.

    Of one cell, against the rest: P(n D >= t) <= 2 e^-t (Chernoff, either side).  Of k cells:
    P(n D >= t) <= e^-t (e t / (k - 1))^(k - 1) (Agrawal 2020, for t > k - 1).
    """
    free = cells - 1
    wanted = math.log(_ALPHA / 2)
    one = math.log(2 * cells) - wanted
    together = brentq(
        lambda t: free * (1 + math.log(t / free)) - t - wanted, free, 100 * free + 100
    )
    return one, float(together)
