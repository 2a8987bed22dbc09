"""Sampler: the nine steps from logits to token ids (clause `order.pipeline`).

Read `Sampler.__call__` top to bottom.  It is vLLM 0.25.1's v1 Sampler as the contract decides it.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Float32, Int32, Int64
from torch import Tensor

from refsampler.bad_words import mask_bad_words
from refsampler.draw import FilterAndDraw, Fold, draw
from refsampler.folding import call_kernel, divisor, handed_over
from refsampler.logprobs import (
    LogprobsMode,
    LogprobsTensors,
    gather,
    has_law,
    known_mode,
    shown_values,
)
from refsampler.metadata import SamplingMetadata
from refsampler.params import GREEDY_EPSILON
from refsampler.penalties import apply_penalties, count_tokens
from refsampler.positions import at_positions, bonus_positions, drafts_of
from refsampler.truncation import keep, keep_top_k, keep_top_p

__all__ = ["Sampler", "SamplerOutput", "as_float32", "filter_logits", "temperatures"]

_FLOAT_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@dataclass(frozen=True, slots=True)
class SamplerOutput:
    """What one step returns (clause `output.form`).

    Attributes:
        sampled_token_ids: one id a row.
        logprobs_tensors: None unless a row asked for logprobs.
        valid: False where the row had no law: NaN, +inf or an empty support (`mask.empty`).

    """

    sampled_token_ids: Int32[Tensor, "num_tokens 1"]
    logprobs_tensors: LogprobsTensors | None
    valid: Bool[Tensor, " num_tokens"]


class Sampler:
    """The reference sampler; a kernel may take over exactly the filter-and-draw step.

    Args:
        logprobs_mode: which values logprobs show (clauses `logprobs.raw`, `logprobs.gather`).
        use_fp64_gumbel: race in float64; False is vLLM's default float32 race.
        filter_and_draw: replaces top-k, top-p and the draw, and what `folds` adds.
        folds: steps the kernel takes over; temperature and min-p are the optional ones.
        compile_ranks: count logprob ranks with torch.compile; needs a C++ compiler on a CPU.

    """

    def __init__(
        self,
        logprobs_mode: str = "raw_logprobs",
        *,
        use_fp64_gumbel: bool = True,
        filter_and_draw: FilterAndDraw | None = None,
        folds: frozenset[Fold] = frozenset({Fold.TOP_K, Fold.TOP_P}),
        compile_ranks: bool = False,
    ) -> None:
        """Refuse a mode that does not exist, and greedy rows for a kernel that cannot see them."""
        if Fold.GREEDY in folds and Fold.TEMPERATURE not in folds:
            msg = f"folds = {sorted(folds)} is refused: allowed is greedy only with temperature"
            raise ValueError(msg)
        self.logprobs_mode = known_mode(logprobs_mode)
        self.dtype = torch.float64 if use_fp64_gumbel else torch.float32
        self.kernel = filter_and_draw
        self.folds = folds
        self.compile_ranks = compile_ranks

    def __call__(
        self,
        logits: Float[Tensor, "num_tokens vocab"],
        metadata: SamplingMetadata,
        *,
        predict_bonus_token: bool = False,
        logprobs_mode: str | None = None,
    ) -> SamplerOutput:
        """Sample one id a row; the caller's logits stay as they are (clause `input.untouched`).

        Args:
            logits: float32, bfloat16 or float16, any strides.
            metadata: the batch.
            predict_bonus_token: the drafts of a row are output like any other (`spec.history`).
            logprobs_mode: overrides the constructor's.

        Raises:
            TypeError: the logits have another dtype (clause `input.dtypes`).
            ValueError: the logits have another shape than one row a request, or a mask has another
                width than the logits (clause `mask.width`).
            AssertionError: all_greedy and all_random are both set (clause `batch.flags`).

        """
        mode = known_mode(logprobs_mode or self.logprobs_mode)
        if logits.shape[0] == 0:
            return _no_rows(logits)
        _check_shape(logits, metadata)
        if predict_bonus_token:
            metadata = at_positions(metadata, bonus_positions(drafts_of(metadata)))

        # 1 keep what raw modes show; 2 float32
        raw = as_float32(logits)
        # 3 to 6
        x = self.process(raw, metadata)
        # 7 greedy or drawn
        sampled, processed = self.sample(x, metadata, want_processed=mode.startswith("processed"))
        # 8 logprobs
        logprobs = self._logprobs(mode, raw, processed, sampled, metadata)
        # 9 int32 [num_tokens, 1]
        return SamplerOutput(
            sampled_token_ids=sampled.to(torch.int32)[:, None],
            logprobs_tensors=logprobs,
            valid=has_law(processed),
        )

    def process(
        self, logits: Float32[Tensor, "num_tokens vocab"], metadata: SamplingMetadata
    ) -> Float32[Tensor, "num_tokens vocab"]:
        """Steps 3 to 6, which act on greedy and random rows alike."""
        # 3 allowed ids; 4 bad words
        x = _mask_disallowed(logits, metadata)
        x = _ban_bad_words(x, metadata)
        # 5 min tokens, logit bias, custom processors that may move the argmax
        for processor in metadata.logitsprocs.non_argmax_invariant:
            x = processor.apply(x)
        # 6 penalties, then the thinking budget, which beats every mask
        return _force_end_of_thinking(_penalise(x, metadata), metadata)

    def sample(
        self,
        logits: Float32[Tensor, "num_tokens vocab"],
        metadata: SamplingMetadata,
        *,
        want_processed: bool = False,
    ) -> tuple[Int64[Tensor, " num_tokens"], Float32[Tensor, "num_tokens vocab"]]:
        """Step 7: greedy rows take the argmax, the others are filtered and drawn.

        Returns:
            The ids, and the logits they came from: of a greedy row those given, of a random row
            those the filters left, the latter only if `want_processed`.

        """
        if metadata.all_greedy and metadata.all_random:
            msg = "all_greedy and all_random are both set: they exclude each other"
            raise AssertionError(msg)
        folded = handed_over(self.folds, metadata)
        if metadata.all_greedy and Fold.GREEDY not in folded:
            return logits.argmax(dim=-1), logits
        temperature = temperatures(metadata, logits)
        drawn, filtered = self._draw(logits, temperature, metadata, folded, want_processed)
        if metadata.all_random:
            return drawn, filtered
        greedy = temperature < GREEDY_EPSILON
        processed = torch.where(greedy[:, None], logits, filtered)
        if Fold.GREEDY in folded:
            return drawn, processed
        return torch.where(greedy, logits.argmax(dim=-1), drawn), processed

    def _draw(
        self,
        logits: Float32[Tensor, "num_tokens vocab"],
        temperature: Float32[Tensor, " num_tokens"],
        metadata: SamplingMetadata,
        folded: AbstractSet[Fold],
        want_processed: bool,
    ) -> tuple[Int64[Tensor, " num_tokens"], Float32[Tensor, "num_tokens vocab"]]:
        """Draw every row, here or in the kernel; without a kernel's own logits, show ours."""
        if self.kernel is None:
            filtered = filter_logits(logits, temperature, metadata)
            return draw(filtered, metadata.generators, self.dtype), filtered
        drawn = call_kernel(self.kernel, folded, logits, temperature, metadata)
        ids = drawn.ids.to(torch.int64)
        if drawn.processed_logits is not None:
            return ids, drawn.processed_logits
        return ids, filter_logits(logits, temperature, metadata) if want_processed else logits

    def _logprobs(
        self,
        mode: LogprobsMode,
        raw: Float32[Tensor, "num_tokens vocab"],
        processed: Float32[Tensor, "num_tokens vocab"],
        sampled: Int64[Tensor, " num_tokens"],
        metadata: SamplingMetadata,
    ) -> LogprobsTensors | None:
        """Step 8: what each row asked for, of the values that the mode shows."""
        listed = metadata.logprob_token_ids or {}
        if metadata.max_num_logprobs is None and not listed:
            return None
        return gather(
            shown_values(mode, raw, processed),
            sampled,
            metadata.max_num_logprobs,
            listed,
            compile_ranks=self.compile_ranks,
        )


def _no_rows(logits: Float[Tensor, "num_tokens vocab"]) -> SamplerOutput:
    """Return [0, 1] ids, before any flag is read (clause `input.layout`)."""
    return SamplerOutput(
        sampled_token_ids=torch.empty((0, 1), dtype=torch.int32, device=logits.device),
        logprobs_tensors=None,
        valid=torch.empty(0, dtype=torch.bool, device=logits.device),
    )


def _check_shape(logits: Float[Tensor, "num_tokens vocab"], metadata: SamplingMetadata) -> None:
    """Refuse logits that the metadata was not made for: rows and ids would mean something else."""
    allowed = (len(metadata.repetition_penalties), metadata.vocab_size)
    if tuple(logits.shape) != allowed or logits.shape[1] == 0:
        msg = (
            f"logits.shape = {tuple(logits.shape)} is refused: allowed is {allowed}, "
            "one row a request as wide as the vocabulary, which has at least one id"
        )
        raise ValueError(msg)


def as_float32(
    logits: Float[Tensor, "num_tokens vocab"],
) -> Float32[Tensor, "num_tokens vocab"]:
    """Return the logits as float32; float64 is refused rather than rounded (`input.dtypes`)."""
    if logits.dtype not in _FLOAT_DTYPES:
        names = ", ".join(str(dtype) for dtype in _FLOAT_DTYPES)
        msg = f"logits.dtype = {logits.dtype} is refused: allowed are {names}"
        raise TypeError(msg)
    return logits.to(torch.float32)


def _mask_disallowed(
    logits: Float32[Tensor, "num_tokens vocab"], metadata: SamplingMetadata
) -> Float32[Tensor, "num_tokens vocab"]:
    """Set ids outside a row's allow-list to -inf (clauses `mask.allowed`, `mask.width`)."""
    forbidden = metadata.allowed_token_ids_mask
    if forbidden is None:
        return logits
    if forbidden.shape != logits.shape:
        msg = (
            f"allowed_token_ids_mask.shape = {tuple(forbidden.shape)} is refused: "
            f"allowed is {tuple(logits.shape)}, the shape of the logits"
        )
        raise ValueError(msg)
    return torch.where(forbidden, -torch.inf, logits)


def _ban_bad_words(
    logits: Float32[Tensor, "num_tokens vocab"], metadata: SamplingMetadata
) -> Float32[Tensor, "num_tokens vocab"]:
    """Ban the ids that would complete a bad word (clause `mask.bad-words`)."""
    if not metadata.bad_words_token_ids:
        return logits
    history = metadata.output_token_ids or [()] * logits.shape[0]
    return mask_bad_words(logits, metadata.bad_words_token_ids, history)


def _penalise(
    logits: Float32[Tensor, "num_tokens vocab"], metadata: SamplingMetadata
) -> Float32[Tensor, "num_tokens vocab"]:
    """Apply repetition, frequency and presence penalties (clause `penalty.history`)."""
    if metadata.no_penalties:
        return logits
    vocab_size = logits.shape[-1]
    prompts = [] if metadata.prompt_token_ids is None else metadata.prompt_token_ids.tolist()
    return apply_penalties(
        logits,
        count_tokens(prompts or [()] * logits.shape[0], vocab_size, logits.device),
        count_tokens(
            metadata.output_token_ids or [()] * logits.shape[0], vocab_size, logits.device
        ),
        metadata.repetition_penalties,
        metadata.frequency_penalties,
        metadata.presence_penalties,
    )


def _force_end_of_thinking(
    logits: Float32[Tensor, "num_tokens vocab"], metadata: SamplingMetadata
) -> Float32[Tensor, "num_tokens vocab"]:
    """Force the end marker where a row's thinking budget is spent (clause `thinking.force`)."""
    holder = metadata.thinking_budget_state_holder
    if holder is None:
        return logits
    return holder.apply(logits, predict_bonus_token=False)


def temperatures(
    metadata: SamplingMetadata, logits: Float32[Tensor, "num_tokens vocab"]
) -> Float32[Tensor, " num_tokens"]:
    """Return each row's temperature; None is 0 everywhere, and only an all-greedy batch has it."""
    if metadata.temperature is not None:
        return metadata.temperature
    if metadata.all_greedy:
        return torch.zeros(logits.shape[0], dtype=torch.float32, device=logits.device)
    msg = "temperature = None is refused: allowed only if all_greedy"
    raise ValueError(msg)


def filter_logits(
    logits: Float32[Tensor, "num_tokens vocab"],
    temperature: Float32[Tensor, " num_tokens"],
    metadata: SamplingMetadata,
) -> Float32[Tensor, "num_tokens vocab"]:
    """Temperature, min-p and other argmax-invariant processors, top-k, then top-p of the rest."""
    x = logits / divisor(temperature)[:, None]
    for processor in metadata.logitsprocs.argmax_invariant:
        x = processor.apply(x)
    if metadata.top_k is not None:
        x = keep(x, keep_top_k(x, metadata.top_k))
    if metadata.top_p is not None:
        x = keep(x, keep_top_p(x, metadata.top_p))
    return x
