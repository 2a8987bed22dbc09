"""vLLM 0.25.1's own V1 Sampler on the CPU, behind its own input batch; no model, no scheduler.

Its `InputBatch` makes the metadata as a step of its runner does, its logits processors and its
`Sampler` do the rest, as they ship: the race is in float32.  The batch is made anew when rows, order or
histories have changed.  Admission and the scheduler are not here, hence `credit` 2.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from refsampler.backends.protocol import Capabilities, DType, Feature
from refsampler.logprobs import LogprobsTensors
from refsampler.params import SamplingParams
from refsampler.request import Request
from refsampler.sampler import SamplerOutput

__all__ = ["Vllm", "VllmSession", "backend"]

_FEATURES = frozenset({Feature.SEED, Feature.PENALTIES, Feature.MASKS, Feature.LOGPROBS})


class Vllm:
    """Level 3, credited with a sampler.

    Raises:
        ModuleNotFoundError: vLLM is not installed.
        RuntimeError: it answers known questions otherwise than it should.

    """

    def __init__(self) -> None:
        try:
            found = version("vllm")
        except PackageNotFoundError as error:
            raise ModuleNotFoundError("vllm is not installed: make engine vllm") from error
        from vllm.v1.sample.sampler import Sampler

        self._sampler = Sampler()
        self.capabilities = Capabilities(
            name="vllm",
            version=f"{found}, V1 Sampler",
            level=3,
            credit=2,
            dtypes=frozenset(DType),
            features=_FEATURES,
        )
        self._check()

    def open(self, vocab: int, seed: int) -> VllmSession:
        """Start a session over V = `vocab` ids, and seed torch's default generator."""
        torch.manual_seed(seed)
        return VllmSession(self._sampler, vocab)

    def _check(self) -> None:
        session = self.open(4, 1)
        asked = (
            SamplingParams(temperature=0.0),
            SamplingParams(temperature=0.0, repetition_penalty=2.0),
            SamplingParams(top_k=1),
        )
        for name, params in enumerate(asked):
            session.add(name, Request(params, output=(1,)))
        logits = torch.tensor([[1.0, 4.0, 3.9, 0.0]]).repeat(3, 1)
        given = session.sample([0, 1, 2], logits).sampled_token_ids.flatten().tolist()
        if given != [1, 2, 1]:
            raise RuntimeError(f"vllm: ids {given}, [1, 2, 1] are right")


class VllmSession:
    """Requests as vLLM's runner keeps them, and the batch of the last step."""

    def __init__(self, sampler: Any, vocab: int) -> None:
        self._sampler, self._vocab = sampler, vocab
        self._states: dict[int, Any] = {}
        self._metadata: tuple[tuple[int, ...], Any] | None = None

    def add(self, id: int, request: Request) -> None:  # noqa: A002 - the protocol's name
        """Keep a request."""
        if id in self._states:
            raise ValueError(f"id = {id} is refused: allowed is an id that is not running")
        request.verify(self._vocab)
        self._states[id] = _state(str(id), request)
        self._metadata = None

    def remove(self, id: int) -> None:  # noqa: A002 - the protocol's name
        """Forget a request."""
        del self._states[id]
        self._metadata = None

    def sample(self, ids: Sequence[int], logits: Tensor) -> SamplerOutput:
        """Sample one id for each of `ids`."""
        if not ids:
            nothing = torch.empty((0, 1), dtype=torch.int32)
            return SamplerOutput(nothing, None, torch.empty(0, dtype=torch.bool))
        if self._metadata is None or self._metadata[0] != tuple(ids):
            self._metadata = tuple(ids), self._batch(ids)
        output = self._sampler(logits.clone(), self._metadata[1])
        asked = [self._states[one].sampling_params.num_logprobs for one in ids]
        logprobs = _logprobs(output.logprobs_tensors, asked)
        return SamplerOutput(output.sampled_token_ids, logprobs, torch.ones(len(ids)).bool())

    def accept(self, ids: Sequence[int], tokens: Sequence[Sequence[int]]) -> None:
        """Append tokens to the requests' outputs."""
        for one, accepted in zip(ids, tokens, strict=True):
            state = self._states[one]
            state.output_token_ids.extend(accepted)
            state.num_computed_tokens += len(accepted)
        self._metadata = None

    def close(self) -> None:
        """Forget everything."""
        self._states, self._metadata = {}, None

    def _batch(self, ids: Sequence[int]) -> Any:
        """Return the metadata that vLLM's input batch makes of some requests."""
        from vllm.v1.sample.logits_processor import build_logitsprocs
        from vllm.v1.worker.gpu_input_batch import InputBatch

        device = torch.device("cpu")
        states = [self._states[one] for one in ids]
        longest = max(len(one.prompt_token_ids) + len(one.output_token_ids) for one in states) + 1
        config = SimpleNamespace(
            scheduler_config=SimpleNamespace(max_num_seqs=len(ids)), speculative_config=None
        )
        batch = InputBatch(
            max_num_reqs=len(ids),
            max_model_len=longest,
            max_num_batched_tokens=longest,
            device=device,
            vocab_size=self._vocab,
            block_sizes=[16],
            kernel_block_sizes=[16],
            logitsprocs=build_logitsprocs(config, device, False, False),
        )
        for state in states:
            batch.add_request(state)
        batch.refresh_metadata()
        return batch.sampling_metadata


def _state(name: str, request: Request) -> Any:
    from vllm.v1.worker.gpu_input_batch import CachedRequestState

    seed = request.params.seed
    return CachedRequestState(
        req_id=name,
        prompt_token_ids=list(request.prompt),
        mm_features=[],
        sampling_params=_params(request.params),
        generator=None if seed is None else torch.Generator().manual_seed(seed),
        block_ids=([],),
        num_computed_tokens=len(request.prompt) + len(request.output),
        output_token_ids=list(request.output),
    )


def _params(asked: SamplingParams) -> Any:
    """Return vLLM's own parameters, completed as its frontend does after tokenising."""
    import vllm

    same = (
        "presence_penalty",
        "frequency_penalty",
        "repetition_penalty",
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "seed",
        "max_tokens",
        "min_tokens",
        "logprobs",
    )
    params = vllm.SamplingParams(
        **{name: getattr(asked, name) for name in same},
        stop_token_ids=list(asked.stop_token_ids),
        allowed_token_ids=_listed(asked.allowed_token_ids),
        logit_bias=dict(asked.logit_bias) or None,
        logprob_token_ids=_listed(asked.logprob_token_ids),
    )
    # What reached the sampler is what is tested: vLLM's floor is below its frontend.
    params.temperature = asked.temperature
    params.update_from_generation_config({}, asked.eos_token_id)
    if asked.bad_words_token_ids:
        params._bad_words_token_ids = [list(word) for word in asked.bad_words_token_ids]  # noqa: SLF001 - its tokenizer's place
    return params


def _listed(ids: Sequence[int] | None) -> list[int] | None:
    return None if ids is None else list(ids)


def _logprobs(given: Any, asked: Sequence[int | None]) -> LogprobsTensors | None:
    """Return logprobs with a flag for the columns that vLLM's frontend reads of each row.

    The sampler has no such flag: it gives all rows the width of the widest one, and the frontend stops
    at what the request asked for.
    """
    if given is None:
        return None
    width = given.logprobs.shape[1]
    read = torch.tensor([width if one == -1 else 1 + (one or 0) for one in asked])
    return LogprobsTensors(
        given.logprob_token_ids,
        given.logprobs,
        given.selected_token_ranks,
        torch.arange(width) < read[:, None],
    )


def backend() -> Vllm:
    """Return the engine; a factory, because vLLM is optional."""
    return Vllm()
