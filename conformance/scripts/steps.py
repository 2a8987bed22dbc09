"""Scripts that show a wrong joint law of two emitted ids again, or drafts of another law than is told."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np
import torch

from refsampler.backends.protocol import Capabilities
from refsampler.conformance.checks.step_laws import BUCKETS, step_cells
from refsampler.conformance.checks.steps import PlannedSteps
from refsampler.conformance.scripts.expressions import tensor, value
from refsampler.conformance.scripts.verifier import verifier_parts
from refsampler.conformance.stepdraws import Source
from refsampler.conformance.subject import derived_seed
from refsampler.conformance.verifying import draft_laws_of

__all__ = ["steps_script"]

_MORE: Final = 4
"""The script knows no alternative to bet on, so it draws up to so much more; it looks as often."""
_ALPHA: Final = 1e-7
"""Of a sum of squares at one look; a right sampler ends with 1 once in 10^6 runs."""
_SIGMAS: Final = 7.0
"""Of one cell of at most 60 at one look: below 1e-9 together."""

_OWN: Final = '''
DRAFT = {draft}


def steps(seed):
    """Return the requests with the drafts that the adapter makes, and what it emits for them."""
    requests = [replace(ASKED, params=replace(ASKED.params, seed={seed})) for row in range(ROWS)]
    draft, verify = begin(requests, seed)
    proposed = draft(DRAFT.expand(ROWS, -1).contiguous())
    ids = proposed.ids.flatten().tolist()
    drafted = [replace(one, drafts=(token,)) for one, token in zip(requests, ids)]
    return drafted, verify(drafted, LOGITS.repeat(ROWS, 1), proposed.probs.float())
'''

_GIVEN: Final = '''
# the laws that drafts are drawn from, and how many there are at most
PROPOSED, MOST = {proposed}, {most}


def steps(seed):
    """Return requests with drafts of their laws, the first few of them, and what is emitted."""
    noise = torch.Generator().manual_seed(seed)
    laws = PROPOSED.double()
    drawn = torch.stack([law.multinomial(ROWS, replacement=True, generator=noise) for law in laws], 1)
    lengths = torch.randint(0, MOST + 1, (ROWS,), generator=noise).tolist()
    drafted = [
        replace(ASKED, drafts=tuple(ids[:length])) for ids, length in zip(drawn.tolist(), lengths)
    ]
    places = [place for length in lengths for place in range(length + 1)]
    rows = [row for length in lengths for row in range(length)]
    return drafted, begin(drafted, seed)[1](drafted, LOGITS[places], LAWS[rows])
'''

_CERTAIN: Final = '''
def steps(seed):
    """Return requests with the certain draft, and what is emitted."""
    drafted = [replace(ASKED, drafts={drafts})] * ROWS
    return drafted, begin(drafted, seed)[1](drafted, LOGITS.repeat(ROWS, 1), None)
'''

_CELLS: Final = '''
def cells(seed):
    """Return the cell of each step: number of drafts, first id, second id or V for none."""
    vocab, found = LOGITS.shape[1], []
    for one, ids in zip(*steps(seed)):
        second = ids[1] if len(ids) > 1 else vocab
        cell = (len(one.drafts) * vocab + ids[0]) * (vocab + 1) + second
        if not all(0 <= token < vocab for token in ids):
            problems.append(f"ids {ids} of {vocab}")
        elif len(ids) > 1 and ids[0] != one.drafts[0] or PROBS[cell] == 0:
            problems.append(f"ids {ids} for drafts {one.drafts}")
        else:
            found.append(cell)
    return found


def named(cell):
    """Return a cell in words."""
    vocab = LOGITS.shape[1]
    drafts, first, second = cell // (vocab + 1) // vocab, cell // (vocab + 1) % vocab, cell % (vocab + 1)
    return f"{drafts} drafts, id {first}, then " + ("nothing" if second == vocab else f"id {second}")
'''

_DRAFTS: Final = '''
DRAFT = {draft}


def cells(seed):
    """Return in which part of its law, as it is told, each draft lies: uniform, whatever the law."""
    draft, _ = begin([ASKED] * ROWS, seed)
    proposed = draft(DRAFT.expand(ROWS, -1).contiguous())
    laws, ids = proposed.probs.double().cpu(), proposed.ids.flatten().cpu().long()[:, None]
    at = laws.gather(1, ids)[:, 0]
    wrong = ((at <= 0) | ((laws.sum(1) - 1).abs() > 1e-2)).nonzero().flatten().tolist()
    if wrong:
        row = wrong[0]
        problems.append(f"draft {{int(ids[row])}} of the law {{laws[row].tolist()}}")
        return []
    noise = torch.rand(ROWS, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    inside = (laws.cumsum(1).gather(1, ids)[:, 0] - at + noise * at) / laws.sum(1)
    return (inside * {buckets}).long().clamp(max={buckets} - 1).tolist()


def named(cell):
    """Return a cell in words."""
    return f"part {{cell + 1}} of {buckets} of the law"
'''

_JUDGE: Final = """
# exact probability of each cell
PROBS = {probs}
CALLS, SEED = {calls}, {seed}

print(f"drawing {{{more} * CALLS * ROWS}} steps at most: {pairing}")
counts, shown = torch.zeros(len(PROBS), dtype=torch.float64), False
for call in range({more} * CALLS):
    try:
        counts += torch.tensor(cells(SEED + call * ROWS), dtype=torch.int64).bincount(minlength=len(PROBS))
    except WrongForm as error:
        problems.append(str(error))
    if problems:
        break
    if (call + 1) % CALLS == 0:
        drawn = counts.sum()
        spread = (PROBS * (1 - PROBS) / drawn).sqrt().clamp(min=1e-12)
        off = (counts / drawn - PROBS) / spread
        possible = PROBS > 0
        square = ((counts - drawn * PROBS)[possible] ** 2 / (drawn * PROBS[possible])).sum()
        free = torch.tensor((int(possible.sum()) - 1) / 2, dtype=torch.float64)
        together = float(torch.special.gammaincc(free, square / 2))
        shown = float(off.abs().max()) > {sigmas:g} or together < {alpha:g}
        if shown:
            break
for problem in problems[:10]:
    print(f"no right verifier gives {{problem}}")
if not problems:
    for cell in (off.abs() > 3).nonzero().flatten().tolist():
        print(f"{{named(cell)}}: expected {{PROBS[cell]:.6g}}, seen {{counts[cell] / drawn:.6g}}, {{off[cell]:+.1f}} standard deviations")
    print(f"{{drawn:.0f}} steps: at most {{off.abs().max():.1f}} standard deviations off, chi-square of probability {{together:.1e}}")
sys.exit(1 if problems or shown else 0)
"""


def steps_script(one: PlannedSteps, spec: str, capabilities: Capabilities, run_seed: int) -> str:
    """Return the text of the script.

    Args:
        one: the steps.
        spec: of the backend.
        capabilities: of the backend.
        run_seed: of the run; the script's seed is another.

    """
    case = one.case
    laws = None if case.drafts is None else draft_laws_of(case)
    beginning = verifier_parts(
        spec,
        capabilities,
        case.build_logits(),
        None if laws is None else laws.float(),
        title=f"{one.clause} is broken by {spec}: {one.pairing}, drawn until it shows.",
        replay=f"refsampler replay {case.id}",
    )
    asked = replace(case.requests[0], drafts=())
    draft = (
        ""
        if case.drafts is None
        else tensor(case.drafts.build(torch.float32)[:1], capabilities.device)
    )
    match one.pairing:
        case Source.OWN | Source.SEEDED:
            seed = "seed + row" if one.pairing is Source.SEEDED else "None"
            source = _OWN.format(draft=draft, seed=seed) + _CELLS
        case Source.GIVEN:
            assert laws is not None
            source = _GIVEN.format(proposed=tensor(laws), most=len(case.requests) - 1) + _CELLS
        case Source.CERTAIN:
            source = _CERTAIN.format(drafts=case.requests[0].drafts) + _CELLS
        case Source.DRAFTS:
            source = _DRAFTS.format(draft=draft, buckets=BUCKETS)
    probs = (
        np.full(BUCKETS, 1 / BUCKETS)
        if one.pairing is Source.DRAFTS
        else step_cells(case, capabilities.semantics)
    )
    judge = _JUDGE.format(
        probs=tensor(torch.from_numpy(probs)),
        calls=one.calls,
        more=_MORE,
        seed=derived_seed(run_seed, case.id, "script"),
        pairing=one.pairing,
        sigmas=_SIGMAS,
        alpha=_ALPHA,
    )
    return f"{beginning}\nROWS, ASKED = {one.rows}, {value(asked)}\nproblems = []\n{source}{judge}"
