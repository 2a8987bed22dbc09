"""A right sampler, and small wrong kernels and samplers, each with one mistake.

Run as a program it tests them all and prints what failed: in a process of its own, because the
shape checks that our tests switch on would make it take minutes.
"""

import json
import sys
from collections.abc import Iterable
from dataclasses import replace

import torch
from torch import Tensor

from refsampler.backends.protocol import Capabilities, DType, Feature
from refsampler.conformance.checks import generated
from refsampler.conformance.faults.right import RightKernel
from refsampler.conformance.plan import Plan, PlannedCase, make_plan
from refsampler.conformance.records import ReportWriter
from refsampler.conformance.runner import run
from refsampler.conformance.sequential import Sequential
from refsampler.conformance.subject import OpenSubject
from refsampler.conformance.verdict import Status
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


KERNELS = (
    RightKernel,
    OneMore,
    TiesCut,
    CrossingDropped,
    MassFirst,
    NoTemperature,
    Warmer,
    PastTheEnd,
    NeighboursFilters,
    SeedIgnored,
    OneSeed,
    LastTie,
    LastIdDropped,
    InputMutated,
    ColumnOfIds,
    Crashing,
    NanSpreads,
    AbsoluteMinP,
)
SAMPLERS = (
    RightSampler,
    AllowListIgnored,
    PromptCounts,
    PenaltyFlipped,
    BadWordsIgnored,
    WrongRank,
    ProcessedLogprobs,
)
WITH_LAWS = (RightKernel, Warmer)
SEED = 20250
MOST_CASES = 8
SEED_CHECKS = (
    "seeds-again",
    "seeds-repeated",
    "seeds-under-load",
    "seeds-surrounded",
    "seeds-differ",
)


def few_of_each(cases: Iterable[PlannedCase]) -> tuple[PlannedCase, ...]:
    """At most eight cases of a check, spread over those that it has: what they show, more repeat."""
    by_check: dict[str, list[PlannedCase]] = {}
    for one in cases:
        by_check.setdefault(one.check.name, []).append(one)
    return tuple(
        one for many in by_check.values() for one in many[:: max(1, -(-len(many) // MOST_CASES))]
    )


def small_plan(capabilities: Capabilities, widest: int = 140) -> Plan:
    """A plan of the cases over small vocabularies; wide rows only show faults at block edges."""
    plan = make_plan(capabilities, run_seed=SEED)
    cases = few_of_each(
        one
        for one in plan.cases
        if one.case.logits.vocab <= widest or one.check.name in SEED_CHECKS
    )
    laws = tuple(one for one in plan.laws if one.case.logits.vocab < 100 and not one.carried)[:3]
    return replace(plan, cases=cases, laws=laws, mixed=(), sequential=Sequential())


def failures(sampler: RightKernel | RightSampler, plan: Plan) -> list[str]:
    """The clauses that fail, or the errors of the harness."""
    outcome = run(OpenSubject(sampler, SEED), plan, ReportWriter(None))
    failed = [
        str(one.verdict.clause) for one in outcome.decisions if one.verdict.status is Status.FAIL
    ]
    return [*failed, *outcome.errors]


def main() -> None:
    torch.set_num_threads(1)
    generated.COUNT = 20
    found = {}
    for family in (KERNELS, SAMPLERS):
        plan = small_plan(family[0].capabilities)
        for kind in family:
            laws = plan.laws if kind in WITH_LAWS else ()
            found[kind.__name__] = failures(kind(), replace(plan, laws=laws))
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
