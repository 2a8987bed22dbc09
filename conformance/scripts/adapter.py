"""What every script begins with: the adapter, the logits, and a function that samples them.

A kernel's script hands over the very logits and rows that the pipeline handed to the kernel, so it
needs nothing of refsampler.  Samplers and engines take refsampler's `SamplingMetadata` and `Request`:
their scripts import those, as the adapter itself does, and nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Final

import torch
from torch import Tensor

from refsampler.backends import registry
from refsampler.backends.protocol import Capabilities, Rows
from refsampler.backends.registry import BUILT_IN, PROGRAM
from refsampler.conformance.case import Case, Layout
from refsampler.conformance.scripts.expressions import tensor, value
from refsampler.conformance.subject import OpenSubject

__all__ = ["REQUEST_IMPORTS", "adapter_parts", "adapter_path", "head", "rows_lines"]

REQUEST_IMPORTS: Final = (
    "from refsampler.metadata import SamplingMetadata",
    "from refsampler.params import SamplingParams",
    "from refsampler.request import Request, ThinkingMarkers",
)

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
import json
import math
import os
import subprocess
import sys
import threading
import zlib
from dataclasses import replace
from operator import attrgetter
from types import SimpleNamespace

import torch

sys.path.insert(0, os.getcwd())
inf, nan = float("inf"), float("nan")


def packed(text, shape, dtype):
    """Return the tensor that was packed into text."""
    raw = bytearray(zlib.decompress(base64.b64decode(text)))
    return torch.frombuffer(raw, dtype=dtype).reshape(shape)


made = {made}
adapter = made if hasattr(made, "capabilities") and not isinstance(made, type) else made()

'''


def adapter_path(spec: str) -> tuple[str, str]:
    """Return module and attribute of a backend."""
    from importlib.metadata import entry_points

    points = {point.name: point.value for point in entry_points(group="refsampler.backends")}
    module, _, attribute = BUILT_IN.get(spec, points.get(spec, spec)).partition(":")
    return module, attribute


def head(spec: str, *, title: str, words: str = "", replay: str = "refsampler replay") -> str:
    """Return the imports and the adapter.

    Args:
        spec: of the backend.
        title: first line.
        words: behind it.
        replay: command that judges what the script cannot.

    """
    if spec.startswith(PROGRAM):
        # the wire is spoken by the adapter that ships
        made = f'importlib.import_module("{registry.__name__}").resolve({spec!r})'
    else:
        module, attribute = adapter_path(spec)
        made = f'attrgetter("{attribute}")(importlib.import_module("{module}"))'
    return _HEAD.format(title=title, words=words, made=made, replay=replay)


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
    """Return the beginning of a script: the adapter, `logits()`, `begin(x, seed)`, `ask(x, seed)`.

    `begin` returns a function that samples logits like x, call after call; an engine keeps its
    session meanwhile.

    Args:
        case: the batch.
        spec: of the backend.
        capabilities: of the backend.
        title: first line.
        words: behind it.
        replay: command that judges what the script cannot.
        copies: how often the batch is repeated.

    """
    write = _kernel if capabilities.level == 1 else _sampler
    lines = [*write(case, capabilities, copies), "", "", *_ASK, ""]
    return head(spec, title=title, words=words, replay=replay) + "\n".join(lines)


_ASK: Final = (
    "def ask(x, seed):",
    '    """Sample the logits once."""',
    "    return begin(x, seed)(x)",
)


def _copied(case: Case, copies: int) -> Case:
    recipe = replace(case.logits, rows=case.logits.rows * copies)
    return replace(case, logits=recipe, requests=case.requests * copies)


class _Recorder:
    """A kernel that only remembers what it was handed."""

    def __init__(self, capabilities: Capabilities) -> None:
        self.capabilities = capabilities
        self.handed: tuple[Tensor, Rows] | None = None

    def draw(self, logits: Tensor, rows: Rows) -> Tensor:
        """Remember, and give id 0 everywhere."""
        self.handed = (logits.clone(), rows)
        return torch.zeros(len(logits), dtype=torch.int64)


def _kernel(case: Case, capabilities: Capabilities, copies: int) -> list[str]:
    """Return logits and rows as the kernel got them."""
    recorder = _Recorder(replace(capabilities, device="cpu"))
    asked = replace(_copied(case, copies), layout=Layout.CONTIGUOUS)
    OpenSubject(recorder, 0).sample(asked, 0, "")
    logits, rows = recorder.handed or (torch.empty(0, case.logits.vocab), None)
    return [
        *_logits(logits[: len(case.requests)], case.layout, capabilities.device, copies),
        "",
        "",
        "def begin(x, _seed):",
        '    """Return what samples logits like x, call after call."""',
        *(rows_lines(rows, capabilities.device) if rows is not None else ["    rows = None"]),
        "",
        "    def draw(x):",
        "        drawn = adapter.draw(x, rows)",
        "        return drawn[0] if isinstance(drawn, tuple) else drawn",
        "",
        "    return draw",
    ]


def rows_lines(rows: Rows, device: str) -> list[str]:
    """Return the lines of a function that make a kernel's rows."""
    seeds: Mapping[int, int] = {row: one.initial_seed() for row, one in rows.generators.items()}
    generators = ", ".join(
        f'{row}: torch.Generator("{device}").manual_seed({seed})' for row, seed in seeds.items()
    )
    parts = [
        f"        {one.name}={tensor(getattr(rows, one.name), device)},"
        for one in fields(Rows)
        if one.name != "generators"
    ]
    return [
        # the adapter's own type if the adapter has loaded it, else an object with its fields
        '    kind = getattr(sys.modules.get("refsampler.draw"), "Rows", SimpleNamespace)',
        "    rows = kind(",
        *parts,
        f"        generators={{{generators}}},",
        "    )",
    ]


def _sampler(case: Case, capabilities: Capabilities, copies: int) -> list[str]:
    """Return logits and requests of a sampler or an engine."""
    logits = case.logits.build(case.dtype.torch)
    lines = [
        *REQUEST_IMPORTS,
        "",
        f"REQUESTS = {value(case.requests)} * {copies}",
        f"THINKING = {value(case.thinking)}",
        "",
        "",
        *_logits(logits, case.layout, capabilities.device, copies),
        "",
        "",
        "def begin(x, seed):",
        '    """Return what samples logits like x, call after call."""',
    ]
    if capabilities.level == 2:
        return [
            *lines,
            "    metadata = SamplingMetadata.from_requests(",
            "        REQUESTS, x.shape[1], device=x.device, thinking=THINKING",
            "    )",
            "    return lambda x: adapter.sample(x, metadata).sampled_token_ids",
        ]
    return [
        *lines,
        "    session = adapter.open(x.shape[1], seed)",
        "    for row, request in enumerate(REQUESTS):",
        "        session.add(row, request)",
        "    return lambda x: session.sample(range(len(REQUESTS)), x).sampled_token_ids",
    ]


def _logits(logits: Tensor, layout: Layout, device: str, copies: int) -> list[str]:
    where = "" if copies == 1 else f".repeat({copies}, 1)"
    where += "" if device == "cpu" else f'.to("{device}")'
    return [
        "def logits():",
        '    """Return the logits as the adapter gets them."""',
        f"    x = {tensor(logits)}{where}",
        f"    return {_LAYOUTS[layout]}",
    ]
