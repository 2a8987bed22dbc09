"""Scripts that show a wrong step with drafts again: what may be emitted, what is refused, what seeds give."""

from __future__ import annotations

from typing import Final

import numpy as np

from refsampler.backends.protocol import Capabilities, Feature
from refsampler.conformance.case import Case
from refsampler.conformance.checks import Check
from refsampler.conformance.checks.speculative import CHECKS, ENOUGH, given_step
from refsampler.conformance.checks.verified import Place, places_of
from refsampler.conformance.scripts.expressions import id_set, one_line, value
from refsampler.conformance.scripts.rows import RESULTS
from refsampler.conformance.scripts.verifier import verifier_parts
from refsampler.conformance.subject import derived_seed

__all__ = ["about_drafts", "drafted_script"]

_WALK: Final = '''
# for each request, for each position: its draft, whether it may be accepted, what may come in its place
PLACES = {places}
SEEDS = {seeds}
MAY_NOT_CHANGE = {may_not_change}
RAISES = {raises}


def wrong(places, ids):
    """Return where what a request emits cannot be; empty if it can."""
    for at, token in enumerate(ids):
        draft, accepted, others = places[at]
        where = f"id {{token}} at position {{at + 1}}" + ("" if draft is None else f", draft {{draft}},")
        if not 0 <= token < LOGITS.shape[1]:
            return f"{{where}} in place of 0 to {{LOGITS.shape[1] - 1}}"
        if at + 1 < len(ids):
            if token != draft or not accepted:
                return f"{{where}} is followed by another"
        elif token not in others:
            return f"{{where}} is the last; that may be {{sorted(others) or 'none: the draft is accepted'}}"
    return ""


raised = False
for call, seed in enumerate(SEEDS):
    given = LOGITS.clone()
    try:
        rows = begin(REQUESTS, seed)[1](REQUESTS, given, LAWS)
    except WrongForm as error:
        problems.append(f"call {{call}}: {{error}}")
        continue
    except Exception as error:
        problems.append(f"call {{call}}: {{type(error).__name__}}: {{error}}")
        raised = True
        continue
    print(f"call {{call}}: {{rows}}")
    if MAY_NOT_CHANGE and not torch.equal(given, LOGITS):
        problems.append(f"call {{call}}: the logits handed over were changed")
    for row, (places, ids) in enumerate(zip(PLACES, rows)):
        words = wrong(places, ids)
        if words:
            problems.append(f"call {{call}}, request {{row + 1}}: {{words}}")
code = 0 if not problems else 2 if raised and not RAISES else 1
'''

_REFUSED: Final = """
{custom}
try:
    ids = begin(REQUESTS, {seed}{options})[1](REQUESTS, LOGITS, LAWS)
    problems.append(f"ids {{ids}} in place of a ValueError")
except ValueError as error:
    print(f"refused: {{error}}")
except Exception as error:
    problems.append(f"{{type(error).__name__}} in place of a ValueError: {{error}}")
code = 1 if problems else 0
"""

_CUSTOM: Final = '''
from refsampler.processors import LogitsProcessor


class Custom(LogitsProcessor):
    """A processor of a user's own, which lifts id 1."""

    def is_argmax_invariant(self):
        return False

    def update_state(self, batch_update):
        pass

    def apply(self, logits):
        return logits + (torch.arange(logits.shape[-1], device=logits.device) == 1)

'''

_FRESH: Final = """
answers = [begin(REQUESTS, seed)[1](REQUESTS, LOGITS.clone(), LAWS) for seed in {seeds}]
for second in range(1, len(answers)):
    for first in range(second):
        pairs, where = list(zip(answers[first], answers[second])), f"calls {{first + 1}} and {{second + 1}}"
        if all(len(one) == len(two) for one, two in pairs):
            problems.append(f"{{where}} accept the same drafts of all {{len(pairs)}} requests")
        for length, words in ((1, "in place of rejected drafts"), (2, "behind accepted ones")):
            ends = [one[-1] == two[-1] for one, two in pairs if len(one) == len(two) == length]
            if len(ends) >= {enough} and all(ends):
                problems.append(f"{{where}} give the same {{len(ends)}} ids {{words}}")
code = 1 if problems else 0
"""

_SEEDED: Final = '''
sizes = [len(one.drafts) for one in REQUESTS]
ROWS, PROBS = LOGITS.split([size + 1 for size in sizes]), LAWS.split(sizes)


def verified(places, seeds, seed):
    """Return what the requests at some places emit, beside each other."""
    asked = [
        replace(REQUESTS[at], params=replace(REQUESTS[at].params, seed=seeds[at])) for at in places
    ]
    logits, laws = torch.cat([ROWS[at] for at in places]), torch.cat([PROBS[at] for at in places])
    return begin(asked, seed)[1](asked, logits, laws)


for seeds in {seeds}:
    places = range(len(REQUESTS))
    alone = [verified([at], seeds, 1)[0] for at in places]
    again = [verified([at], seeds, 2)[0] for at in places]
    order = [*places[1:], 0]
    together = dict(zip(order, verified(order, seeds, 3)))
    for at in places:
        for ids, how in ((again[at], "alone again"), (together[at], "beside others")):
            if ids != alone[at]:
                problems.append(f"request {{at + 1}} of seed {{seeds[at]}}: {{alone[at]}} alone, {{ids}} {{how}}")
code = 1 if problems else 0
'''

_END: Final = """
print("expected ", {expected!r})
print("seen     ", {seen!r}, "in the run that found it")
for problem in problems[:10]:
    print("now      ", problem)
if not problems:
    print("now       nothing that this script can judge")
sys.exit(code)
"""


def about_drafts(check: Check) -> bool:
    """Whether a check verifies single steps with drafts."""
    return any(one.name == check.name for one in CHECKS)


def drafted_script(
    check: Check,
    case: Case,
    spec: str,
    capabilities: Capabilities,
    run_seed: int,
    *,
    clause: str,
    expected: str,
    seen: str,
) -> str:
    """Return the text of the script.

    Args:
        check: that found it, `about_drafts`.
        case: a step.
        spec: of the backend.
        capabilities: of the backend.
        run_seed: of the run, whose seeds the script uses again.
        clause: that is broken.
        expected: in words.
        seen: in words.

    """
    expected, seen = one_line(expected), one_line(seen)
    step = given_step(case)
    beginning = verifier_parts(
        spec,
        capabilities,
        step.logits,
        step.draft_probs,
        title=f"{clause} is broken by {spec}: a step with drafts that shows it.",
        words=f"\n\nexpected  {expected}\nseen      {seen}",
        replay=f"refsampler replay {case.id}",
        thinking=case.thinking,
    )
    match check.name:
        case "refused-beside-drafts":
            body = _refused(case, capabilities, run_seed)
        case "seeded-drafts":
            calls = range(case.calls)
            seeds = [
                [derived_seed(run_seed, case.id, call, at) for at in range(len(step.requests))]
                for call in calls
            ]
            body = _SEEDED.format(seeds=seeds)
        case "fresh-steps":
            body = _FRESH.format(seeds=_seeds(case, run_seed), enough=ENOUGH)
        case _:
            places = places_of(case, step, capabilities.semantics)
            rows = ", ".join(f"[{', '.join(map(_place, one))}]" for one in places)
            body = _WALK.format(
                places=f"[{rows}]",
                seeds=_seeds(case, run_seed),
                may_not_change=Feature.IN_PLACE not in capabilities.features,
                raises=expected in RESULTS,
            )
    requests = f"\nREQUESTS = {value(step.requests)}\nproblems = []\n"
    return beginning + requests + body + _END.format(expected=expected, seen=seen)


def _seeds(case: Case, run_seed: int) -> list[int]:
    return [derived_seed(run_seed, case.id, call) for call in range(case.calls)]


def _refused(case: Case, capabilities: Capabilities, run_seed: int) -> str:
    params = case.requests[0].params
    custom = not (params.min_p or params.logit_bias)
    options = ", speculative=False" if capabilities.level == 2 else ""
    options += ", custom=(Custom,)" if custom else ""
    seed = derived_seed(run_seed, case.id)
    return _REFUSED.format(custom=_CUSTOM if custom else "", seed=seed, options=options)


def _place(one: Place) -> str:
    others = np.flatnonzero(one.others()).tolist()
    return f"({one.draft}, {one.may_accept()}, {id_set(others)})"
