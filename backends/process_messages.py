"""What a subject's process and its parent say to each other.

A message is a JSON header and, beside it, tensors as safetensors bytes; both lengths come first.
Nothing is ever unpickled, so the worst that a broken subject can send is an unreadable answer.
"""

from __future__ import annotations

import struct
from dataclasses import fields
from typing import BinaryIO, Final, Literal

import msgspec
import numpy as np
import torch
from jaxtyping import Int64
from safetensors.torch import load, save
from torch import Tensor

from refsampler.backends.protocol import Capabilities
from refsampler.conformance.checks.base import Asked
from refsampler.conformance.subject import Draw
from refsampler.logprobs import LogprobsTensors
from refsampler.sampler import SamplerOutput

__all__ = [
    "PREFIX_SIZE",
    "Answer",
    "Converse",
    "Drew",
    "Failed",
    "FailureKind",
    "Law",
    "Open",
    "Opened",
    "Question",
    "Sample",
    "Told",
    "Unreadable",
    "as_draw",
    "as_ids",
    "framed",
    "from_draw",
    "from_ids",
    "read_answer",
    "read_message",
    "read_sizes",
]

_PREFIX: Final = struct.Struct("<4sIQ")
_MAGIC: Final = b"rfs1"
_LARGEST_BODY: Final = 2**36

PREFIX_SIZE: Final = _PREFIX.size


FailureKind = Literal["absent", "broken", "raised", "refused", "memory", "garbage", "harness"]


class Unreadable(ValueError):  # noqa: N818 - reads as what the message is
    """A message does not have the form agreed on."""


class Open(msgspec.Struct, frozen=True, tag=True):
    """Open the subject; the first question.

    Attributes:
        spec: as the registry resolves it.
        run_seed: feeds the default generators.
        threads: of torch, as in the parent, so that isolation changes no path.
        memory_bytes: what the process may use, None if that is not limited.
        patience_s: a question that takes this long is one whose parent is gone.

    """

    spec: str
    run_seed: int
    threads: int
    memory_bytes: int | None
    patience_s: float


class Sample(msgspec.Struct, frozen=True, tag=True):
    """`OpenSubject.sample`; the case is its canonical JSON."""

    case: msgspec.Raw
    call: int
    key: str


class Law(msgspec.Struct, frozen=True, tag=True):
    """`OpenSubject.sample_many`; the case is its canonical JSON."""

    case: msgspec.Raw
    rows: int
    call: int


class Converse(msgspec.Struct, frozen=True, tag=True):
    """A check's own conversation with the subject; the case is its canonical JSON."""

    check: str
    case: msgspec.Raw


class Opened(msgspec.Struct, frozen=True, tag=True):
    """The subject is open."""

    capabilities: Capabilities


class Drew(msgspec.Struct, frozen=True, tag=True):
    """What a call gave; the tensors come beside it.

    Attributes:
        changed: as in `Draw`.
        form: as in `Draw`.

    """

    changed: bool = False
    form: str = ""


class Told(msgspec.Struct, frozen=True, tag=True):
    """What a conversation showed."""

    asked: Asked


class Failed(msgspec.Struct, frozen=True, tag=True):
    """A question without an answer; the process lives on.

    Attributes:
        kind: `absent` no such backend, `broken` it cannot be opened, `raised` by the backend,
            `refused` by it as an input, `memory` could not be had, `garbage` came out of the backend, `harness` is our fault.
        words: what happened.

    """

    kind: FailureKind
    words: str


Question = Open | Sample | Law | Converse
Answer = Opened | Drew | Told | Failed


def framed(header: Question | Answer, body: bytes = b"") -> bytes:
    """Return a message as bytes: lengths, header, body."""
    text = msgspec.json.encode(header)
    return _PREFIX.pack(_MAGIC, len(text), len(body)) + text + body


def read_sizes(prefix: bytes) -> tuple[int, int]:
    """Return the sizes of header and body in bytes.

    Raises:
        Unreadable: these bytes do not begin a message.

    """
    magic, header, body = _PREFIX.unpack(prefix)
    if magic != _MAGIC or body > _LARGEST_BODY:
        raise Unreadable(f"{prefix!r} does not begin an answer")
    return header, body


def read_answer(header: bytes) -> Answer:
    """Return the header as what it says.

    Raises:
        Unreadable: it says nothing known.

    """
    try:
        return msgspec.json.decode(header, type=Answer)
    except (msgspec.DecodeError, ValueError) as error:
        raise Unreadable(f"{error} in {header[:100]!r}") from error


def read_message(source: BinaryIO) -> tuple[bytes, bytes] | None:
    """Wait for a message and return header and body; None if the other side is gone."""
    prefix = source.read(PREFIX_SIZE)
    if len(prefix) < PREFIX_SIZE:
        return None
    header, body = read_sizes(prefix)
    text, rest = source.read(header), source.read(body)
    return (text, rest) if len(text) + len(rest) == header + body else None


def from_draw(draw: Draw) -> tuple[Drew, bytes]:
    """Turn a draw into header and tensors.

    Raises:
        Unreadable: a part of the draw is no tensor, or one that cannot travel.

    """
    named: dict[str, object] = {"ids": torch.from_numpy(draw.ids)}
    if draw.processed is not None:
        named["processed"] = draw.processed
    if draw.output is not None:
        named["sampled_token_ids"] = draw.output.sampled_token_ids
        named["valid"] = getattr(draw.output, "valid", None)
        logprobs = getattr(draw.output, "logprobs_tensors", None)
        if logprobs is not None:
            named |= {
                f"logprobs.{one.name}": getattr(logprobs, one.name, None)
                for one in fields(LogprobsTensors)
            }
    return Drew(draw.changed, draw.form), _saved(named)


def as_draw(header: Drew, body: bytes) -> Draw:
    """Turn header and tensors back into a draw; every tensor is on the CPU.

    Raises:
        Unreadable: the tensors are not those of a draw.

    """
    try:
        tensors = load(body)
        ids, processed = tensors.pop("ids"), tensors.pop("processed", None)
        return Draw(ids.numpy(), _output(tensors), processed, header.changed, header.form)
    except Exception as error:
        raise Unreadable(f"{type(error).__name__}: {error}") from error


def from_ids(ids: Int64[np.ndarray, " rows"]) -> tuple[Drew, bytes]:
    """Turn ids into header and tensors."""
    return Drew(), save({"ids": torch.from_numpy(ids)})


def as_ids(_: Drew, body: bytes) -> Int64[np.ndarray, " rows"]:
    """Turn tensors back into ids.

    Raises:
        Unreadable: there are none.

    """
    try:
        return load(body)["ids"].numpy()
    except Exception as error:
        raise Unreadable(f"{type(error).__name__}: {error}") from error


def _output(tensors: dict[str, Tensor]) -> SamplerOutput | None:
    if not tensors:
        return None
    logprobs = {
        name.removeprefix("logprobs."): value
        for name, value in tensors.items()
        if name.startswith("logprobs.")
    }
    return SamplerOutput(
        tensors["sampled_token_ids"],
        LogprobsTensors(**logprobs) if logprobs else None,
        tensors["valid"],
    )


def _saved(named: dict[str, object]) -> bytes:
    plain: dict[str, Tensor] = {}
    for name, value in named.items():
        if not isinstance(value, Tensor):
            raise Unreadable(f"{name}: {type(value).__name__} in place of a tensor")
        try:
            # A copy, since safetensors refuses tensors that share memory.
            plain[name] = value.detach().cpu().clone(memory_format=torch.contiguous_format)
        except RuntimeError as error:
            raise Unreadable(f"{name}: {error}") from error
    try:
        return save(plain)
    except Exception as error:
        raise Unreadable(f"{type(error).__name__}: {error}") from error
