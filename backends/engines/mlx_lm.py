"""mlx-lm on MLX's CPU: its logits processors and samplers, as its generation step calls them.

Processors see prompt and output, of which each penalty looks at the last 20 tokens; then come the
logits less their log-sum-exp, and the sampler: top-p, min-p, top-k, temperature.  Noise comes from
MLX's global stream, so a request has no seed.  Logit bias alone would be half of `masks`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final

import numpy as np
from torch import Tensor

from refsampler.backends.engines.rows import Row, RowSession, refuse
from refsampler.backends.engines.stubs import load_file, package_folder
from refsampler.backends.protocol import Capabilities, Feature
from refsampler.params import SamplingParams
from refsampler.request import Request
from refsampler.semantics import profile

__all__ = ["MlxLm", "backend"]

_OFFERED: Final = ("repetition_penalty", "frequency_penalty", "presence_penalty")


class MlxLm:
    """Level 3, credited with a sampler: rows of equal parameters are sampled together.

    Raises:
        ModuleNotFoundError: mlx-lm is not installed.
        RuntimeError: it answers known questions otherwise than it should.

    """

    def __init__(self) -> None:
        try:
            found = version("mlx-lm"), version("mlx")
        except PackageNotFoundError as error:
            raise ModuleNotFoundError("mlx-lm is not installed: make engine mlx-lm") from error
        # The package imports a model hub; its sampling is one file.
        path = package_folder("mlx_lm", "mlx-lm") / "sample_utils.py"
        self._utils = load_file("refsampler_mlx_sample_utils", path)
        self.capabilities = Capabilities(
            name="mlx-lm",
            version="{} on mlx {}".format(*found),
            level=3,
            credit=2,
            semantics=profile("mlx-lm"),
            features=frozenset({Feature.PENALTIES}),
        )
        self._check()

    def open(self, vocab: int, seed: int) -> RowSession[None]:
        """Start a session over V = `vocab` ids, and seed MLX's global stream."""
        import mlx.core as mx

        mx.random.seed(seed)
        return RowSession(self, vocab, seed)

    def admit(self, request: Request, _vocab: int, _seed: int) -> None:
        """Refuse what mlx-lm does not offer."""
        refuse(request, "mlx-lm", but=_OFFERED)

    def heard(self, _state: None, _tokens: Sequence[int]) -> None:
        """Do nothing: processors are given the whole history."""

    def forget(self, _state: None) -> None:
        """Do nothing: nothing is held."""

    def sample(self, rows: Sequence[Row[None]], logits: Tensor) -> Sequence[int]:
        """Process each row, then sample the rows of equal parameters in one call."""
        import mlx.core as mx

        ids = np.empty(len(rows), np.int64)
        groups: dict[tuple[Any, ...], list[int]] = {}
        for place, row in enumerate(rows):
            asked = row.request.params
            key = (asked.temperature, asked.top_p, asked.min_p, asked.top_k)
            groups.setdefault(key, []).append(place)
        for places in groups.values():
            taken = mx.array(logits[places].numpy())
            if any(rows[place].request.params.penalised for place in places):
                each = enumerate(places)
                taken = mx.concatenate(
                    [self._processed(rows[p], taken[i : i + 1]) for i, p in each]
                )
            taken = taken - mx.logsumexp(taken, axis=-1, keepdims=True)
            ids[places] = np.array(self._sampler(rows[places[0]].request.params)(taken))
        return [int(one) for one in ids]

    def _processed(self, row: Row[None], logits: Any) -> Any:
        """Apply the processors that mlx-lm makes for a request."""
        asked = row.request.params
        processors = self._utils.make_logits_processors(
            repetition_penalty=None if asked.repetition_penalty == 1 else asked.repetition_penalty,
            presence_penalty=asked.presence_penalty or None,
            frequency_penalty=asked.frequency_penalty or None,
        )
        for processor in processors:
            logits = processor(row.history, logits)
        return logits

    def _sampler(self, asked: SamplingParams) -> Callable[[Any], Any]:
        sampler: Callable[[Any], Any] = self._utils.make_sampler(
            temp=asked.temperature, top_p=asked.top_p, min_p=asked.min_p, top_k=max(asked.top_k, 0)
        )
        return sampler

    def _check(self) -> None:
        """Answer questions whose answers are known."""
        import torch

        logits = torch.tensor([[1.0, 4.0, 3.9, 0.0]])
        known = (
            (SamplingParams(temperature=0.0), 1),
            (SamplingParams(temperature=0.0, repetition_penalty=2.0), 2),
            (SamplingParams(temperature=0.0, presence_penalty=1.0), 2),
            (SamplingParams(top_k=1), 1),
        )
        for params, right in known:
            session = self.open(4, 1)
            session.add(0, Request(params, output=(1,)))
            given = int(session.sample([0], logits).sampled_token_ids[0, 0])
            if given != right:
                raise RuntimeError(f"mlx-lm: {params!r} gave id {given}, {right} is right")


def backend() -> MlxLm:
    """Return the engine; a factory, because mlx-lm is optional."""
    return MlxLm()
