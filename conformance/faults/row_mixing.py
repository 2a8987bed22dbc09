"""Row mixing: state that stays behind when rows move, and rows that see each other.

Static batches whose rows share all parameters pass on these; unlike rows that come, move and leave
do not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Float32, Int64
from torch import Tensor

from refsampler.backends.protocol import Rows
from refsampler.batch import PersistentBatch
from refsampler.batch_update import BatchUpdate, fresh_batch
from refsampler.conformance.faults.base import Kind, Shelf
from refsampler.conformance.faults.right import RightEngine, RightKernel, RightSampler
from refsampler.conformance.faults.right_session import RightSession
from refsampler.metadata import SamplingMetadata
from refsampler.params import SamplingParams
from refsampler.processors import EngineConfig, LogitBias, MinP, MinTokens
from refsampler.request import Request
from refsampler.sampler import SamplerOutput
from refsampler.truncation import keep, keep_top_p

__all__ = ["FAULTS"]

FAULTS = Shelf(Kind.ROW_MIXING)


class _FlatIndex(RightSession):
    def __init__(self, vocab: int, seed: int) -> None:
        super().__init__(vocab, seed)
        self._beyond: dict[int, tuple[int, ...]] = {}
        self._left: dict[int, int] = {}

    def add(self, id: int, request: Request) -> None:  # noqa: A002 - the protocol's name
        vocab, params = self._batch.vocab_size, request.params
        inside = tuple(token for token in params.stop_token_ids if 0 <= token < vocab)
        super().add(id, replace(request, params=replace(params, stop_token_ids=inside)))
        self._beyond[id] = tuple({*params.stop_token_ids} - {*inside})
        self._left[id] = params.min_tokens - len(request.output)

    def accept(self, ids: Sequence[int], tokens: Sequence[Sequence[int]]) -> None:
        super().accept(ids, tokens)
        for name, gained in zip(ids, tokens, strict=True):
            self._left[name] -= len(gained)

    def sample(self, ids: Sequence[int], logits: Tensor) -> SamplerOutput:
        flat = [
            row * logits.shape[1] + token
            for row, name in enumerate(ids)
            if self._left[name] > 0
            for token in self._beyond[name]
        ]
        hit = [place for place in flat if 0 <= place < logits.numel()]
        masked = logits.reshape(-1).index_fill(0, torch.tensor(hit, dtype=torch.int64), -torch.inf)
        return super().sample(ids, masked.reshape(logits.shape))


@FAULTS.fault("B001", "vLLM", "vllm-project/vllm#54195", "input.validated", "batch.isolation")
class _StopIdInTheNextRow(RightEngine):
    """A stop id beyond the vocabulary is admitted, and bans an id of the next row."""

    session = _FlatIndex


class _CountedMinP(MinP):
    """Counts the rows that have a min-p; a request that replaces another one changes no count."""

    def __init__(self, config: EngineConfig, device: torch.device, pin_memory: bool) -> None:
        super().__init__(config, device, pin_memory)
        self._count, self._size = 0, 0

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        if batch_update is None:
            return
        gone = {row for row in batch_update.removed if row in self._by_row}
        new = [one for one in batch_update.added if one.row >= self._size]
        self._count += sum(one.params.min_p > 0 for one in new) - len(gone)
        self._size = batch_update.batch_size
        super().update_state(batch_update)
        if self._count <= 0:
            self.min_p = None


class _CountingBatch(PersistentBatch):
    def __init__(self, vocab_size: int, *, max_num_reqs: int = 1024) -> None:
        super().__init__(vocab_size, max_num_reqs=max_num_reqs)
        counted = _CountedMinP(EngineConfig(vocab_size, max_num_reqs), self.device, False)
        self._processors = replace(self._processors, argmax_invariant=(counted,))


class _ReplacedUncounted(RightSession):
    batch = _CountingBatch


@FAULTS.fault("B011", "vLLM V1", "vllm-project/vllm#23401", "batch.state")
class _MinPCount(RightEngine):
    """Min-p is skipped while its count is 0, and a request that takes another's row is not counted."""

    session = _ReplacedUncounted


@FAULTS.fault("B037", "mlx-vlm", "Blaizzy/mlx-vlm#1094", "batch.isolation")
class _FirstRowsOrder(RightKernel):
    """With top-p the ranks of every row are mapped back to ids by the order of the first row."""

    def filtered(self, x: Float32[Tensor, "B V"], rows: Rows) -> Float32[Tensor, "B V"]:
        x = super().filtered(x, replace(rows, top_p=None))
        if rows.top_p is None:
            return x
        ranked, order = x.sort(dim=-1, descending=True, stable=True)
        kept = keep(ranked, keep_top_p(ranked, rows.top_p))
        return torch.empty_like(x).scatter(-1, order[:1].expand_as(order), kept)


@FAULTS.fault("B062", "vLLM V1 + LoRA", "vllm-project/vllm#15978", "mask.width")
class _BaseVocabulary(RightSampler):
    """A mask as wide as the base vocabulary says nothing about the ids that an adapter added."""

    def changed(self, metadata: SamplingMetadata) -> SamplingMetadata:
        mask, vocab = metadata.allowed_token_ids_mask, metadata.vocab_size
        if mask is None:
            return metadata
        beyond = mask.new_zeros(len(mask), max(0, vocab - mask.shape[1]))
        fitted = torch.cat([mask[:, :vocab], beyond], dim=1)
        return replace(metadata, allowed_token_ids_mask=fitted)


class _SeedsBySlot(RightSession):
    """Seeds are written by place in the admission, and read by the slot that was given."""

    def __init__(self, vocab: int, seed: int) -> None:
        super().__init__(vocab, seed)
        self._seeds: dict[int, int] = {}
        self._admitted = 0

    def add(self, id: int, request: Request) -> None:  # noqa: A002 - the protocol's name
        rows, params = self._batch.rows, replace(request.params)
        slot = rows.index(None) if None in rows else len(rows)
        if params.seed is not None:
            self._seeds[self._admitted] = params.seed
            read = replace(params, seed=self._seeds.get(slot, 0))
            request = replace(request, params=read)
        self._admitted += 1
        super().add(id, request)

    def sample(self, ids: Sequence[int], logits: Tensor) -> SamplerOutput:
        self._admitted = 0
        return super().sample(ids, logits)


@FAULTS.fault("B070", "TensorRT-LLM", "NVIDIA/TensorRT-LLM#1742", "batch.state")
class _AnotherOnesSeed(RightEngine):
    """A request is seeded by what its slot holds in a table that is filled in order of arrival."""

    session = _SeedsBySlot


@FAULTS.fault("B079", "vllm-gaudi", "vllm-project/vllm-gaudi#1199", "mask.allowed")
class _ZerosForbid(RightSampler):
    """Beside a constrained row the mask of a row without constraint forbids everything."""

    def changed(self, metadata: SamplingMetadata) -> SamplingMetadata:
        mask = metadata.allowed_token_ids_mask
        if mask is None:
            return metadata
        free = ~mask.any(dim=1, keepdim=True)
        return replace(metadata, allowed_token_ids_mask=mask | free)


@FAULTS.fault("B080", "vMLX", "jjang-ai/vmlx#234", "batch.isolation")
class _OneSampler(RightKernel):
    """The whole batch is sampled with the first request's temperature and top-p."""

    def draw(self, logits: Float[Tensor, "B V"], rows: Rows) -> Int64[Tensor, " B"]:
        assert rows.temperature is not None
        first = rows.temperature[:1].expand_as(rows.temperature)
        top_p = None if rows.top_p is None else rows.top_p[:1].expand_as(rows.top_p)
        return super().draw(logits, replace(rows, temperature=first, top_p=top_p))


_Biases = tuple[tuple[int, float], ...]


class _Unpruned(RightSession):
    """Keeps a list of processors beside the list of requests, one entry each."""

    def __init__(self, vocab: int, seed: int) -> None:
        super().__init__(vocab, seed)
        self._asked: dict[int, _Biases] = {}
        self._order: list[int] = []
        self._entries: list[_Biases] = []

    def add(self, id: int, request: Request) -> None:  # noqa: A002 - the protocol's name
        super().add(id, request)
        self._asked[id] = request.params.logit_bias

    def _schedule(self, ids: Sequence[int]) -> None:
        super()._schedule(ids)
        kept = [place for place, name in enumerate(self._order) if name in ids]
        if len(kept) < len(self._order):
            if any(self._entries):
                self._entries = [self._entries[place] for place in kept]
            self._order = [self._order[place] for place in kept]
        new = [name for name in ids if name not in self._order]
        self._entries += [self._asked[name] for name in new]
        self._order += new

    def changed(self, metadata: SamplingMetadata) -> SamplingMetadata:
        entries = dict(zip(self._order, self._entries, strict=False))
        rows = [name for name in self._batch.rows if name is not None]
        params = [SamplingParams(logit_bias=entries[name]) for name in rows]
        bias = LogitBias(EngineConfig(metadata.vocab_size, len(rows)), self._batch.device, False)
        bias.update_state(fresh_batch([Request(one) for one in params]))
        before = metadata.logitsprocs
        after = tuple(
            bias if isinstance(one, LogitBias) else one for one in before.non_argmax_invariant
        )
        return replace(metadata, logitsprocs=replace(before, non_argmax_invariant=after))


@FAULTS.fault("B107", "mlx-lm", "ml-explore/mlx-lm#1225", "batch.state")
class _ListNotPruned(RightEngine):
    """The list of processors is not pruned while all are empty, so that later ones miss their row."""

    session = _Unpruned


class _StaleMasks(PersistentBatch):
    """Keeps an allow-list for each row; a row that was moved away keeps it too."""

    def __init__(self, vocab_size: int, *, max_num_reqs: int = 1024) -> None:
        super().__init__(vocab_size, max_num_reqs=max_num_reqs)
        self._lists: dict[int, tuple[int, ...]] = {}

    def _admit(
        self, request_id: int, request: Request, generator: torch.Generator | None, steps: int
    ) -> int:
        row = super()._admit(request_id, request, generator, steps)
        if request.params.allowed_token_ids is not None:
            self._lists[row] = request.params.allowed_token_ids
        return row

    def remove(self, request_id: int) -> None:
        self._lists.pop(self.rows.index(request_id), None)
        super().remove(request_id)

    def condense(self) -> None:
        before, lists = self.rows, dict(self._lists)
        super().condense()
        for row, name in enumerate(self.rows):
            source = before.index(name)
            if source != row:
                self._lists.pop(row, None)
                self._lists |= {row: lists[source]} if source in lists else {}

    def swap(self, i: int, j: int) -> None:
        super().swap(i, j)
        places = {i: j, j: i}
        self._lists = {places.get(row, row): one for row, one in self._lists.items()}

    def commit(self) -> SamplingMetadata:
        metadata = super().commit()
        mask = metadata.allowed_token_ids_mask
        if mask is None:
            return metadata
        ids = torch.arange(metadata.vocab_size)
        free = torch.zeros(metadata.vocab_size, dtype=torch.bool)
        rows = [
            ~torch.isin(ids, torch.tensor(self._lists[row])) if row in self._lists else free
            for row in range(len(mask))
        ]
        return replace(metadata, allowed_token_ids_mask=torch.stack(rows))


class _NotCleared(RightSession):
    batch = _StaleMasks


@FAULTS.fault("B122", "vLLM V1", "vllm-project/vllm#43894", "batch.state")
class _MaskOfTheOneBefore(RightEngine):
    """A row vacated by compaction keeps its allow-list, and the next request there inherits it."""

    session = _NotCleared


@FAULTS.fault("B179", "aprender", "paiml/aprender#2025", "batch.size")
class _BatchedArgmax(RightKernel):
    """A call of more than one row takes the argmax, whatever the rows ask."""

    def draw(self, logits: Float[Tensor, "B V"], rows: Rows) -> Int64[Tensor, " B"]:
        if len(logits) > 1:
            return self.argmax(logits.float())
        return super().draw(logits, rows)


@dataclass(slots=True)
class _Shared:
    """What the requests of one call have in common."""

    tokens: int = 0


class _SharedMinTokens(RightSession):
    """Requests of equal parameters that are admitted together share a counter of tokens."""

    def __init__(self, vocab: int, seed: int) -> None:
        super().__init__(vocab, seed)
        self._call: dict[SamplingParams, _Shared] = {}
        self._counters: dict[int, _Shared] = {}
        self._had: dict[int, int] = {}
        self._asked: dict[int, SamplingParams] = {}

    def add(self, id: int, request: Request) -> None:  # noqa: A002 - the protocol's name
        super().add(id, request)
        self._asked[id], self._had[id] = request.params, len(request.output)
        self._counters[id] = self._call.setdefault(request.params, _Shared())

    def accept(self, ids: Sequence[int], tokens: Sequence[Sequence[int]]) -> None:
        super().accept(ids, tokens)
        for name, gained in zip(ids, tokens, strict=True):
            self._counters[name].tokens += len(gained)

    def sample(self, ids: Sequence[int], logits: Tensor) -> SamplerOutput:
        self._call = {}
        return super().sample(ids, logits)

    def changed(self, metadata: SamplingMetadata) -> SamplingMetadata:
        rows = [name for name in self._batch.rows if name is not None]
        lengths = [self._had[name] + self._counters[name].tokens for name in rows]
        requests = [
            Request(self._asked[name], output=(0,) * length)
            for name, length in zip(rows, lengths, strict=True)
        ]
        minimum = MinTokens(EngineConfig(metadata.vocab_size, len(rows)), self._batch.device, False)
        minimum.update_state(fresh_batch(requests))
        before = metadata.logitsprocs
        after = tuple(
            minimum if isinstance(one, MinTokens) else one for one in before.non_argmax_invariant
        )
        return replace(metadata, logitsprocs=replace(before, non_argmax_invariant=after))


@FAULTS.fault("B191", "vLLM V0", "vllm-project/vllm#5329", "batch.state")
class _OneProcessorForAll(RightEngine):
    """The requests of one call share a processor that keeps state, so that each advances the others."""

    session = _SharedMinTokens
