"""A right sampler, and small wrong kernels and samplers, each with one mistake."""

from dataclasses import replace

import torch
from torch import Tensor

from refsampler.backends.protocol import Capabilities, DType, Feature
from refsampler.conformance.faults.right import RightKernel
from refsampler.metadata import SamplingMetadata
from refsampler.sampler import Sampler, SamplerOutput
from refsampler.truncation import keep


class OneMore(RightKernel):
    """Keeps k + 1 ids."""

    def filtered(self, x, rows):
        if rows.top_k is not None:
            rows = replace(rows, top_k=(rows.top_k + 1).clamp(max=x.shape[-1]))
        return super().filtered(x, rows)


class TiesCut(RightKernel):
    """Keeps exactly k ids although it declares that ties stay."""

    def filtered(self, x, rows):
        x = super().filtered(x, replace(rows, top_p=None))
        if rows.top_k is not None:
            rank = x.sort(dim=-1, descending=True, stable=True).indices.argsort(dim=-1)
            x = torch.where(rank < rows.top_k[:, None], x, -torch.inf)
        return super().filtered(x, replace(rows, min_p=None, top_k=None))


class CrossingDropped(RightKernel):
    """Top-p leaves out the id that crosses p."""

    def filtered(self, x, rows):
        x = super().filtered(x, replace(rows, top_p=None))
        if rows.top_p is None:
            return x
        ranked, order = x.double().sort(dim=-1, descending=True, stable=True)
        up_to = torch.softmax(ranked, dim=-1).cumsum(dim=-1)
        kept = (up_to <= rows.top_p.double()[:, None]) | (rows.top_p[:, None] >= 1)
        kept[:, 0] = True
        return keep(x, torch.zeros_like(kept).scatter(-1, order, kept))


class MassFirst(RightKernel):
    """Top-p acts before top-k."""

    def filtered(self, x, rows):
        x = super().filtered(x, replace(rows, top_k=None))
        return super().filtered(x, replace(rows, top_p=None, min_p=None))


class NoTemperature(RightKernel):
    """Never divides."""

    def scaled(self, x, rows, greedy):
        return super().scaled(x, rows, torch.ones_like(greedy))


class Warmer(RightKernel):
    """Temperature 5 % too high."""

    def scaled(self, x, rows, greedy):
        return super().scaled(x, rows, greedy) / 1.05


class PastTheEnd(RightKernel):
    """Greedy rows give id V."""

    def argmax(self, x):
        return torch.full((len(x),), x.shape[-1])


class NeighboursFilters(RightKernel):
    """Each row is filtered as the row above asks."""

    def filtered(self, x, rows):
        fields = ("top_k", "top_p", "min_p")
        rolled = {
            name: None if getattr(rows, name) is None else getattr(rows, name).roll(1)
            for name in fields
        }
        return super().filtered(x, replace(rows, **rolled))


class SeedIgnored(RightKernel):
    """Draws every row from the default generator."""

    def draw(self, logits, rows):
        return super().draw(logits, replace(rows, generators={}))


class OneSeed(RightKernel):
    """Gives every seeded row the noise of seed 1."""

    def draw(self, logits, rows):
        same = {row: torch.Generator().manual_seed(1) for row in rows.generators}
        return super().draw(logits, replace(rows, generators=same))


class LastTie(RightKernel):
    """Among equal maxima takes the highest id."""

    def argmax(self, x):
        return x.shape[-1] - 1 - x.flip(-1).argmax(dim=-1)


class LastIdDropped(RightKernel):
    """Never draws id V - 1 if there is another one."""

    def filtered(self, x, rows):
        if x.shape[-1] > 1:
            x = x.clone()
            x[:, -1] = -torch.inf
        return super().filtered(x, rows)


class InputMutated(RightKernel):
    """Writes into the logits that it got."""

    def draw(self, logits, rows):
        ids = super().draw(logits, rows)
        logits.add_(1)
        return ids


class ColumnOfIds(RightKernel):
    """Returns int64 [B, 1]."""

    def draw(self, logits, rows):
        return super().draw(logits, rows)[:, None]


class Crashing(RightKernel):
    """Raises if the batch has more than 8 rows."""

    def draw(self, logits, rows):
        if len(logits) > 8:
            raise RuntimeError("illegal memory access")
        return super().draw(logits, rows)


class NanSpreads(RightKernel):
    """One NaN spoils every row."""

    def filtered(self, x, rows):
        return super().filtered(x * torch.nan if x.isnan().any() else x, rows)


class AbsoluteMinP(RightKernel):
    """Compares probabilities with min_p itself."""

    def filtered(self, x, rows):
        if rows.min_p is not None:
            probs = torch.softmax(x.double(), dim=-1)
            kept = (probs >= rows.min_p[:, None]) | (x == x.amax(-1, keepdim=True))
            x = keep(x, kept)
        return super().filtered(x, replace(rows, min_p=None))


class RightSampler:
    """The reference as a level-2 backend."""

    capabilities = Capabilities(
        "right sampler",
        "1",
        2,
        dtypes=frozenset(DType),
        features=frozenset(
            {
                Feature.SEED,
                Feature.BITWISE,
                Feature.PENALTIES,
                Feature.MASKS,
                Feature.LOGPROBS,
                Feature.THINKING,
            }
        ),
    )

    def sample(self, logits: Tensor, metadata: SamplingMetadata) -> SamplerOutput:
        return Sampler()(logits, self.changed(metadata))

    def changed(self, metadata: SamplingMetadata) -> SamplingMetadata:
        return metadata


class AllowListIgnored(RightSampler):
    def changed(self, metadata):
        return replace(metadata, allowed_token_ids_mask=None)


class PromptCounts(RightSampler):
    """Frequency and presence penalties see the prompt."""

    def changed(self, metadata):
        if metadata.prompt_token_ids is None:
            return metadata
        prompts = metadata.prompt_token_ids.tolist()
        outputs = metadata.output_token_ids
        both = [(*prompt, *output) for prompt, output in zip(prompts, outputs, strict=True)]
        return replace(metadata, output_token_ids=both)


class PenaltyFlipped(RightSampler):
    """Divides negative logits too: r becomes 1/r for them, seen here as r -> 1/r everywhere."""

    def changed(self, metadata):
        flipped = 1 / metadata.repetition_penalties
        return replace(metadata, repetition_penalties=flipped)


class BadWordsIgnored(RightSampler):
    def changed(self, metadata):
        return replace(metadata, bad_words_token_ids={})


class WrongRank(RightSampler):
    """Ranks start at 0."""

    def sample(self, logits, metadata):
        output = super().sample(logits, metadata)
        tensors = output.logprobs_tensors
        if tensors is None or tensors.selected_token_ranks.numel() == 0:
            return output
        ranks = tensors.selected_token_ranks - 1
        return replace(output, logprobs_tensors=replace(tensors, selected_token_ranks=ranks))


class ProcessedLogprobs(RightSampler):
    """Shows logprobs of the processed row in place of the untouched one."""

    def sample(self, logits, metadata):
        return Sampler(logprobs_mode="processed_logprobs")(logits, metadata)


class HostileName(Warmer):
    """Its name is markup; its temperature is too high."""

    capabilities = replace(
        RightKernel.capabilities, name='<script>alert("1")</script>', version="<b>1</b>"
    )
