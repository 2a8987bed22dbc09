"""Hugging Face transformers: its logits processors and `torch.multinomial`, without a model.

This is what `generate` does to a row of logits: the argmax if greedy, else temperature, top-k,
top-p, min-p, softmax and `torch.multinomial`.  All steps are folded, in that order, so the law is
the engine's own and the declared profile is `transformers`: min-p acts after top-p.  Handing min-p
to the reference instead would give the `vllm` law, but of a chain that the engine never runs.
The penalties stay with the reference; a level-1 kernel does not see the history.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import cast

import torch
from jaxtyping import Float32, Int64
from torch import Tensor

from refsampler.backends.engines.knobs import Knobs, alike
from refsampler.backends.protocol import Capabilities, Drawn, Feature, Fold, Rows
from refsampler.semantics import profile

__all__ = ["TransformersKernel", "backend"]


class TransformersKernel:
    """Level 1: rows of equal parameters go through one list of processors.

    Unseeded rows of a call share one `torch.multinomial`, as in `generate`; a seeded row, which
    `generate` does not know, gets a call of its own with its generator.

    Args:
        device: where the logits live.

    Raises:
        ModuleNotFoundError: transformers is not installed; the message names the extra.

    """

    def __init__(self, device: str = "cpu") -> None:
        features = {Feature.SEED, Feature.PROCESSED, Feature.SAME_PATH}
        if torch.device(device).type == "cpu":
            # Torch computes a contiguous row of a CPU tensor alike in every batch.
            features.add(Feature.BITWISE)
        self.capabilities = Capabilities(
            name="transformers",
            version=_installed_version(),
            level=1,
            device=device,
            semantics=profile("transformers"),
            features=frozenset(features),
            folds=frozenset(Fold),
        )

    def draw(self, logits: Float32[Tensor, "B V"], rows: Rows) -> Drawn:
        """Return int64 ids and the logits they were drawn from; the input stays as it is.

        Raises:
            ValueError: a parameter that transformers refuses, or a row with NaN, +inf or nothing
                finite, which `torch.multinomial` refuses for the whole batch; names the rows.

        """
        scores = self.processed(logits, rows)
        ids = torch.empty(logits.shape[0], dtype=torch.int64, device=logits.device)
        random: list[int] = []
        for knobs, members in alike(rows, *logits.shape).items():
            if knobs.greedy:
                ids[members] = scores[members].argmax(dim=-1)
            else:
                random += members
        _multinomial(ids, scores.softmax(dim=-1), random, rows.generators)
        return Drawn(ids, scores)

    def processed(self, logits: Float32[Tensor, "B V"], rows: Rows) -> Float32[Tensor, "B V"]:
        """Return what `generate` would draw from; of a greedy row the logits themselves.

        Raises:
            ValueError: a parameter that transformers refuses.

        """
        scores = torch.empty(logits.shape, dtype=torch.float32, device=logits.device)
        for knobs, members in alike(rows, *logits.shape).items():
            given = logits[members].contiguous()
            scores[members] = given if knobs.greedy else _process(knobs, given)
        return scores


def backend() -> TransformersKernel:
    """Return the kernel on the CPU; a factory, because transformers is optional."""
    return TransformersKernel()


def _installed_version() -> str:
    """Return the version without importing the package, which takes seconds."""
    try:
        return version("transformers")
    except PackageNotFoundError as error:
        raise ModuleNotFoundError(
            "transformers is not installed: pip install 'refsampler[transformers]'",
            name="transformers",
        ) from error


def _process(knobs: Knobs, logits: Float32[Tensor, "n V"]) -> Float32[Tensor, "n V"]:
    """Apply the processors that `generate` would build for these parameters."""
    from transformers.generation.logits_process import (
        LogitsProcessorList,
        MinPLogitsWarper,
        TemperatureLogitsWarper,
        TopKLogitsWarper,
        TopPLogitsWarper,
    )

    processors = LogitsProcessorList()
    if knobs.temperature != 1:
        processors.append(TemperatureLogitsWarper(knobs.temperature))
    if knobs.top_k != logits.shape[-1]:
        processors.append(TopKLogitsWarper(knobs.top_k))
    if knobs.top_p < 1:
        processors.append(TopPLogitsWarper(knobs.top_p))
    if knobs.min_p > 0:
        processors.append(MinPLogitsWarper(knobs.min_p))
    no_history = torch.empty((logits.shape[0], 0), dtype=torch.int64, device=logits.device)
    return processors(cast("torch.LongTensor", no_history), logits)


def _multinomial(
    ids: Int64[Tensor, " B"],
    probs: Float32[Tensor, "B V"],
    random: Sequence[int],
    generators: Mapping[int, torch.Generator],
) -> None:
    """Write the ids of the random rows: seeded rows one by one, the others in one call."""
    unseeded = sorted(row for row in random if row not in generators)
    try:
        if unseeded:
            ids[unseeded] = probs[unseeded].multinomial(1)[:, 0]
        for row in random:
            if row in generators:
                ids[row] = probs[row].multinomial(1, generator=generators[row])[0]
    except RuntimeError as error:
        # A row without a law is NaN everywhere after the softmax.
        lawless = [row for row in sorted(random) if bool(probs[row].isnan().any())]
        if not lawless:
            raise
        raise ValueError(
            f"logits: rows {lawless} have no law, torch.multinomial refuses NaN: "
            "allowed is at least one finite logit, and neither NaN nor +inf"
        ) from error
