"""lmdeploy's PyTorch engine: its host-side packing of a batch and its fused logits processor.

Level 1, all steps folded: `ARSamplingStrategy` makes the tensors, `FusedLogitsProcessor` divides by
the temperature, sorts, filters and draws with the kernel of devices that are no GPU, which ignores
seeds.  A greedy row is one with k = 1 and T = 1, as the layer above makes it.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from importlib.metadata import version
from types import ModuleType, SimpleNamespace

import numpy as np
import torch
from jaxtyping import Float32
from torch import Tensor

from refsampler.backends.engines.knobs import Knobs, each_row
from refsampler.backends.engines.stubs import hollow, stub
from refsampler.backends.protocol import Capabilities, Fold, Rows
from refsampler.semantics import Scope, profile

__all__ = ["LmdeployKernel", "backend"]


class LmdeployKernel:
    """Level 1: what an lmdeploy step does with a batch of sequences.

    Raises:
        ModuleNotFoundError: lmdeploy is not installed.
        RuntimeError: it answers known questions otherwise than it should.

    """

    def __init__(self) -> None:
        self._process, self._strategy = _modules()
        # Around a kernel the pipeline masks and penalises, as it always does.
        semantics = replace(
            profile("lmdeploy"),
            order=profile("transformers").order,
            repetition_scope=Scope.PROMPT_OUTPUT,
        )
        self.capabilities = Capabilities(
            name="lmdeploy",
            version=f"{version('lmdeploy')}, PyTorch engine",
            level=1,
            semantics=semantics,
            folds=frozenset(Fold),
        )
        self._check()

    def draw(self, logits: Float32[Tensor, "B V"], rows: Rows) -> Tensor:
        """Return int64 ids; the input stays as it is."""
        vocab = logits.shape[1]
        each = each_row(rows, *logits.shape)
        # read only: rows of equal parameters share one
        asked = {knobs: _sequence(_as_written(knobs, vocab)) for knobs in {*each}}
        sequences = [asked[knobs] for knobs in each]
        inputs = self._strategy.ARSamplingStrategy(0).make_sampling_inputs(sequences)
        processor = self._process.FusedLogitsProcessor(inputs.to_device("cpu"))
        scores, _ = asyncio.run(processor(logits.clone()))
        ids: Tensor = processor.sampling(scores).reshape(-1)
        return ids.clone()

    def _check(self) -> None:
        nothing = torch.zeros(3, dtype=torch.int64)
        rows = Rows(
            top_k=torch.tensor([1, 4, 4], dtype=torch.int32),
            top_p=torch.tensor([1.0, 0.5, 1.0]),
            temperature=torch.tensor([1.0, 1.0, 0.0]),
            min_p=None,
            seed=nothing,
            step=nothing,
            seeded=nothing.bool(),
            generators={},
        )
        given = self.draw(torch.tensor([[0.0, 3.0, 9.0, 1.0]]).expand(3, -1), rows).tolist()
        if given != [2, 2, 2]:
            raise RuntimeError(f"lmdeploy: ids {given}, [2, 2, 2] are right")


def _as_written(knobs: Knobs, vocab: int) -> Knobs:
    """Return the parameters of a row as the layer above the engine writes them."""
    if knobs.greedy:
        return knobs._replace(temperature=1.0, top_k=1)
    return knobs._replace(top_k=knobs.top_k % vocab if vocab > 1 else 1)


def _sequence(knobs: Knobs) -> SimpleNamespace:
    """Return what the strategy reads of a sequence."""
    asked = SimpleNamespace(
        **knobs._asdict(),
        repetition_penalty=1.0,
        response_format=None,
        random_seed=None,
        bad_words=[],
        stop_words=[],
        ignore_eos=False,
        min_new_tokens=0,
        logits_processors=None,
        num_logprobs=-1,
        repetition_ngram_size=0,
        repetition_ngram_threshold=0,
    )
    nothing = np.empty(0, np.int64)
    return SimpleNamespace(
        sampling_param=asked,
        num_valid_ids=0,
        num_new_tokens=0,
        generated_ids=nothing,
        valid_ids=nothing,
        session=SimpleNamespace(session_id=0),
        seq_id=0,
    )


def _modules() -> tuple[ModuleType, ModuleType]:
    """Import the two modules; the packages above them want a GPU."""
    hollow("lmdeploy", "lmdeploy", "lmdeploy.pytorch", "lmdeploy.pytorch.engine")
    stub("PIL", "psutil", "pybase64", "requests", "urllib3", "xgrammar")
    import lmdeploy.pytorch.engine.logits_process as process
    import lmdeploy.pytorch.strategies.ar.sampling as strategy
    from lmdeploy.pytorch.kernels.default.multinomial_sampling import multinomial_sampling

    process._multinomial_sampling = multinomial_sampling  # noqa: SLF001 - the engine's dispatch, by device
    return process, strategy


def backend() -> LmdeployKernel:
    """Return the kernel; a factory, because lmdeploy is optional."""
    return LmdeployKernel()
