"""Scripts that show a wrong id, form or error again: the batch, and the ids that it may give."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from refsampler.backends.protocol import Capabilities
from refsampler.conformance.case import Case
from refsampler.conformance.checks.attribution import CERTAIN
from refsampler.conformance.checks.expected import Expected
from refsampler.conformance.scripts.adapter import adapter_parts
from refsampler.conformance.scripts.expressions import id_set, one_line
from refsampler.conformance.subject import derived_seed
from refsampler.params import GREEDY_EPSILON

__all__ = ["RESULTS", "Shown", "row_script"]

RESULTS: Final = ("a result", "an id in range, or an error that names the rows")
"""What is expected where raising is the failure."""

_TAIL: Final = '''

def name(x):
    """Return dtype and shape, or the type of what is no tensor."""
    if not isinstance(x, torch.Tensor):
        return type(x).__name__
    return f"{{str(x.dtype).removeprefix('torch.')}} {{list(x.shape)}}"


counted = [set() for _ in KINDS]
problems, raised = [], False
for call, seed in enumerate(SEEDS):
    torch.manual_seed(seed)
    x = logits()
    before = x.clone()
    try:
        ids = ask(x, seed)
    except Exception as error:
        problems.append(f"call {{call}}: {{type(error).__name__}}: {{error}}")
        raised = True
        continue
    print(f"call {{call}}: {{name(ids)}} {{ids.flatten().tolist()[:32] if hasattr(ids, 'flatten') else ids}}")
    if name(ids) not in FORMS:
        problems.append(f"call {{call}}: {{name(ids)}} in place of {{' or '.join(FORMS)}}")
        continue
    if MAY_NOT_CHANGE and not torch.equal(torch.nan_to_num(before), torch.nan_to_num(x)):
        problems.append(f"call {{call}}: the logits handed over were changed")
    for row, token in enumerate(ids.flatten().tolist()):
        kind = KIND_OF[row]
        if not 0 <= token < x.shape[1]:
            problems.append(f"call {{call}}, row {{row}}: id {{token}} in place of 0 to {{x.shape[1] - 1}}")
        elif kind is not None:
            counted[kind].add(token)
            allowed = KINDS[kind][0]
            if allowed is not None and token not in allowed:
                shown = sorted(allowed)[:16]
                problems.append(f"call {{call}}, row {{row}}: id {{token}}, allowed are {{len(allowed)}} ids {{shown}}")
for (_, certain), seen in zip(KINDS, counted):
    missing = sorted(certain - seen)
    if missing and seen:
        problems.append(f"ids {{missing[:16]}} never came, certain but for probability e^-35")

print("expected ", {expected!r})
print("seen     ", {seen!r}, "in the run that found it")
for problem in problems[:10]:
    print("now      ", problem)
if not problems:
    print("now       nothing that this script can judge")
sys.exit({otherwise} if not problems else 2 if raised and not RAISES else 1)
'''


@dataclass(frozen=True, slots=True)
class Shown:
    """A failure to be shown again.

    Attributes:
        clause: that is broken.
        case: one arrangement of the failing case.
        key: names case and arrangement, for the seeds.
        expected: in words.
        seen: in words.
        judged: the script can tell by itself whether it shows again.

    """

    clause: str
    case: Case
    key: str
    expected: str
    seen: str
    judged: bool


def row_script(shown: Shown, spec: str, capabilities: Capabilities, run_seed: int) -> str:
    """Return the text of the script."""
    words = {"expected": one_line(shown.expected), "seen": one_line(shown.seen)}
    case = shown.case
    seeds = [derived_seed(run_seed, shown.key, call) for call in range(case.calls)]
    head = adapter_parts(
        case,
        spec,
        capabilities,
        title=f"{shown.clause} is broken by {spec}: the smallest case found.",
        words=f"\n\nexpected  {words['expected']}\nseen      {words['seen']}",
        replay=f"refsampler replay {shown.key.partition('/')[0]}",
    )
    tail = _TAIL.format(**words, otherwise=0 if shown.judged else 2)
    raises = "\nRAISES = " + str(shown.expected in RESULTS)
    return f"{head}\nSEEDS = {seeds}{raises}\n{_judged(case, capabilities)}{tail}"


def _judged(case: Case, capabilities: Capabilities) -> str:
    """Return what the script compares with: forms, and for each kind of row allowed and certain ids."""
    rows = len(case.requests)
    expected = Expected.of(case, capabilities.semantics)
    forms = [f"int32 [{rows}, 1]"] if capabilities.level > 1 else []
    forms += [f"int32 [{rows}]", f"int64 [{rows}]"] if capabilities.level == 1 else []
    greedy_counts = capabilities.level > 1 or "greedy" in capabilities.folds
    kinds, kind_of = [], expected.kind_of.tolist()
    for kind, law in enumerate(expected.distinct):
        places = [row for row in range(rows) if kind_of[row] == kind]
        allowed = np.flatnonzero(law.allowed).tolist()
        fresh = all(case.requests[row].params.seed is None for row in places)
        certain: list[int] = []
        if fresh and law.valid and not law.greedy:
            mass = np.minimum(np.exp(law.least), 1 - 1e-16)
            never = -len(places) * case.calls * np.log1p(-mass)
            certain = np.flatnonzero(law.core & (never > CERTAIN)).tolist()
        every = not law.valid or len(allowed) == case.logits.vocab
        kinds.append(f"({None if every else id_set(allowed)}, {id_set(certain)})")
    counted: Sequence[int | None] = [
        kind if greedy_counts or case.requests[row].params.temperature >= GREEDY_EPSILON else None
        for row, kind in enumerate(kind_of)
    ]
    may_change: Mapping[bool, str] = {True: "False", False: "True"}
    return "\n".join(
        [
            f"FORMS = {forms}",
            f"MAY_NOT_CHANGE = {may_change['in_place' in capabilities.features]}",
            "# for each kind of row: allowed ids (None: all), ids that are certain to come",
            f"KINDS = [{', '.join(kinds)}]",
            f"KIND_OF = {list(counted)}",
            "",
        ]
    )
