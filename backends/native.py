"""Plain torch in vLLM 0.25.1's own formulation: sort, threshold, cumulative sum, exponential race.

Where vLLM's paths differ from each other, this is the one of `forward_native` with the torch
filter, except that k alone is found by a partial sort on every device, as vLLM does on a CPU.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from jaxtyping import Float, Float32, Int32, Int64
from torch import Tensor

from refsampler.backends.protocol import Capabilities, Drawn, DType, Feature, Fold, Rows
from refsampler.params import GREEDY_EPSILON

__all__ = ["NativeKernel", "backend", "filter_logits", "on_gpu", "on_gpu_fp64", "race"]

_DTYPES = frozenset(DType)


class NativeKernel:
    """Level 1, all of step 7: argmax, temperature, min-p, top-k, top-p and one race.

    The k-th largest value and everything equal to it stay (`top-k.ties`: all).  Of equal logits at
    the edge of top-p the right number stays, those that the ascending sort put last: the highest
    ids while the sort is stable, which torch promises for neither device (`top-p.ties`: count).

    Args:
        device: where the logits live.
        fp64: race in float64, vLLM's `use_fp64_gumbel`; float32 is vLLM's default.

    """

    def __init__(self, device: str = "cpu", *, fp64: bool = False) -> None:
        self.dtype = torch.float64 if fp64 else torch.float32
        features = {Feature.SEED, Feature.PROCESSED, Feature.SAME_PATH}
        if torch.device(device).type == "cpu":
            # On a CPU torch computes a row alike in every batch and layout.
            features.add(Feature.BITWISE)
        self.capabilities = Capabilities(
            name="native",
            version=f"vllm 0.25.1 formulation, torch {torch.__version__}",
            level=1,
            device=device,
            dtypes=_DTYPES,
            features=frozenset(features),
            folds=frozenset(Fold),
        )

    def draw(self, logits: Float[Tensor, "B V"], rows: Rows) -> Drawn:
        """Return int64 ids and the logits they were drawn from; the input stays as it is.

        Raises:
            TypeError: the logits are of another dtype than float32, bfloat16 or float16.
            RuntimeError: a k is outside 1..V, as in vLLM.

        """
        if logits.dtype not in {one.torch for one in _DTYPES}:
            names = ", ".join(sorted(_DTYPES))
            raise TypeError(f"logits.dtype = {logits.dtype} is refused: allowed are {names}")
        x = logits.to(torch.float32)
        if rows.temperature is None:
            return self._draw_random(x, rows)
        greedy = rows.temperature < GREEDY_EPSILON
        if not bool(greedy.any()):
            return self._draw_random(x / rows.temperature[:, None], rows)
        argmax = x.argmax(dim=-1)
        if bool(greedy.all()):
            return Drawn(argmax, x)
        drawn = self._draw_random(x / rows.temperature.masked_fill(greedy, 1)[:, None], rows)
        return Drawn(torch.where(greedy, argmax, drawn.ids), drawn.processed_logits)

    def _draw_random(self, logits: Float32[Tensor, "B V"], rows: Rows) -> Drawn:
        """Filter and race every row, temperature done."""
        x = logits if rows.min_p is None else _mask_below(logits, rows.min_p)
        x = filter_logits(x, rows.top_k, rows.top_p)
        return Drawn(race(x, rows.generators, self.dtype), x)


def _mask_below(
    logits: Float32[Tensor, "B V"], min_p: Float32[Tensor, " B"]
) -> Float32[Tensor, "B V"]:
    """Mask ids whose probability is below min_p times the largest."""
    probs = logits.softmax(dim=-1)
    threshold = min_p[:, None] * probs.amax(dim=-1, keepdim=True)
    return logits.masked_fill(probs < threshold, -torch.inf)


def filter_logits(
    logits: Float32[Tensor, "B V"],
    top_k: Int32[Tensor, " B"] | None,
    top_p: Float32[Tensor, " B"] | None,
) -> Float32[Tensor, "B V"]:
    """Return the logits with -inf outside the kept set; the same tensor if both are off.

    Float32 throughout, hence near p = 1 a tail that does not move the cumulative sum is cut.
    """
    if top_p is not None:
        return _sorted_filter(logits, top_k, top_p)
    if top_k is not None:
        return logits.masked_fill(logits < _kth_largest(logits, top_k), -torch.inf)
    return logits


def _kth_largest(
    logits: Float32[Tensor, "B V"], top_k: Int32[Tensor, " B"]
) -> Float32[Tensor, "B 1"]:
    """Return each row's k-th largest value, -inf where k = V, by a partial sort of the batch."""
    off = top_k == logits.shape[-1]
    place = top_k.long().masked_fill(off, 1)
    largest = logits.topk(int(place.max()), dim=-1).values
    return largest.gather(-1, place[:, None] - 1).masked_fill_(off[:, None], -torch.inf)


def _sorted_filter(
    logits: Float32[Tensor, "B V"],
    top_k: Int32[Tensor, " B"] | None,
    top_p: Float32[Tensor, " B"],
) -> Float32[Tensor, "B V"]:
    """Apply top-k, if any, then top-p on what it left, to the row sorted in ascending order."""
    ascending, ids = logits.sort(dim=-1)
    if top_k is not None:
        kth_largest = ascending.gather(-1, logits.shape[-1] - top_k.long()[:, None])
        ascending.masked_fill_(ascending < kth_largest, -torch.inf)
    mass_up_to = ascending.softmax(dim=-1).cumsum_(dim=-1)
    cut = mass_up_to <= 1 - top_p[:, None]
    cut[:, -1] = False
    ascending.masked_fill_(cut, -torch.inf)
    return torch.empty_like(logits).scatter_(-1, ids, ascending)


def race(
    logits: Float32[Tensor, "B V"],
    generators: Mapping[int, torch.Generator],
    dtype: torch.dtype = torch.float32,
) -> Int64[Tensor, " B"]:
    """Return argmax p / q a row, with q ~ Exp(1) in `dtype` and p = softmax(logits) in float32.

    The default generator fills the batch unless every row is seeded; then each seeded row is filled
    again from its own.  A masked id scores 0, so it wins nothing as long as the noise is finite and
    positive.  The formula alone does not defend the support: noise of exactly 0 makes a masked id
    NaN, which wins, and in float64 so does noise below 2^-1024, whose reciprocal is infinite.
    Torch's generator returns neither.  A row without a law is NaN everywhere and gives id 0.
    """
    probs = logits.softmax(dim=-1)
    noise = torch.empty_like(probs, dtype=dtype)
    if len(generators) != logits.shape[0]:
        noise.exponential_()
    for row, generator in generators.items():
        noise[row].exponential_(generator=generator)
    # in place: of the largest batches a GPU holds few copies
    score = probs.div_(noise) if dtype is torch.float32 else noise.reciprocal_().mul_(probs)
    return score.argmax(dim=-1)


backend = NativeKernel()


def on_gpu() -> NativeKernel:
    """Return the backend for logits on a GPU."""
    return NativeKernel("cuda")


def on_gpu_fp64() -> NativeKernel:
    """Return it with vLLM's `use_fp64_gumbel`."""
    return NativeKernel("cuda", fp64=True)
