"""The wire, version 1: what the harness asks a program on standard input, and what comes back.

One JSON object a line, each way.  Every question has a number, `call`, which its reply repeats.
Tensors travel beside it as safetensors files, in a folder that the harness owns and under names that
the harness gave: a reply never names a file.  Nothing of a reply is ever executed.
`docs/wire-protocol.md` describes it; `schema` gives the JSON Schema of every message.
"""

from __future__ import annotations

import json
import math
from typing import Annotated, Any, Final, Literal, TypeVar

import msgspec
from msgspec import Meta

from refsampler.backends.protocol import Capabilities
from refsampler.backends.trouble import WorkerFault
from refsampler.params import SamplingParams
from refsampler.request import Request

__all__ = [
    "LONGEST_REPLY",
    "VERSION",
    "Accept",
    "Add",
    "Ask",
    "Close",
    "Describe",
    "Described",
    "Done",
    "Failed",
    "Open",
    "Params",
    "Remove",
    "Reply",
    "Sample",
    "WireFault",
    "WireRequest",
    "as_request",
    "encode",
    "from_request",
    "read_ask",
    "read_reply",
    "schema",
]

VERSION: Final = 1
"""Of the wire; a program that speaks another one is not opened."""
LONGEST_REPLY: Final = 2**20
"""Bytes of a reply's line."""
_LONGEST_WORDS: Final = 4000

_NonFinite = Literal["nan", "inf", "-inf"]
_Number = float | _NonFinite
"""JSON has no such numbers; a logit bias of -inf is legal, and bad requests bring the others."""
_FileName = Annotated[str, Meta(pattern=r"^[a-z]+-[0-9]+\.safetensors$")]
"""In the folder of `describe`; never a path."""


class WireFault(WorkerFault):
    """A program did not keep to the wire: an ERROR, since nobody knows what it meant."""


class Params(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """What a request asks, as in `refsampler.params.SamplingParams`; left out is the default.

    Text is not on the wire: stop strings, bad words as strings, several sequences of one prompt and
    logprobs of the prompt belong to other parts of an engine.
    """

    presence_penalty: _Number = 0.0
    frequency_penalty: _Number = 0.0
    repetition_penalty: _Number = 1.0
    temperature: _Number = 1.0
    temperature_floor: _Number = 1e-2
    top_p: _Number = 1.0
    top_k: int = 0
    min_p: _Number = 0.0
    seed: int | None = None
    max_tokens: int | None = 16
    min_tokens: int = 0
    stop_token_ids: tuple[int, ...] = ()
    eos_token_id: int | None = None
    bad_words_token_ids: tuple[tuple[int, ...], ...] = ()
    allowed_token_ids: tuple[int, ...] | None = None
    logit_bias: tuple[tuple[int, _Number], ...] = ()
    logprobs: int | None = None
    logprob_token_ids: tuple[int, ...] | None = None
    thinking_token_budget: int | None = None


class WireRequest(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A request as it enters: what it asks, its prompt, and what it has generated so far."""

    params: Params = Params()
    prompt: tuple[int, ...] = ()
    output: tuple[int, ...] = ()


class _Ask(msgspec.Struct, frozen=True, tag_field="op", forbid_unknown_fields=True, kw_only=True):
    """Every question has a number."""

    call: int


class Describe(_Ask, frozen=True, tag="describe"):
    """What are you?  The first question; `folder` is where tensors will lie."""

    wire: int
    folder: str


class Open(_Ask, frozen=True, tag="open"):
    """Start a session over `vocab` ids; `seed` feeds requests that have none of their own."""

    session: int
    vocab: int
    seed: int


class Add(_Ask, frozen=True, tag="add"):
    """Admit a request, or refuse it naming field, value and range."""

    session: int
    id: int
    request: WireRequest


class Remove(_Ask, frozen=True, tag="remove"):
    """Forget a request."""

    session: int
    id: int


class Sample(_Ask, frozen=True, tag="sample"):
    """Sample one id for each of `ids`, in this order; nothing is accepted.

    `logits` holds the tensor `logits` [ids, vocab].  The program writes `output`:
    `sampled_token_ids` int32 [ids, 1], and if it can `valid` bool [ids] and the four tensors of
    `logprobs.*` (see the protocol's page).
    """

    session: int
    ids: tuple[int, ...]
    logits: _FileName
    output: _FileName


class Accept(_Ask, frozen=True, tag="accept"):
    """Append tokens to the outputs of requests, as if they had been generated."""

    session: int
    ids: tuple[int, ...]
    tokens: tuple[tuple[int, ...], ...]


class Close(_Ask, frozen=True, tag="close"):
    """End a session."""

    session: int


class _Reply(
    msgspec.Struct, frozen=True, tag_field="reply", forbid_unknown_fields=True, kw_only=True
):
    """Every reply repeats the number of its question."""

    call: int


class Described(_Reply, frozen=True, tag="described"):
    """What the program is and declares; level and device are 3 and cpu."""

    wire: int
    capabilities: Capabilities


class Done(_Reply, frozen=True, tag="done"):
    """It is done; after `sample` the output is written."""


class Failed(_Reply, frozen=True, tag="failed"):
    """It is not done: `refused` is an input that it does not take, `raised` anything else."""

    kind: Literal["refused", "raised"]
    words: str


_Message = TypeVar("_Message")
Ask = Describe | Open | Add | Remove | Sample | Accept | Close
Reply = Described | Done | Failed


def encode(message: Ask | Reply) -> bytes:
    """Return a message as a line, without its end."""
    return msgspec.json.encode(message)


def read_ask(line: bytes) -> Ask:
    """Read a question.

    Raises:
        WireFault: it has not the form agreed on.

    """
    return _read(line, _ASK)


def read_reply(line: bytes) -> Reply:
    """Read a reply.

    Raises:
        WireFault: it has not the form agreed on, or is too long.

    """
    if len(line) > LONGEST_REPLY:
        raise WireFault(f"a reply of {len(line)} bytes: allowed are {LONGEST_REPLY}")
    reply = _read(line, _REPLY)
    if isinstance(reply, Failed) and len(reply.words) > _LONGEST_WORDS:
        return msgspec.structs.replace(reply, words=f"{reply.words[:_LONGEST_WORDS]} ...")
    return reply


_ASK: Final[msgspec.json.Decoder[Ask]] = msgspec.json.Decoder(Ask)
_REPLY: Final[msgspec.json.Decoder[Reply]] = msgspec.json.Decoder(Reply)


def _read(line: bytes, decoder: msgspec.json.Decoder[_Message]) -> _Message:
    try:
        return decoder.decode(line)
    except (msgspec.MsgspecError, ValueError, TypeError, RecursionError) as error:
        raise WireFault(f"{_one_line(error)} in {line[:100]!r}") from error


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())


def from_request(request: Request) -> WireRequest:
    """Return a request as it travels.

    Raises:
        ValueError: it asks for something that is not on the wire; names the field.

    """
    asked = request.params
    for name, off in _OFF.items():
        if getattr(asked, name) != off:
            raise ValueError(f"{name} = {getattr(asked, name)!r} is refused: allowed is {off!r}")
    # msgspec leaves out what is the default itself, not what only equals it
    defaults = zip(Params.__struct_fields__, Params.__struct_defaults__, strict=True)
    given = {name: getattr(asked, name) for name, off in defaults if getattr(asked, name) != off}
    params = Params(**{name: _number(value) for name, value in given.items()})
    return WireRequest(params, request.prompt, request.output)


def as_request(sent: WireRequest) -> Request:
    """Return a request that travelled; what it asks is validated here.

    Raises:
        ParameterError: a value is out of range.
        ParameterTypeError: a value has the wrong type.

    """
    asked = {name: getattr(sent.params, name) for name in Params.__struct_fields__}
    reals = {name: float(asked[name]) for name in _REALS}
    bias = tuple((token, float(value)) for token, value in sent.params.logit_bias)
    params = SamplingParams(**{**asked, **reals, "logit_bias": bias})
    return Request(params, sent.prompt, sent.output)


_OFF: Final = {"n": 1, "prompt_logprobs": None}
"""What a sampler would notice and the wire does not carry."""
_REALS: Final = (
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "temperature",
    "temperature_floor",
    "top_p",
    "min_p",
)


def _number(value: Any) -> Any:
    """Return a value with the words for numbers that JSON lacks."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, tuple):
        return tuple(_number(one) for one in value)
    return value


def schema() -> bytes:
    """Return the JSON Schema of all messages, as kept in `docs/wire-schema.json`."""
    (asks, replies), parts = msgspec.json.schema_components((Ask, Reply))
    for name in ("dtypes", "features", "folds"):
        # sets, whose order is another one in every process
        parts["Capabilities"]["properties"][name]["default"].sort()
    document = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"refsampler wire, version {VERSION}",
        "oneOf": [asks, replies],
        "$defs": parts,
    }
    return f"{json.dumps(document, indent=2, sort_keys=True)}\n".encode()
