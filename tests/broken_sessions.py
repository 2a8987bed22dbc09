"""Wrong samplers and engines with one mistake each in state or records."""

from copy import copy
from dataclasses import replace

import torch

from refsampler.backends.protocol import Feature
from refsampler.backends.reference import ReferenceSession
from refsampler.conformance.faults.right import RightEngine, RightSampler
from refsampler.processors import LogitsProcessor, MinTokens
from refsampler.request import PLACEHOLDER


def _later(one: LogitsProcessor) -> LogitsProcessor:
    """The same processor, whose stop ids stay banned for one id more."""
    if not isinstance(one, MinTokens):
        return one
    late = copy(one)
    late._minimum = {
        row: replace(minimum, min_tokens=minimum.min_tokens + 1)
        for row, minimum in one._minimum.items()
    }
    return late


class PenaltyOfTheRowAbove(RightSampler):
    """Each row is penalised for what the row above put out."""

    def changed(self, metadata):
        outputs = list(metadata.output_token_ids)
        if metadata.no_penalties or metadata.bad_words_token_ids:
            return metadata
        return replace(metadata, output_token_ids=[outputs[-1], *outputs[:-1]])


class PlaceholderIsTheLastId(RightSampler):
    """A placeholder indexes from the end, so that it counts as id V - 1."""

    def sample(self, logits, metadata, *, logprobs_mode=None):
        last = logits.shape[-1] - 1
        if not metadata.no_penalties:
            outputs = [
                [last if token == PLACEHOLDER else token for token in one]
                for one in metadata.output_token_ids
            ]
            metadata = replace(metadata, output_token_ids=outputs)
        return super().sample(logits, metadata, logprobs_mode=logprobs_mode)


class OneTokenLate(RightSampler):
    """Bans stop ids for one id more than min_tokens says."""

    def changed(self, metadata):
        processors = metadata.logitsprocs.non_argmax_invariant
        return replace(
            metadata,
            logitsprocs=replace(
                metadata.logitsprocs,
                non_argmax_invariant=tuple(_later(one) for one in processors),
            ),
        )


class BothFlags(RightSampler):
    """Takes a batch that claims to be all greedy and all random for all random."""

    def changed(self, metadata):
        both = metadata.all_greedy and metadata.all_random
        if not both:
            return metadata
        rows = len(metadata.steps)
        temperature = torch.ones(rows) if metadata.temperature is None else metadata.temperature
        return replace(metadata, all_greedy=False, temperature=temperature)


class MaskBroadcast(RightSampler):
    """Repeats the last column of a mask that is too narrow, and cuts one that is too wide."""

    def sample(self, logits, metadata, *, logprobs_mode=None):
        mask = metadata.allowed_token_ids_mask
        if mask is not None and len(logits):
            fill = mask[:, -1:].expand(-1, max(0, logits.shape[1] - mask.shape[1]))
            fitted = torch.cat([mask, torch.zeros_like(fill)], dim=1)[:, : logits.shape[1]]
            metadata = replace(metadata, allowed_token_ids_mask=fitted)
        return super().sample(logits, metadata, logprobs_mode=logprobs_mode)


class StrictRank(RightSampler):
    """Counts the entries above the sampled one, so that ties do not push its rank down."""

    def sample(self, logits, metadata, *, logprobs_mode=None):
        full = replace(metadata, max_num_logprobs=logits.shape[-1], logprob_token_ids=None)
        output = super().sample(logits, metadata, logprobs_mode=logprobs_mode)
        tensors = output.logprobs_tensors
        if tensors is None or not tensors.selected_token_ranks.numel():
            return output
        if metadata.generators:
            # their noise is used up, the values are those of the ids drawn
            metadata = replace(metadata, generators={})
        values = self.reference.sample(
            logits, replace(full, generators={}), logprobs_mode=logprobs_mode
        ).logprobs_tensors
        assert values is not None
        above = (values.logprobs[:, 1:] > tensors.logprobs[:, :1]).sum(dim=-1)
        return replace(output, logprobs_tensors=replace(tensors, selected_token_ranks=above + 1))


class ListForEverybody(RightSampler):
    """One row's list takes everybody's top N away."""

    def changed(self, metadata):
        if metadata.logprob_token_ids:
            return replace(metadata, max_num_logprobs=None)
        return metadata


class NeighboursLogprobs(RightSampler):
    """Shows the values of the row above."""

    def shown(self, output):
        tensors = output.logprobs_tensors
        rolled = replace(tensors, logprobs=tensors.logprobs.roll(1, dims=0))
        return replace(output, logprobs_tensors=rolled)


class NanForEmptyRows(RightSampler):
    """A row without a law gets NaN for logprobs."""

    def shown(self, output):
        tensors = output.logprobs_tensors
        nan = torch.where(output.valid[:, None], tensors.logprobs, torch.nan)
        return replace(output, logprobs_tensors=replace(tensors, logprobs=nan))


class FilteredGreedyRows(RightSampler):
    """Greedy rows of a mixed batch pass through top-k before their processed values are shown."""

    def sample(self, logits, metadata, *, logprobs_mode=None):
        output = super().sample(logits, metadata, logprobs_mode=logprobs_mode)
        tensors = output.logprobs_tensors
        mixed = metadata.temperature is not None and metadata.top_k is not None
        processed = logprobs_mode is not None and logprobs_mode.startswith("processed")
        if tensors is None or not mixed or not processed or not tensors.valid.numel():
            return output
        greedy = (metadata.temperature == 0)[:, None]
        kth = torch.arange(tensors.logprobs.shape[1]) > metadata.top_k[:, None]
        cut = torch.where(greedy & kth, -torch.inf, tensors.logprobs)
        return replace(output, logprobs_tensors=replace(tensors, logprobs=cut))


class AskingReseeds(RightSampler):
    """Asking for logprobs uses up some noise of the seeded rows."""

    def changed(self, metadata):
        if metadata.max_num_logprobs is not None or metadata.logprob_token_ids:
            for generator in metadata.generators.values():
                torch.rand(3, generator=generator)
        return metadata


class PenaltiesDropped(RightSampler):
    """Declares no penalties and does not say so to those who ask."""

    capabilities = replace(
        RightSampler.capabilities,
        features=RightSampler.capabilities.features - {Feature.PENALTIES},
    )

    def changed(self, metadata):
        return replace(metadata, no_penalties=True)


class SeedsDroppedBesideLists(RightSampler):
    """With an allow-list in the batch no seed is minded."""

    def changed(self, metadata):
        if metadata.allowed_token_ids_mask is None:
            return metadata
        return replace(metadata, generators={})


class _NothingChecked(ReferenceSession):
    def add(self, id, request):  # noqa: A002 - the protocol's name
        vocab = self._batch.vocab_size
        params = request.params
        try:
            super().add(id, request)
        except (ValueError, TypeError):
            clean = replace(
                request,
                params=type(params)(temperature=0.0),
                prompt=tuple(token % vocab for token in request.prompt),
                output=tuple(token % vocab for token in request.output),
            )
            super().add(id, clean)


class NothingChecked(RightEngine):
    """Admits whatever comes, made harmless without a word."""

    session = _NothingChecked


class _RefusedStays(ReferenceSession):
    def add(self, id, request):  # noqa: A002 - the protocol's name
        try:
            super().add(id, request)
        except ValueError:
            super().add(id, replace(request, params=type(request.params)(), prompt=(), output=()))
            raise


class RefusedStays(RightEngine):
    """A refused request has its id already."""

    session = _RefusedStays


class _PrefixInThePrompt(ReferenceSession):
    def add(self, id, request):  # noqa: A002 - the protocol's name
        if request.params.bad_words_token_ids and not request.params.penalised:
            request = replace(request, prompt=(), output=(*request.prompt, *request.output))
        super().add(id, request)


class PrefixInThePrompt(RightEngine):
    """Looks for the beginnings of bad words in prompt and output."""

    session = _PrefixInThePrompt


class _Stale(ReferenceSession):
    """Takes what `mixed` says from the row where a request was before the last change of rows."""

    def __init__(self, vocab, seed):
        super().__init__(vocab, seed)
        self._places: dict[int, int] = {}
        self._last: tuple[int, ...] = ()

    def sample(self, ids, logits):
        ids = tuple(ids)
        if not self._last or set(ids) - set(self._last):
            self._last = ids
        commit = self._batch.commit
        old = [one for one in self._last if one in ids]

        def stale():
            metadata = commit()
            order = [ids.index(one) for one in old]
            if len(order) == len(ids):
                metadata = self.mixed(metadata, order)
            return metadata

        setattr(self._batch, "commit", stale)  # noqa: B010 - a method, replaced on purpose
        try:
            return super().sample(ids, logits)
        finally:
            del self._batch.commit

    def mixed(self, metadata, _order):
        return metadata


class _HistoryStays(_Stale):
    def mixed(self, metadata, order):
        if metadata.no_penalties:
            return metadata
        outputs = metadata.output_token_ids
        return replace(metadata, output_token_ids=[outputs[row] for row in order])


class HistoryStays(RightEngine):
    """When rows move the outputs stay where they were."""

    session = _HistoryStays


class _ParameterStays(_Stale):
    def mixed(self, metadata, order):
        if metadata.no_penalties:
            return metadata
        return replace(metadata, repetition_penalties=metadata.repetition_penalties[order])


class ParameterStays(RightEngine):
    """When rows are swapped the repetition penalties are not."""

    session = _ParameterStays


class _EmittedLate(ReferenceSession):
    def __init__(self, vocab, seed):
        super().__init__(vocab, seed)
        self._held: dict[int, list[int]] = {}

    def accept(self, ids, tokens):
        for name, gained in zip(ids, tokens, strict=True):
            queue = [*self._held.pop(name, []), *gained]
            if queue[:-1]:
                super().accept([name], [queue[:-1]])
            self._held[name] = queue[-1:]

    def remove(self, id):  # noqa: A002 - the protocol's name
        self._held.pop(id, None)
        super().remove(id)


class EmittedLate(RightEngine):
    """The id just emitted becomes history one step later."""

    session = _EmittedLate


class _ForgetsWaiting(ReferenceSession):
    def _schedule(self, ids):
        super()._schedule(ids)
        self._waiting = {
            name: replace(one, request=replace(one.request, output=()))
            for name, one in self._waiting.items()
        }


class ForgetsWaiting(RightEngine):
    """A request that waits forgets its output."""

    session = _ForgetsWaiting


class _RecordsLate(ReferenceSession):
    def __init__(self, vocab, seed):
        super().__init__(vocab, seed)
        self._record = None

    def sample(self, ids, logits):
        output = super().sample(ids, logits)
        before, self._record = self._record, output.logprobs_tensors
        now = output.logprobs_tensors
        if before is None or now is None or before.logprobs.shape != now.logprobs.shape:
            return output
        late = replace(now, logprobs=before.logprobs)
        return replace(output, logprobs_tensors=late)


class RecordsLate(RightEngine):
    """Shows the values of the step before."""

    session = _RecordsLate
