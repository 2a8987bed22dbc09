"""Scripts that show wrong laws of mixed rows again: how often each row draws from its likely ids."""

from __future__ import annotations

from typing import Final

import numpy as np
import torch

from refsampler.backends.protocol import Capabilities
from refsampler.conformance.checks.mixed import PlannedMixed
from refsampler.conformance.scripts.adapter import adapter_parts
from refsampler.conformance.scripts.expressions import tensor
from refsampler.conformance.subject import derived_seed

__all__ = ["mixed_script"]

_MORE: Final = 4
"""The script knows no alternative to bet on, so it draws more."""
_ALPHA: Final = 1e-6
"""How often a right sampler ends a script with 1 (Bernstein's bound, over all groups)."""

_TEXT: Final = """
# PROBS[row][octave]: the probability that a row draws one of its 2^octave .. 2^(octave + 1) - 1
# most likely ids, the likeliest counted from 1
PROBS = {probs}
CALLS, DELTA, SEED = {calls}, {delta!r}, {seed}

torch.manual_seed(SEED)
x = logits()
draw = begin(x, SEED)
rank = x.float().sort(dim=-1, descending=True, stable=True).indices.argsort(dim=-1).cpu() + 1
octave = rank.double().log2().floor().long()
print(f"drawing {{CALLS}} calls of {{len(x)}} rows, each of a law of its own")
seen = torch.zeros_like(PROBS)
for _ in range(CALLS):
    ids = draw(x.clone()).flatten().cpu().long()
    seen[torch.arange(len(x)), octave[torch.arange(len(x)), ids]] += 1
worst = 0.0
for parity, words in ((0, "even"), (1, "odd")):
    p = PROBS[parity::2]
    expected, spread = CALLS * p.sum(0), CALLS * (p * (1 - p)).sum(0)
    counts = seen[parity::2].sum(0)
    off = ((counts - expected).abs() - CALLS * len(p) * DELTA).clamp(min=0)
    for place, nats in enumerate((off**2 / (2 * (spread + off / 3)).clamp(min=1e-9)).tolist()):
        worst = max(worst, nats)
        if nats > 5:
            print(
                f"{{words}} rows, ids {{2**place}} to {{2 ** (place + 1) - 1}} by likelihood: "
                f"expected {{expected[place]:.1f}}, seen {{counts[place]:.0f}}"
            )
limit = math.log(4 * PROBS.shape[1] / {alpha})
print(f"probability of the furthest count e^-{{worst:.0f}} at most; e^-{{limit:.0f}} shows the failure")
sys.exit(1 if worst > limit else 0)
"""


def mixed_script(one: PlannedMixed, spec: str, capabilities: Capabilities, run_seed: int) -> str:
    """Return the text of the script.

    Args:
        one: the batch.
        spec: of the backend.
        capabilities: of the backend.
        run_seed: of the run; the script's seed is another.

    """
    logits = one.case.logits.build(one.case.dtype.torch)
    rank = (-logits.numpy()).argsort(axis=1, kind="stable").argsort(axis=1) + 1
    octave = np.floor(np.log2(rank)).astype(np.int64)
    probs = np.where(one.hull, np.exp(one.logprobs), 0.0)
    probs = probs / probs.sum(axis=1, keepdims=True)
    table = np.stack(
        [np.where(octave == place, probs, 0.0).sum(axis=1) for place in range(octave.max() + 1)], 1
    )
    text = _TEXT.format(
        probs=tensor(torch.from_numpy(table)),
        calls=_MORE * one.case.calls,
        delta=float(one.delta.max()),
        alpha=_ALPHA,
        seed=derived_seed(run_seed, one.case.id, "script"),
    )
    beginning = adapter_parts(
        one.case,
        spec,
        capabilities,
        title=f"draw.law is broken by {spec}: rows beside each other, each with a law of its own.",
        replay=f"refsampler replay {one.case.id}",
    )
    return beginning + text
