"""Scripts that show a failure again with torch and the adapter only.

A kernel's script hands over the very logits and rows that the pipeline handed to the kernel, so it
needs nothing of refsampler.  Samplers and engines take refsampler's `SamplingMetadata` and `Request`:
their scripts import those, as the adapter itself does, and nothing else.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass, replace
from enum import StrEnum
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from refsampler.backends.protocol import Capabilities, Rows
from refsampler.backends.registry import BUILT_IN
from refsampler.conformance.case import Case, Layout
from refsampler.conformance.checks.attribution import CERTAIN
from refsampler.conformance.checks.expected import Expected
from refsampler.conformance.subject import OpenSubject, derived_seed
from refsampler.params import GREEDY_EPSILON

__all__ = ["Shown", "adapter_parts", "adapter_path", "script"]

_INLINE: Final = 192
"""Numbers that are written out; more of them are packed."""

_RESULTS: Final = ("a result", "an id in range, or an error that names the rows")
"""What is expected where raising is the failure."""

_LAYOUTS: Final = {
    Layout.CONTIGUOUS: "x",
    Layout.TRANSPOSED: "x.t().contiguous().t()",
    Layout.STRIDED: "torch.stack([x, x], dim=-1).flatten(1)[:, ::2]",
    Layout.SLICED: "torch.nn.functional.pad(x, (3, 0, 1, 0))[1:, 3:]",
}

_HEAD: Final = '''"""{title}{words}

Needs torch and the adapter only.  Run it where the adapter can be imported; it exits with 1 if the
failure shows again, with 0 if it does not, and with 2 if only `{replay}` can tell.
"""

import base64
import importlib
import os
import sys
import zlib
from operator import attrgetter
from types import SimpleNamespace

import torch

sys.path.insert(0, os.getcwd())
inf, nan = float("inf"), float("nan")


def packed(text, shape, dtype):
    """Return the tensor that was packed into text."""
    raw = bytearray(zlib.decompress(base64.b64decode(text)))
    return torch.frombuffer(raw, dtype=dtype).reshape(shape)


made = attrgetter("{attribute}")(importlib.import_module("{module}"))
adapter = made if hasattr(made, "capabilities") and not isinstance(made, type) else made()

'''

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


def adapter_path(spec: str) -> tuple[str, str]:
    """Return module and attribute of a backend."""
    from importlib.metadata import entry_points

    points = {point.name: point.value for point in entry_points(group="refsampler.backends")}
    module, _, attribute = BUILT_IN.get(spec, points.get(spec, spec)).partition(":")
    return module, attribute


def script(shown: Shown, spec: str, capabilities: Capabilities, run_seed: int) -> str:
    """Return the text of the script."""
    words = {"expected": _line(shown.expected), "seen": _line(shown.seen)}
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
    raises = "\nRAISES = " + str(shown.expected in _RESULTS)
    return f"{head}\nSEEDS = {seeds}{raises}\n{_judged(case, capabilities)}{tail}"


def adapter_parts(
    case: Case,
    spec: str,
    capabilities: Capabilities,
    *,
    title: str,
    words: str = "",
    replay: str = "refsampler replay",
    copies: int = 1,
) -> str:
    """Return the beginning of a script: the adapter, the logits, and `ask(x, seed)`.

    Args:
        case: the batch.
        spec: of the backend.
        capabilities: of the backend.
        title: first line.
        words: behind it.
        replay: command that judges what the script cannot.
        copies: how often the batch is repeated.

    """
    module, attribute = adapter_path(spec)
    head = _HEAD.format(title=title, words=words, module=module, attribute=attribute, replay=replay)
    write = _kernel if capabilities.level == 1 else _sampler
    return f"{head}{write(case, capabilities, copies)}"


def _copied(case: Case, copies: int) -> Case:
    recipe = replace(case.logits, rows=case.logits.rows * copies)
    return replace(case, logits=recipe, requests=case.requests * copies)


def _line(words: str) -> str:
    """Return the first line, without what would end a docstring."""
    first = words.splitlines()[0] if words else ""
    return first.replace("\\", "/").replace('"""', "'''")


class _Recorder:
    """A kernel that only remembers what it was handed."""

    def __init__(self, capabilities: Capabilities) -> None:
        self.capabilities = capabilities
        self.handed: tuple[Tensor, Rows] | None = None

    def draw(self, logits: Tensor, rows: Rows) -> Tensor:
        """Remember, and give id 0 everywhere."""
        self.handed = (logits.clone(), rows)
        return torch.zeros(len(logits), dtype=torch.int64)


def _kernel(case: Case, capabilities: Capabilities, copies: int) -> str:
    """Return logits and rows as the kernel got them."""
    recorder = _Recorder(replace(capabilities, device="cpu"))
    asked = replace(_copied(case, copies), layout=Layout.CONTIGUOUS)
    OpenSubject(recorder, 0).sample(asked, 0, "")
    logits, rows = recorder.handed or (torch.empty(0, case.logits.vocab), None)
    lines = _logits(logits[: len(case.requests)], case.layout, capabilities.device, copies)
    lines += ["", "", "def ask(x, _seed):"]
    if rows is not None:
        generators = ", ".join(
            f'{row}: torch.Generator("{capabilities.device}").manual_seed({one.initial_seed()})'
            for row, one in rows.generators.items()
        )
        # the adapter's own type if the adapter has loaded it, else an object with its fields
        lines.append(
            '    kind = getattr(sys.modules.get("refsampler.draw"), "Rows", SimpleNamespace)'
        )
        lines.append("    rows = kind(")
        for one in fields(Rows):
            if one.name != "generators":
                lines.append(f"        {one.name}={_on(getattr(rows, one.name), capabilities)},")
        lines += [f"        generators={{{generators}}},", "    )"]
    else:
        lines.append("    rows = None")
    lines += [
        "    drawn = adapter.draw(x, rows)",
        "    return drawn[0] if isinstance(drawn, tuple) else drawn",
        "",
    ]
    return "\n".join(lines)


def _sampler(case: Case, capabilities: Capabilities, copies: int) -> str:
    """Return logits and requests of a sampler or an engine."""
    logits = case.logits.build(case.dtype.torch)
    lines = [
        "from refsampler.metadata import SamplingMetadata",
        "from refsampler.params import SamplingParams",
        "from refsampler.request import Request, ThinkingMarkers",
        "",
        f"REQUESTS = {_written(case.requests)} * {copies}",
        f"THINKING = {_written(case.thinking)}",
        "",
        "",
        *_logits(logits, case.layout, capabilities.device, copies),
        "",
        "",
        "def ask(x, seed):",
    ]
    if capabilities.level == 2:
        lines += [
            "    metadata = SamplingMetadata.from_requests(",
            "        REQUESTS, x.shape[1], device=x.device, thinking=THINKING",
            "    )",
            "    return adapter.sample(x, metadata).sampled_token_ids",
        ]
    else:
        lines += [
            "    session = adapter.open(x.shape[1], seed)",
            "    for row, request in enumerate(REQUESTS):",
            "        session.add(row, request)",
            "    return session.sample(range(len(REQUESTS)), x).sampled_token_ids",
        ]
    return "\n".join([*lines, ""])


def _logits(logits: Tensor, layout: Layout, device: str, copies: int) -> list[str]:
    where = "" if copies == 1 else f".repeat({copies}, 1)"
    where += "" if device == "cpu" else f'.to("{device}")'
    return [
        "def logits():",
        '    """Return the logits as the adapter gets them."""',
        f"    x = {_tensor(logits)}{where}",
        f"    return {_LAYOUTS[layout]}",
    ]


def _on(part: Tensor | None, capabilities: Capabilities) -> str:
    where = "" if capabilities.device == "cpu" or part is None else f'.to("{capabilities.device}")'
    return f"{_tensor(part)}{where}"


def _tensor(part: Tensor | None) -> str:
    """Return a tensor as an expression that gives the same bits."""
    if part is None:
        return "None"
    plain = part.detach().cpu().contiguous()
    if plain.numel() <= _INLINE:
        # a float32 goes through Python's float and back without loss
        return f"torch.tensor({plain.tolist()}, dtype={plain.dtype}).reshape({list(plain.shape)})"
    raw = plain.view(torch.uint8).numpy().tobytes()
    text = base64.b64encode(zlib.compress(raw, 9)).decode()
    return f'packed("{text}", {list(plain.shape)}, {plain.dtype})'


def _written(value: Any) -> str:
    """Return a value object as the expression that makes it, without its defaults."""
    if is_dataclass(value) and not isinstance(value, type):
        parts = [
            f"{one.name}={_written(getattr(value, one.name))}"
            for one in fields(value)
            if one.default is MISSING or getattr(value, one.name) != one.default
        ]
        return f"{type(value).__name__}({', '.join(parts)})"
    if isinstance(value, tuple):
        return f"({''.join(f'{_written(one)}, ' for one in value)})"
    if isinstance(value, StrEnum):
        return repr(str(value))
    return repr(value)


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
        kinds.append(f"({None if every else _ids(allowed)}, {_ids(certain)})")
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


def _ids(ids: list[int]) -> str:
    """Return a set of ids as an expression, ranges as ranges."""
    if not ids:
        return "set()"
    runs: list[list[int]] = []
    for token in ids:
        if runs and runs[-1][1] == token:
            runs[-1][1] = token + 1
        else:
            runs.append([token, token + 1])
    return (
        "{"
        + ", ".join(
            str(start) if end == start + 1 else f"*range({start}, {end})" for start, end in runs
        )
        + "}"
    )
