"""Logprobs: which values a mode shows, which entries a row asked for, and ranks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from inspect import unwrap
from typing import Literal, get_args

import torch
from jaxtyping import Bool, Float32, Int32, Int64
from torch import Tensor

__all__ = [
    "LOGPROBS_MODES",
    "LogprobsMode",
    "LogprobsTensors",
    "compiled_token_ranks",
    "gather",
    "has_law",
    "known_mode",
    "shown_values",
    "token_ranks",
]

LogprobsMode = Literal["raw_logprobs", "raw_logits", "processed_logprobs", "processed_logits"]
LOGPROBS_MODES: tuple[LogprobsMode, ...] = get_args(LogprobsMode)


@dataclass(frozen=True, slots=True)
class LogprobsTensors:
    """What a step returns about probabilities (clause `logprobs.gather`).

    Attributes:
        logprob_token_ids: column 0 the sampled id, then the entries asked for; shape [0] when the
            full row was asked for.
        logprobs: values of those ids; -inf in padding; the full row [num_tokens, vocab] for -1.
        selected_token_ranks: rank of the sampled id, 1-based, ties counted (`logprobs.rank`).
        valid: False in padding (id 0, value -inf).

    """

    logprob_token_ids: Int32[Tensor, ...]
    logprobs: Float32[Tensor, "num_tokens columns"]
    selected_token_ranks: Int64[Tensor, ...]
    valid: Bool[Tensor, "num_tokens columns"]


def known_mode(mode: str) -> LogprobsMode:
    """Return the mode, or refuse it by name."""
    for known in LOGPROBS_MODES:
        if mode == known:
            return known
    msg = f"logprobs_mode = {mode!r} is refused: allowed are {', '.join(LOGPROBS_MODES)}"
    raise ValueError(msg)


def shown_values(
    mode: LogprobsMode,
    raw: Float32[Tensor, "num_tokens vocab"],
    processed: Float32[Tensor, "num_tokens vocab"],
) -> Float32[Tensor, "num_tokens vocab"]:
    """Return the values that the mode shows: raw or processed, logits or logprobs.

    A logprob is never NaN: in a row without a law every id has -inf (clause `logprobs.finite`).
    """
    logits = raw if mode.startswith("raw") else processed
    if not mode.endswith("logprobs"):
        return logits
    return torch.where(has_law(logits)[:, None], torch.log_softmax(logits, dim=-1), -torch.inf)


def has_law(logits: Float32[Tensor, "num_tokens vocab"]) -> Bool[Tensor, " num_tokens"]:
    """Say which rows have a law: something finite, no NaN, no +inf (clause `mask.empty`)."""
    return logits.amax(dim=-1).isfinite()


def gather(
    values: Float32[Tensor, "num_tokens vocab"],
    sampled: Int64[Tensor, " num_tokens"],
    max_num_logprobs: int | None,
    listed: Mapping[int, Sequence[int]],
    *,
    compile_ranks: bool = False,
) -> LogprobsTensors | None:
    """Collect what each row asked for (clause `logprobs.gather`).

    A row with a list gets the sampled id and exactly its list, the others the sampled id and the
    top N; shorter rows are padded.

    Args:
        values: logprobs or logits, as the mode says.
        sampled: the ids of this step.
        max_num_logprobs: None is none, 0 the sampled id, N also the top N, -1 the full row.
        listed: row -> ids whose values it wants.
        compile_ranks: count ranks with `compiled_token_ranks`.

    Raises:
        ValueError: if N exceeds the vocabulary.

    """
    if max_num_logprobs is None and not listed:
        return None
    if max_num_logprobs == -1:
        return _full_row(values)
    top = _top_ids(values, max_num_logprobs or 0)
    wanted = [
        torch.tensor(listed[row], dtype=torch.int64, device=values.device)
        if row in listed
        else top[row]
        for row in range(values.shape[0])
    ]
    ids, valid = _pad(wanted)
    ids = torch.cat([sampled[:, None], ids], dim=-1)
    valid = torch.cat([torch.ones_like(sampled[:, None], dtype=torch.bool), valid], dim=-1)
    ranks = compiled_token_ranks if compile_ranks else token_ranks
    return LogprobsTensors(
        logprob_token_ids=ids.to(torch.int32),
        logprobs=torch.where(valid, values.gather(-1, ids), -torch.inf),
        selected_token_ranks=ranks(values, sampled),
        valid=valid,
    )


def token_ranks(
    values: Float32[Tensor, "num_tokens vocab"], sampled: Int64[Tensor, " num_tokens"]
) -> Int64[Tensor, " num_tokens"]:
    """Count the entries that are >= the sampled one, itself included (clause `logprobs.rank`)."""
    chosen = values.gather(-1, sampled[:, None])
    return (values >= chosen).sum(dim=-1)


def compiled_token_ranks(
    values: Float32[Tensor, "num_tokens vocab"],
    sampled: Int64[Tensor, " num_tokens"],
    compiler: str | Callable[..., object] = "inductor",
) -> Int64[Tensor, " num_tokens"]:
    """Return `token_ranks` without its [num_tokens, vocab] mask in memory.

    Compiled once for every number of rows: torch.compile would compile one row apart from several,
    but an unbacked dimension has no size to specialise on.

    Args:
        values: logprobs or logits.
        sampled: ids to rank.
        compiler: backend of torch.compile.

    """
    from torch._dynamo.decorators import mark_unbacked

    # views, so that the caller's tensors carry no marks into a torch.compile of the caller's
    values, sampled = values[:], sampled[:]
    mark_unbacked(values, 0)
    mark_unbacked(sampled, 0)
    return _compiled(compiler)(values, sampled)


@cache
def _compiled(compiler: str | Callable[..., object]) -> Callable[[Tensor, Tensor], Tensor]:
    """Return `token_ranks` as torch compiles it with that backend."""
    # checks of types and shapes at run time, if someone put them around it, are not for the compiler
    return torch.compile(unwrap(token_ranks), backend=compiler)


def _full_row(values: Float32[Tensor, "num_tokens vocab"]) -> LogprobsTensors:
    """Return a copy of the values, without ids and ranks, as the speculative verifier wants it."""
    return LogprobsTensors(
        logprob_token_ids=torch.empty(0, dtype=torch.int32, device=values.device),
        logprobs=values.clone(),
        selected_token_ranks=torch.empty(0, dtype=torch.int64, device=values.device),
        valid=torch.ones_like(values, dtype=torch.bool),
    )


def _top_ids(
    values: Float32[Tensor, "num_tokens vocab"], count: int
) -> Int64[Tensor, "num_tokens count"]:
    """Return the ids of the `count` largest values, in no promised order among ties."""
    vocab_size = values.shape[-1]
    if count > vocab_size:
        msg = f"max_num_logprobs = {count} is refused: allowed is at most {vocab_size} (vocabulary)"
        raise ValueError(msg)
    return values.topk(count, dim=-1).indices


def _pad(
    wanted: Sequence[Int64[Tensor, " _"]],
) -> tuple[Int64[Tensor, "num_tokens columns"], Bool[Tensor, "num_tokens columns"]]:
    """Pad the rows with id 0 to one width and say which cells are real."""
    columns = max(len(ids) for ids in wanted)
    padded = [torch.nn.functional.pad(ids, (0, columns - len(ids))) for ids in wanted]
    valid = [torch.arange(columns, device=ids.device) < len(ids) for ids in wanted]
    return torch.stack(padded), torch.stack(valid)
