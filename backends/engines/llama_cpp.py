"""llama.cpp: its sampler chains through the C API of `xllamacpp`'s library; no model, no context.

Each request has a chain of its own, in the order of the engine's defaults: penalties, top-k, top-p,
min-p, temperature, draw.  Tokens of prompt and output are accepted by it, so that the penalties see
the last 64 of both.  Seeds have 32 bits.  The C API has no bad words, minimum of tokens or allow-lists;
logit bias alone would be half of `masks`, which is therefore not declared.
"""

from __future__ import annotations

import ctypes
import importlib.util
from collections.abc import Sequence
from ctypes import c_bool, c_float, c_int32, c_int64, c_size_t, c_uint32, c_void_p
from importlib.metadata import version
from pathlib import Path
from typing import Any, ClassVar, Final

import numpy as np
from torch import Tensor

from refsampler.backends.engines.rows import Row, RowSession, refuse
from refsampler.backends.protocol import Capabilities, Feature
from refsampler.params import SamplingParams
from refsampler.request import Request
from refsampler.semantics import profile

__all__ = ["Library", "LlamaCpp", "backend", "candidates_of"]

_WINDOW: Final = 64
"""`penalty_last_n` of the engine's defaults."""
_OFFERED: Final = ("seed", "repetition_penalty", "frequency_penalty", "presence_penalty")
_CANDIDATE: Final = np.dtype([("id", "<i4"), ("logit", "<f4"), ("p", "<f4")])


class _Candidates(ctypes.Structure):
    _fields_: ClassVar[list[tuple[str, Any]]] = [
        ("data", c_void_p),
        ("size", c_size_t),
        ("selected", c_int64),
        ("sorted", c_bool),
    ]


class _ChainParams(ctypes.Structure):
    _fields_: ClassVar[list[tuple[str, Any]]] = [("no_perf", c_bool)]


class LlamaCpp:
    """Level 3, credited with a sampler: a chain for each request.

    Raises:
        ModuleNotFoundError: xllamacpp is not installed.
        RuntimeError: the library answers known questions otherwise than it should.

    """

    def __init__(self) -> None:
        self._c = Library()
        self.capabilities = Capabilities(
            name="llama.cpp",
            version=f"xllamacpp {version('xllamacpp')}",
            level=3,
            credit=2,
            semantics=profile("llama.cpp"),
            features=frozenset({Feature.SEED, Feature.PENALTIES}),
        )
        self._check()

    def open(self, vocab: int, seed: int) -> RowSession[int]:
        """Start a session over V = `vocab` ids; `seed` feeds requests that have none."""
        return RowSession(self, vocab, seed)

    def admit(self, request: Request, vocab: int, seed: int) -> int:
        """Return a chain for a request."""
        refuse(request, "llama.cpp", but=_OFFERED)
        asked = request.params
        return self._c.chain(asked, vocab, seed if asked.seed is None else asked.seed % 2**32)

    def heard(self, chain: int, tokens: Sequence[int]) -> None:
        """Let the chain accept tokens."""
        for token in tokens:
            self._c.accept(chain, token)

    def sample(self, rows: Sequence[Row[int]], logits: Tensor) -> Sequence[int]:
        """Apply each row's chain to its candidates."""
        values = logits.numpy()
        return [self._c.apply(row.state, values[place]) for place, row in enumerate(rows)]

    def forget(self, chain: int) -> None:
        """Free a chain."""
        self._c.free(chain)

    def _check(self) -> None:
        """Answer questions whose answers are known: another signature would give other ones."""
        logits = np.array([1.0, 4.0, 3.9, 0.0], np.float32)
        known = (
            (SamplingParams(temperature=0.0), (), 1),
            (SamplingParams(temperature=0.0, repetition_penalty=2.0), (1,), 2),
            (SamplingParams(temperature=0.0, presence_penalty=1.0), (1,), 2),
            (SamplingParams(temperature=0.0, frequency_penalty=2.0), (1, 1, 2, 2), 0),
            (SamplingParams(top_k=1), (), 1),
        )
        for params, accepted, right in known:
            chain = self._c.chain(params, len(logits), 1)
            self.heard(chain, accepted)
            given = self._c.apply(chain, logits)
            self._c.free(chain)
            if given != right:
                raise RuntimeError(f"llama.cpp: {params!r} gave id {given}, {right} is right")


class Library:
    """The part of the C API that is used."""

    def __init__(self) -> None:
        library = ctypes.CDLL(_path())

        def named(name: str, result: Any, *arguments: Any) -> Any:
            function = getattr(library, f"llama_sampler_{name}")
            function.restype, function.argtypes = result, arguments
            return function

        self._chain_init = named("chain_init", c_void_p, _ChainParams)
        self._add = named("chain_add", None, c_void_p, c_void_p)
        self._apply = named("apply", None, c_void_p, ctypes.POINTER(_Candidates))
        self.free = named("free", None, c_void_p)
        self.accept = named("accept", None, c_void_p, c_int32)
        self._top_k = named("init_top_k", c_void_p, c_int32)
        self._top_p = named("init_top_p", c_void_p, c_float, c_size_t)
        self._min_p = named("init_min_p", c_void_p, c_float, c_size_t)
        self._temperature = named("init_temp", c_void_p, c_float)
        self._draw = named("init_dist", c_void_p, c_uint32)
        self._penalties = named(
            "init_penalties", c_void_p, c_int32, c_int32, c_float, c_float, c_float
        )

    def chain(self, asked: SamplingParams, vocab: int, seed: int) -> int:
        """Return a new chain with the samplers that the engine would add."""
        chain: int = self._chain_init(_ChainParams(no_perf=True))
        if asked.penalised:
            penalties = (
                asked.repetition_penalty,
                asked.frequency_penalty,
                asked.presence_penalty,
            )
            self._add(chain, self._penalties(vocab, _WINDOW, *penalties))
        self._add(chain, self._top_k(asked.top_k))
        self._add(chain, self._top_p(asked.top_p, 1))
        self._add(chain, self._min_p(asked.min_p, 1))
        self._add(chain, self._temperature(asked.temperature))
        self._add(chain, self._draw(seed))
        return chain

    def apply(self, chain: int, logits: np.ndarray) -> int:
        """Return the id that a chain selects, -1 if it selects none."""
        candidates = candidates_of(logits)
        array = self.applied(chain, candidates)
        if array.selected < 0:
            return -1
        where = array.data + array.selected * _CANDIDATE.itemsize
        return c_int32.from_address(where).value

    def applied(self, chain: int, candidates: np.ndarray) -> _Candidates:
        """Let a chain work on candidates, in place; a benchmark times this alone."""
        array = _Candidates(candidates.ctypes.data, len(candidates), -1, False)
        self._apply(chain, ctypes.byref(array))
        return array


def candidates_of(logits: np.ndarray) -> np.ndarray:
    """Return the records of id, logit and probability that a chain works on."""
    candidates = np.empty(len(logits), _CANDIDATE)
    candidates["id"] = np.arange(len(logits))
    candidates["logit"] = logits
    return candidates


def _path() -> str:
    """Return where the library is; xllamacpp's extension exports the C API."""
    found = importlib.util.find_spec("xllamacpp")
    if found is None or not found.submodule_search_locations:
        raise ModuleNotFoundError(
            "xllamacpp is not installed: make engine llama-cpp", name="xllamacpp"
        )
    folder = Path(found.submodule_search_locations[0])
    return str(next(folder.glob("xllamacpp*.so")))


def backend() -> LlamaCpp:
    """Return the engine; a factory, because xllamacpp is optional."""
    return LlamaCpp()
