"""Scripts that show a wrong tail again: one likely id and a sea, by summed mass or by distinct ids."""

from __future__ import annotations

from typing import Final

import numpy as np

from refsampler.backends.protocol import Capabilities
from refsampler.conformance.checks.tail import PlannedTail, tail_words
from refsampler.conformance.evidence.occupancy import DistinctTest
from refsampler.conformance.evidence.tail import BAND, FACTORS
from refsampler.conformance.scripts.adapter import adapter_parts
from refsampler.conformance.subject import derived_seed

__all__ = ["resolution_script", "tail_script"]

_ROWS: Final = 4096
_REQUESTS: Final = 256
_MORE: Final = 4
"""How many times the planned draws are tried at most."""
_ALPHA: Final = 1e-6
"""How often a right sampler ends a script with 1."""

_MASS: Final = """
# one likely id; all others together have this probability
HEAD, MASS, BAND = {head}, {mass!r}, {band!r}
DRAWS = {draws}
FACTORS = {factors}


def log_e(hits, others):
    \"\"\"Bet on wrong masses against those within 5 % of the exact one: log e, averaged over factors.\"\"\"
    each = []
    for factor in FACTORS:
        edge, bet = MASS * (1 + BAND if factor > 1 else 1 - BAND), factor * MASS
        if bet < 1 and edge < 1:
            hit = math.log(max(bet / edge, 1e-9))
            each.append(hits * hit + others * (math.log1p(-bet) - math.log1p(-edge)))
    top = max(each)
    return top + math.log(sum(math.exp(one - top) for one in each) / len(FACTORS))


torch.manual_seed({seed})
x = logits()
draw = begin(x, {seed})
print(f"drawing {{DRAWS}} ids at most; {seen} in the planned {planned} would show")
hits = drawn = 0
while drawn < DRAWS and log_e(hits, drawn - hits) < math.log(1e6):
    ids = draw(x.clone()).flatten()
    hits, drawn = hits + int((ids != HEAD).sum()), drawn + len(ids)
print(f"expected  {{drawn * MASS:.1f}} of {{drawn}} draws in the tail, within 5 %")
print(f"seen      {{hits}}")
reached = log_e(hits, drawn - hits)
print(f"e-value 10^{{reached / math.log(10):.1f}}; a right sampler reaches 10^6 once in 10^6 runs")
sys.exit(1 if reached >= math.log(1e6) else 0)
"""

_DISTINCT: Final = """
# one likely id and IDS others, equally unlikely; HITS of them are drawn
HEAD, IDS, HITS, DRAWS = {head}, {ids}, {hits}, {draws}
EXPECTED, FEWEST, MOST = {expected!r}, {fewest}, {most}

torch.manual_seed({seed})
x = logits()
draw = begin(x, {seed})
print(f"drawing until {{HITS}} ids of the tail came, about {planned} draws")
tail, drawn = [], 0
while drawn < DRAWS and len(tail) < HITS:
    ids = draw(x.clone()).flatten()
    tail += ids[ids != HEAD].tolist()
    drawn += len(ids)
if len(tail) < HITS:
    print(f"{{len(tail)}} ids of the tail in {{drawn}} draws: too few to tell")
    sys.exit(2)
distinct = len(set(tail[:HITS]))
print(f"expected  about {{EXPECTED:.0f}} distinct ids, {{FEWEST}} to {{MOST}} but for probability 1e-6")
print(f"seen      {{distinct}}")
sys.exit(0 if FEWEST <= distinct <= MOST else 1)
"""


def tail_script(one: PlannedTail, spec: str, capabilities: Capabilities, run_seed: int) -> str:
    """Return the text of the script that looks at the summed mass.

    Args:
        one: the grade.
        spec: of the backend.
        capabilities: of the backend.
        run_seed: of the run; the script's seed is another.

    """
    text = _MASS.format(
        head=_head(one),
        mass=one.tail.mass,
        band=BAND,
        draws=_MORE * one.draws,
        planned=one.draws,
        factors=list(FACTORS),
        seen=f"a tail of mass {tail_words(one.seen)}",
        seed=derived_seed(run_seed, one.case.id, "script"),
    )
    return _beginning(one, spec, capabilities, "draw.tail") + text


def resolution_script(
    one: PlannedTail, spec: str, capabilities: Capabilities, run_seed: int
) -> str:
    """Return the text of the script that counts distinct ids; arguments as of `tail_script`."""
    ids, hits = one.resolution.ids, one.resolution.draws
    test = DistinctTest(ids, hits, _ALPHA, band=BAND)
    flat, upper = test.law(0), test.law(-1)
    fails = [count for count in range(min(ids, hits) + 1) if upper.at_least(count) <= _ALPHA / 2]
    text = _DISTINCT.format(
        head=_head(one),
        ids=ids,
        hits=hits,
        draws=_MORE * one.draws,
        planned=one.draws,
        expected=float((flat.first + np.arange(flat.probs.size)) @ flat.probs),
        fewest=test.most_that_fail() + 1,
        most=min(fails, default=min(ids, hits) + 1) - 1,
        seed=derived_seed(run_seed, one.case.id, "script"),
    )
    return _beginning(one, spec, capabilities, "draw.resolution") + text


def _head(one: PlannedTail) -> int:
    """Return the likely id."""
    return int(np.flatnonzero(one.tail.core & ~one.tail.tail)[0])


def _beginning(one: PlannedTail, spec: str, capabilities: Capabilities, clause: str) -> str:
    most = _REQUESTS if capabilities.level == 3 else _ROWS
    limit = capabilities.max_elements or 2**31
    vocab = one.case.logits.vocab
    return adapter_parts(
        one.case,
        spec,
        capabilities,
        title=f"{clause} is broken by {spec}: a tail of ids of probability {one.grade:g} each.",
        replay=f"refsampler replay {one.case.id}",
        copies=max(1, min(most, 2**22 // vocab, limit // vocab, one.draws)),
    )
