"""Transcripts: every call of a conversation with a backend, as data that can be held again.

A backend is wrapped at its own level, so that whatever a check asks of it is written down: the
arguments, the seed of torch's generator, and the answer in plain numbers.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from functools import wraps
from typing import Any, Final

import torch
from torch import Tensor

from refsampler.backends.protocol import (
    BatchSampler,
    Capabilities,
    Engine,
    Kernel,
    Rows,
    Session,
    Subject,
)
from refsampler.metadata import SamplingMetadata
from refsampler.params import SamplingParams
from refsampler.request import Request, ThinkingMarkers

__all__ = ["Call", "NotWritable", "Transcript", "answer_of", "watched"]

_PLAIN: Final = Request(SamplingParams(temperature_floor=0.0))
_REBUILT: Final = ("generators", "logitsprocs", "thinking_budget_state_holder")
"""Fields of the metadata that only `from_requests` can make."""
_MOST_CALLS: Final = 4000


class NotWritable(Exception):  # noqa: N818 - reads as what happened
    """A call cannot be written down; the message says why."""


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """One call of the backend.

    Attributes:
        kind: `draw` of a kernel, `batch` of a sampler, or a method of a session, or its opening.
        session: number of the session, from 0.
        ids: of the requests meant.
        requests: as they stand at this call, one a row; of `add` the one that is added.
        tokens: that are accepted.
        vocab: of a session that is opened.
        logits: as handed over.
        rows: of a kernel.
        thinking: markers of a sampler's batch.
        changes: fields in which a sampler's metadata differs from that of its requests.
        mode: of the logprobs, None if it is not said.
        seed: set before the call, None if torch's generator goes on; of a session its own.
        steps: how many ids each row has drawn before.
        answer: what came back, in plain numbers.

    """

    kind: str
    session: int = 0
    ids: tuple[int, ...] = ()
    requests: tuple[Request, ...] = ()
    tokens: tuple[tuple[int, ...], ...] = ()
    vocab: int = 0
    logits: Tensor | None = None
    rows: Rows | None = None
    thinking: ThinkingMarkers | None = None
    changes: Mapping[str, Any] = field(default_factory=dict)
    mode: str | None = None
    seed: int | None = None
    steps: tuple[int, ...] = ()
    answer: Mapping[str, Any] = field(default_factory=dict)


def answer_of(output: Any) -> dict[str, Any]:
    """Return ids and logprobs of an output, or ids of a kernel, in plain numbers."""
    drawn = output[0] if isinstance(output, tuple) else output
    ids: Any = getattr(drawn, "sampled_token_ids", drawn)
    found = {"ids": ids.flatten().tolist()}
    logprobs = getattr(drawn, "logprobs_tensors", None)
    if logprobs is not None:
        names = ("logprob_token_ids", "logprobs", "valid", "selected_token_ranks")
        found |= {name: getattr(logprobs, name).tolist() for name in names}
    return found


class Transcript:
    """The calls so far; those of other threads stand apart.

    Attributes:
        calls: in order.
        beside: of other threads, up to the first one that samples.
        requests: of the batch that is being asked, where a sampler's metadata do not say.
        thinking: markers of that batch.

    """

    def __init__(self, requests: tuple[Request, ...], thinking: ThinkingMarkers | None) -> None:
        self.calls: list[Call] = []
        self.beside: list[Call] = []
        self.requests, self.thinking = requests, thinking
        self._thread = threading.get_ident()
        self._sessions = 0

    def note(self, call: Call) -> None:
        """Take a call."""
        if threading.get_ident() == self._thread:
            self.calls.append(call)
        elif not any(one.logits is not None for one in self.beside):
            self.beside.append(call)
        if len(self.calls) > _MOST_CALLS:
            raise NotWritable(f"more than {_MOST_CALLS} calls")

    def session(self) -> int:
        """Return the number of a new session."""
        self._sessions += 1
        return self._sessions - 1

    @contextmanager
    def asking(self, call: Call) -> Iterator[Callable[[Any], None]]:
        """Note a call with what it gives; an error is an answer too."""
        given: list[dict[str, Any]] = []
        call = replace(call, seed=_fresh_seed() if call.seed is None else call.seed)
        try:
            yield lambda output: given.append(_answered(output))
        except (Exception, SystemExit) as error:
            self.note(replace(call, answer={"error": f"{type(error).__name__}: {error}"}))
            raise
        self.note(replace(call, answer=given[0] if given else {}))


def _answered(output: Any) -> dict[str, Any]:
    try:
        return answer_of(output)
    except Exception as error:  # noqa: BLE001 - rubbish is an answer that a script gets again
        return {"error": f"{type(error).__name__}: {error}"}


def _fresh_seed() -> int | None:
    """Return the seed of torch's generator, None if it has drawn since it was seeded."""
    seed = torch.default_generator.initial_seed()
    fresh = torch.Generator().manual_seed(seed)
    same = torch.equal(fresh.get_state(), torch.default_generator.get_state())
    return seed if same else None


def watched(backend: Subject, transcript: Transcript) -> Subject:
    """Return the backend with a transcript of everything that is asked of it."""
    level = backend.capabilities.level
    if level == 1:
        assert isinstance(backend, Kernel)
        return _Kernel(backend, transcript)
    if level == 2:
        assert isinstance(backend, BatchSampler)
        return _Sampler(backend, transcript)
    assert isinstance(backend, Engine)
    return _Engine(backend, transcript)


class _Kernel:
    def __init__(self, backend: Kernel, transcript: Transcript) -> None:
        self.capabilities: Capabilities = backend.capabilities
        self._backend, self._transcript = backend, transcript

    def draw(self, logits: Tensor, rows: Rows) -> Any:
        steps = tuple(rows.step.tolist())
        kept = replace(rows, generators={**rows.generators})
        call = Call("draw", logits=logits.clone(), rows=kept, steps=steps)
        with self._transcript.asking(call) as answer:
            drawn = self._backend.draw(logits, rows)
            answer(drawn)
        return drawn


class _Sampler:
    def __init__(self, backend: BatchSampler, transcript: Transcript) -> None:
        self.capabilities: Capabilities = backend.capabilities

        # the signature says whether the sampler takes a mode
        @wraps(backend.sample)
        def sample(logits: Tensor, metadata: SamplingMetadata, **options: Any) -> Any:
            requests, changes = _source(metadata, transcript, len(logits), logits.device)
            call = Call(
                "batch",
                requests=requests,
                thinking=transcript.thinking,
                changes=changes,
                logits=logits.clone(),
                mode=options.get("logprobs_mode"),
                steps=tuple(metadata.steps),
            )
            with transcript.asking(call) as answer:
                output = backend.sample(logits, metadata, **options)
                answer(output)
            return output

        self.sample = sample


def _source(
    metadata: SamplingMetadata, transcript: Transcript, rows: int, device: torch.device
) -> tuple[tuple[Request, ...], Mapping[str, Any]]:
    """Return requests and changed fields that make the metadata again.

    Raises:
        NotWritable: the batch has state that neither can make.

    """
    for requests in (transcript.requests, (_PLAIN,) * rows):
        if len(requests) != rows:
            continue
        made = SamplingMetadata.from_requests(
            requests, metadata.vocab_size, device=device, thinking=transcript.thinking
        )
        if all(_rebuilt(made, name) == _rebuilt(metadata, name) for name in _REBUILT):
            names = [one.name for one in fields(made) if one.name not in _REBUILT]
            pairs = {name: (getattr(made, name), getattr(metadata, name)) for name in names}
            return requests, {
                name: now for name, (then, now) in pairs.items() if not _same(then, now)
            }
    raise NotWritable("metadata that no requests of the case make")


def _rebuilt(metadata: SamplingMetadata, name: str) -> object:
    """Return what can be compared of a field that only `from_requests` can make."""
    if name == "generators":
        return {row: one.initial_seed() for row, one in metadata.generators.items()}
    if name == "thinking_budget_state_holder":
        return repr(metadata.thinking_budget_state_holder)
    processors = metadata.logitsprocs
    kept = [*processors.non_argmax_invariant, *processors.argmax_invariant]
    return [
        (type(one).__name__, repr({k: v for k, v in vars(one).items() if k.startswith(("_", "m"))}))
        for one in kept
    ]


def _same(then: Any, now: Any) -> bool:
    if isinstance(then, Tensor) and isinstance(now, Tensor):
        return then.shape == now.shape and then.dtype == now.dtype and torch.equal(then, now)
    if isinstance(then, Tensor) or isinstance(now, Tensor):
        return False
    return repr(_listed(then)) == repr(_listed(now))


def _listed(value: Any) -> Any:
    """Return sequences as lists, whatever they are."""
    if isinstance(value, Mapping):
        return {key: _listed(one) for key, one in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_listed(one) for one in value]
    return value


class _Engine:
    def __init__(self, backend: Engine, transcript: Transcript) -> None:
        self.capabilities: Capabilities = backend.capabilities
        self._backend, self._transcript = backend, transcript

    def open(self, vocab: int, seed: int) -> _Session:
        number = self._transcript.session()
        call = Call("open", number, vocab=vocab, seed=seed)
        with self._transcript.asking(call):
            session = self._backend.open(vocab, seed)
        return _Session(session, number, self._transcript)


class _Session:
    def __init__(self, session: Session, number: int, transcript: Transcript) -> None:
        self._session, self._number, self._transcript = session, number, transcript
        self._standing: dict[int, Request] = {}
        self._drawn: dict[int, int] = {}

    def add(self, id: int, request: Request) -> None:  # noqa: A002 - the protocol's name
        with self._transcript.asking(Call("add", self._number, (id,), (request,))):
            self._session.add(id, request)
        self._standing[id], self._drawn[id] = request, 0

    def remove(self, id: int) -> None:  # noqa: A002 - the protocol's name
        with self._transcript.asking(Call("remove", self._number, (id,))):
            self._session.remove(id)
        self._standing.pop(id, None)

    def sample(self, ids: Sequence[int], logits: Tensor) -> Any:
        names = tuple(ids)
        requests = tuple(self._standing[name] for name in names if name in self._standing)
        steps = tuple(self._drawn.get(name, 0) for name in names)
        call = Call("sample", self._number, names, requests, logits=logits.clone(), steps=steps)
        with self._transcript.asking(call) as answer:
            output = self._session.sample(ids, logits)
            answer(output)
        self._drawn |= {name: self._drawn.get(name, 0) + 1 for name in names}
        return output

    def accept(self, ids: Sequence[int], tokens: Sequence[Sequence[int]]) -> None:
        gained = tuple(tuple(one) for one in tokens)
        with self._transcript.asking(Call("accept", self._number, tuple(ids), tokens=gained)):
            self._session.accept(ids, tokens)
        for name, more in zip(ids, gained, strict=True):
            if name in self._standing:
                now = self._standing[name]
                self._standing[name] = replace(now, output=(*now.output, *more))

    def close(self) -> None:
        with self._transcript.asking(Call("close", self._number)):
            self._session.close()
