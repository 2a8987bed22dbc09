"""The law against float32 engines: none of them may leave the hull, or lose an id of the core.

Each engine below is a right one that rounds differently: by division or by the reciprocal, ranking
logits or probabilities, summing upwards, downwards, or in blocks.  The rows are made to be hard:
neighbouring float32 values around every boundary, equal values, p at a prefix mass.
"""

import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
import torch

from refsampler.law import TargetLaw, target_law
from refsampler.params import SamplingParams
from refsampler.request import Request
from refsampler.semantics import Semantics, Step, profile

ROWS, VOCAB = 500, 96
INF = float("inf")


@pytest.fixture(autouse=True)
def one_thread():
    """Threads cost more than they bring on rows this small."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@dataclass(frozen=True)
class Batch:
    """Rows with parameters as tensors, and the same as requests."""

    logits: torch.Tensor
    temperature: torch.Tensor
    top_k: torch.Tensor
    top_p: torch.Tensor
    min_p: torch.Tensor
    repetition: torch.Tensor
    frequency: torch.Tensor
    history: torch.Tensor

    def requests(self):
        return [
            Request(
                SamplingParams(
                    temperature=self.temperature[row].item(),
                    temperature_floor=0.0,
                    top_k=int(self.top_k[row]),
                    top_p=self.top_p[row].item(),
                    min_p=self.min_p[row].item(),
                    repetition_penalty=self.repetition[row].item(),
                    frequency_penalty=self.frequency[row].item(),
                ),
                output=tuple(self.history[row].tolist()),
            )
            for row in range(len(self.logits))
        ]


def hard_batch(seed, *, greedy=False):
    generator = torch.Generator().manual_seed(seed)

    def uniform(low, high):
        return torch.empty(ROWS).uniform_(low, high, generator=generator)

    def choose(*values):
        return torch.tensor(values)[torch.randint(len(values), (ROWS,), generator=generator)]

    base = torch.randn(ROWS, VOCAB, generator=generator) * uniform(0.5, 6.0)[:, None]
    # half of the ids repeat or neighbour another one, by up to 3 float32 steps
    partner = torch.randint(VOCAB, (ROWS, VOCAB), generator=generator)
    steps = torch.randint(-3, 4, (ROWS, VOCAB), generator=generator)
    near = base.gather(-1, partner)
    near = (near.view(torch.int32) + steps.int()).view(torch.float32)
    logits = torch.where(torch.rand(ROWS, VOCAB, generator=generator) < 0.5, near, base)
    temperature = choose(0.5, 0.7, 0.9, 1.0, 1.3) * 1.0
    # p within float32 summation of a prefix mass of the whole row, in half of the rows
    masses = torch.softmax(logits.double() / temperature[:, None], -1).sort(-1, descending=True)[0]
    place = torch.randint(VOCAB // 4, (ROWS, 1), generator=generator)
    at_boundary = masses.cumsum(-1).gather(-1, place)[:, 0].float()
    top_p = torch.where(uniform(0, 1) < 0.5, at_boundary, uniform(0.05, 1.0)).clamp(1e-6, 1.0)
    return Batch(
        logits=logits,
        temperature=torch.zeros(ROWS) if greedy else temperature,
        top_k=choose(0, 0, 1, 2, 5, 20, 60),
        top_p=torch.where(uniform(0, 1) < 0.2, 1.0, top_p),
        min_p=choose(0.0, 0.0, 0.0, 0.01, 0.2, 1.0),
        repetition=choose(1.0, 1.0, 1.1, 1.3, 2.0),
        frequency=choose(0.0, 0.0, 0.1, 0.5),
        history=torch.randint(VOCAB, (ROWS, 30), generator=generator),
    )


def penalised(batch, *, reciprocal):
    """The penalties in float32, as the two common formulas round them."""
    x, r = batch.logits, batch.repetition[:, None]
    counts = torch.zeros_like(x).scatter_add(-1, batch.history, torch.ones_like(x))
    shrunk = x * (1 / r) if reciprocal else x / r
    x = torch.where(counts > 0, torch.where(x > 0, shrunk, x * r), x)
    return x - batch.frequency[:, None] * counts


def heated(x, batch, *, reciprocal):
    t = batch.temperature[:, None]
    return x * (1 / t) if reciprocal else x / t


def keep_min_p(x, batch, **_):
    probs = x.softmax(-1)
    return x.masked_fill(probs < batch.min_p[:, None] * probs.amax(-1, keepdim=True), -INF)


def descending(x):
    return torch.sort(x, dim=-1, descending=True, stable=True)


def rank_key(x, on):
    return x.softmax(-1) if on == "probabilities" else x


def keep_top_k(x, batch, *, exactly, on, **_):
    key = rank_key(x, on)
    k = torch.where(batch.top_k > 0, batch.top_k, VOCAB)[:, None]
    ordered, order = descending(key)
    if not exactly:
        return x.masked_fill(key < ordered.gather(-1, k - 1), -INF)
    kept = torch.arange(VOCAB) < k
    return x.masked_fill(~torch.zeros_like(kept).scatter(-1, order, kept), -INF)


def running_sums(probs, how):
    """Float32 sums of what comes before, in a descending row."""
    if how == "down":
        return probs.cumsum(-1) - probs
    if how == "up":
        return 1 - probs.flip(-1).cumsum(-1).flip(-1)
    blocks = probs.reshape(len(probs), -1, 16)
    inside = blocks.cumsum(-1)
    carried = inside[..., -1:].cumsum(-2) - inside[..., -1:]
    return (inside + carried).reshape(probs.shape) - probs


def keep_top_p(x, batch, *, whole_classes, inclusive, sums, on, last_first=False, **_):
    key = rank_key(x, on)
    # a stable sort keeps equals in the order of their ids, or in the reverse
    order = VOCAB - 1 - descending(key.flip(-1)).indices if last_first else descending(key).indices
    ordered = key.gather(-1, order)
    probs = x.softmax(-1).gather(-1, order)
    above = running_sums(probs, sums)
    if whole_classes:
        first = torch.searchsorted(-ordered, -ordered)
        above = above.gather(-1, first)
    p = batch.top_p[:, None]
    kept = (above <= p) if inclusive else (above < p)
    kept = kept | (torch.arange(VOCAB) == 0) | (p >= 1)
    if whole_classes:
        kept = kept | (ordered == ordered[:, :1])
    return x.masked_fill(~torch.zeros_like(kept).scatter(-1, order, kept), -INF)


FILTERS: dict[Step, Callable[..., torch.Tensor]] = {
    Step.MIN_P: keep_min_p,
    Step.TOP_K: keep_top_k,
    Step.TOP_P: keep_top_p,
}


def run(batch, steps, *, reciprocal, **how):
    x = penalised(batch, reciprocal=reciprocal)
    for step in steps:
        if step is Step.TEMPERATURE:
            x = heated(x, batch, reciprocal=reciprocal)
        else:
            x = FILTERS[step](x, batch, **how)
    return x > -INF


def sampling_steps(semantics):
    last = (Step.TEMPERATURE, Step.MIN_P, Step.TOP_K, Step.TOP_P)
    return [step for step in semantics.order if step in last]


def assert_within(kept, law: TargetLaw):
    outside, lost = kept & ~law.hull, law.core & ~kept
    assert not outside.any(), f"left the hull in rows {outside.any(-1).nonzero().flatten()}"
    assert not lost.any(), f"lost core ids in rows {lost.any(-1).nonzero().flatten()}"
    counted = law.lumped.any(-1)
    assert torch.equal((kept & law.lumped).sum(-1)[counted], law.lump_count[counted])


WAYS = list(itertools.product([False, True], ["down", "up", "blocks"], [False, True]))


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize(
    "name", ["vllm", "flashinfer", "transformers", "llama.cpp", "mlx-lm", "lmdeploy"]
)
def test_float32_engines_stay_between_core_and_hull(name, seed):
    semantics, batch = profile(name), hard_batch(seed)
    plain = Semantics(
        order=tuple(semantics.order),
        top_k_ties=semantics.top_k_ties,
        top_p_ties=semantics.top_p_ties,
        top_p_cut=semantics.top_p_cut,
    )
    law = target_law(batch.logits, batch.requests(), plain)
    for reciprocal, sums, last_first in WAYS:
        kept = run(
            batch,
            sampling_steps(semantics),
            reciprocal=reciprocal,
            exactly=semantics.top_k_ties == "exactly_k",
            whole_classes=semantics.top_p_ties == "all",
            inclusive=semantics.top_p_cut == "inclusive",
            sums=sums,
            last_first=last_first,
            on="logits",
        )
        assert_within(kept, law)
    # the bounds are no excuse: most rows are decided, and the rest nearly
    assert law.exact.float().mean() > 0.3
    assert (law.hull & ~law.core & ~law.lumped).sum(-1).double().mean() < 4


@pytest.mark.parametrize("seed", [3, 4])
def test_a_joint_engine_on_probabilities_stays_between_core_and_hull(seed):
    batch = hard_batch(seed)
    # its filters behind the penalties that `penalised` computes, in their order
    semantics = replace(profile("sglang"), order=profile("transformers").order)
    law = target_law(batch.logits, batch.requests(), semantics)
    # one sort serves both cuts, so that its order of equals cannot differ between them
    for reciprocal, sums in itertools.product([False, True], ["down", "up", "blocks"]):
        how = {"reciprocal": reciprocal, "on": "probabilities", "sums": sums, "exactly": True}
        how |= {"whole_classes": False, "inclusive": True}
        by_k = run(batch, [Step.TEMPERATURE, Step.TOP_K], **how)
        by_p = run(batch, [Step.TEMPERATURE, Step.TOP_P], **how)
        x = heated(penalised(batch, reciprocal=reciprocal), batch, reciprocal=reciprocal)
        kept = keep_min_p(x.masked_fill(~(by_k & by_p), -INF), batch) > -INF
        assert_within(kept, law)


@pytest.mark.parametrize("reciprocal", [False, True])
def test_float32_greedy_is_admissible(reciprocal):
    batch = hard_batch(5, greedy=True)
    law = target_law(batch.logits, batch.requests())
    best = penalised(batch, reciprocal=reciprocal).argmax(-1)
    assert law.admissible.gather(-1, best[:, None]).all()
    certain = law.exact
    assert certain.float().mean() > 0.5
    assert torch.equal(law.core[certain].int().argmax(-1), best[certain])


def test_uniform_rows_are_exact_in_every_order_of_summation():
    size = 64
    batch = hard_batch(6)
    rows = torch.full((ROWS, VOCAB), -INF)
    rows[:, :size] = torch.linspace(-5, 5, ROWS)[:, None]
    p = (torch.arange(ROWS) % size + 1).float() / size
    ones, nothing = torch.ones(ROWS), torch.zeros(ROWS)
    uniform = Batch(
        rows, batch.temperature, nothing.int(), p, nothing, ones, nothing, batch.history
    )
    law = target_law(rows, uniform.requests())
    assert law.exact.all()
    counts = torch.arange(ROWS) % size + 1
    assert torch.equal((law.core.sum(-1) + law.lump_count), counts)
    for reciprocal, sums, last_first in WAYS:
        kept = run(
            uniform,
            sampling_steps(Semantics()),
            reciprocal=reciprocal,
            exactly=False,
            whole_classes=False,
            inclusive=False,
            sums=sums,
            last_first=last_first,
            on="logits",
        )
        assert_within(kept, law)


@pytest.mark.parametrize("seed", range(3))
def test_moving_every_value_by_half_the_band_stays_between_core_and_hull(seed):
    # the band is 2^-22 of the largest intermediate; T = .7 rounds, so that there is one
    generator = torch.Generator().manual_seed(seed)
    batch = hard_batch(10 + seed)
    requests = [
        Request(SamplingParams(temperature=0.7, top_k=int(k), top_p=p.item()))
        for k, p in zip(batch.top_k, batch.top_p, strict=True)
    ]
    law = target_law(batch.logits, requests)
    x = batch.logits.double() / torch.tensor(0.7).double()
    half = 2.0**-23 * x.abs().amax(-1, keepdim=True)
    ks = torch.where(batch.top_k > 0, batch.top_k, VOCAB)[:, None]
    values, which = torch.unique(batch.logits, return_inverse=True)
    for _ in range(20):
        # equal logits move together
        shifts = torch.empty(values.shape, dtype=torch.float64).uniform_(-1, 1, generator=generator)
        moved = x + half * shifts[which]
        kth = descending(moved).values.gather(-1, ks - 1)
        ranked = descending(moved.masked_fill(moved < kth, -INF).softmax(-1))
        kept = (ranked.values.cumsum(-1) - ranked.values) < batch.top_p.double()[:, None]
        kept = (kept | (batch.top_p >= 1)[:, None]) & (ranked.values > 0)
        assert_within(torch.zeros_like(kept).scatter(-1, ranked.indices, kept), law)


def test_larger_parameters_keep_no_less():
    batch = hard_batch(7)
    rows = batch.logits

    def bounds(**params):
        law = target_law(rows, [Request(SamplingParams(**params))] * ROWS)
        assert not (law.core & ~law.hull).any()
        return law

    for laws in (
        [bounds(temperature=0.7, top_k=k) for k in (1, 2, 7, 40, 96)],
        [bounds(temperature=0.7, top_p=p) for p in (1e-6, 0.1, 0.5, 0.9, 0.999999, 1.0)],
        [bounds(temperature=0.7, min_p=p) for p in (1.0, 0.5, 0.1, 1e-3, 0.0)],
    ):
        for smaller, larger in itertools.pairwise(laws):
            assert not (smaller.core & ~(larger.core | larger.lumped)).any()
            assert not (smaller.hull & ~larger.hull).any()


def test_chunks_do_not_matter():
    batch = hard_batch(8)
    whole = target_law(batch.logits, batch.requests())
    parts = target_law(batch.logits, batch.requests(), chunk_rows=7)
    for name in ("core", "hull", "lumped", "logprobs", "exact", "valid", "lump_logprob"):
        assert torch.equal(getattr(whole, name), getattr(parts, name))


def tiny_rows(seed):
    """Rows of subnormal numbers and zeros: float32 rounds them in steps of 2^-149, or to 0."""
    generator = torch.Generator().manual_seed(seed)

    def chosen(*values):
        at = torch.randint(len(values), (ROWS,), generator=generator)
        return torch.tensor(values)[at]

    tiny = torch.tensor([0.0, -0.0, 1e-45, 3e-45, 1e-40, 1.2e-38, -1e-45, -1e-40])
    logits = tiny[torch.randint(len(tiny), (ROWS, VOCAB), generator=generator)]
    return Batch(
        logits=logits,
        temperature=chosen(1.0, 2.0, 0.5, 0.7),
        top_k=chosen(1, 2, 3, 50).long(),
        top_p=torch.ones(ROWS),
        min_p=torch.zeros(ROWS),
        repetition=chosen(1.0, 4.0, 1.3),
        frequency=torch.zeros(ROWS),
        history=torch.randint(VOCAB, (ROWS, 40), generator=generator),
    )


@pytest.mark.parametrize("flush", [False, True])
def test_subnormal_numbers_stay_between_core_and_hull(flush):
    """Engines that keep subnormal results, and that flush what arithmetic makes of them to 0."""
    batch = tiny_rows(1)

    def kept_subnormal(x):
        return torch.where(x.abs() < 2.0**-126, 0.0, x) if flush else x

    seen = torch.zeros(ROWS, VOCAB, dtype=torch.bool).scatter(-1, batch.history, value=True)
    factor = torch.where(seen, batch.repetition[:, None], 1.0)
    scaled = torch.where(batch.logits > 0, batch.logits / factor, batch.logits * factor)
    touched = seen & (batch.repetition != 1)[:, None]
    x = torch.where(touched, kept_subnormal(scaled), batch.logits)
    warm = (batch.temperature != 1)[:, None]
    x = torch.where(warm, kept_subnormal(x / batch.temperature[:, None]), x)
    law = target_law(batch.logits, batch.requests())
    kth = x.sort(dim=-1, descending=True).values.gather(-1, batch.top_k[:, None] - 1)
    kept = x >= kth
    assert not (kept & ~law.hull).any()
    assert not (law.core & ~kept).any()
    cold = replace(batch, temperature=torch.zeros(ROWS), top_k=torch.zeros(ROWS).long())
    before = torch.where(touched, kept_subnormal(scaled), batch.logits)
    ids = before.argmax(-1)
    assert target_law(cold.logits, cold.requests()).admissible.gather(-1, ids[:, None]).all()


@pytest.mark.parametrize(
    ("logits", "params"),
    [
        ([0.0, 2.0**-127], {"temperature": 0.5, "top_k": 1}),
        ([0.0, 2.0**-127], {"temperature": 0, "repetition_penalty": 0.5}),
        ([2.0**-126, 2.0**-127], {"temperature": 0, "logit_bias": ((1, 2.0**-126),)}),
        ([2.0**-126, 1.125 * 2.0**-126], {"temperature": 0, "frequency_penalty": 2.0**-129}),
    ],
)
def test_arithmetic_that_reads_a_subnormal_number_as_0_is_right_too(logits, params):
    # .. which gives [0, 0], [0, 0], [2^-126, 2^-126] and [2^-126, 1.125 2^-126]
    request = Request(SamplingParams(**params), output=(1,))
    law = target_law(torch.tensor([logits]), [request])
    assert law.hull.tolist() == [[True, True]]
    assert not law.core.all()
