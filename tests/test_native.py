"""vLLM's own formulation in plain torch: kept sets worked by hand, seeds, law."""

import math

import numpy as np
import pytest
import torch
from scipy.stats import binom

from refsampler.backends.native import NativeKernel, backend, filter_logits, race
from refsampler.backends.protocol import Drawn, Feature, Fold, Kernel
from tests.kernel_calls import processed, rows, seeded

INF = float("inf")
NAN = float("nan")


def kept(x, **parameters):
    """The ids that one row keeps."""
    logits = torch.tensor([x])
    one = rows(1, **{name: [value] for name, value in parameters.items()})
    drawn = backend.draw(logits, one)
    assert processed(drawn).shape == logits.shape
    alive = processed(drawn)[0] > -INF
    return alive.nonzero()[:, 0].tolist()


def test_it_is_a_kernel_that_declares_what_it_does():
    assert isinstance(backend, Kernel)
    assert backend.capabilities.folds == frozenset(Fold)
    assert Feature.IN_PLACE not in backend.capabilities.features


@pytest.mark.clause("top-k.ties")
@pytest.mark.parametrize("top_p", [None, 1.0])
def test_everything_equal_to_the_kth_value_survives_on_both_branches(top_p):
    beside = {} if top_p is None else {"top_p": top_p}
    assert kept([3.0, 1.0, 2.0, 2.0, 2.0, 0.0], top_k=2, **beside) == [0, 2, 3, 4]
    assert kept([3.0, 1.0, 2.0, 2.0, 2.0, 0.0], top_k=5, **beside) == [0, 1, 2, 3, 4]
    assert kept([3.0, 1.0, 2.0, 2.0, 2.0, 0.0], top_k=6, **beside) == [0, 1, 2, 3, 4, 5]
    assert kept([3.0, 1.0, 2.0, 2.0, 2.0, 0.0], top_k=1, **beside) == [0]


@pytest.mark.clause("top-p.ties")
def test_of_four_equal_logits_half_the_mass_is_the_last_two():
    # Ascending masses .25 .5 .75 1: the first two are <= 1 - p.
    assert kept([0.0] * 4, top_p=0.5) == [2, 3]
    assert kept([0.0] * 4, top_p=0.75) == [1, 2, 3]


@pytest.mark.clause("top-p.keep")
def test_the_smallest_prefix_with_mass_p_survives():
    # Probabilities 1/2 1/4 1/8 1/8, exact in float32 up to the softmax's last bit.
    x = [math.log(8), math.log(4), math.log(2), math.log(2)]
    assert kept(x, top_p=0.4) == [0]
    assert kept(x, top_p=0.6) == [0, 1]
    assert len(kept(x, top_p=0.8)) == 3
    assert kept(x, top_p=0.9) == [0, 1, 2, 3]
    assert kept(x, top_p=1e-30) == [0]


@pytest.mark.clause("order.pipeline")
def test_top_p_is_measured_on_what_top_k_left():
    # Of 4:2:1:1 top-k 2 leaves 2/3 and 1/3, and 2/3 >= .6; on the whole row 1/2 < .6 keeps two.
    x = [math.log(4), math.log(2), 0.0, 0.0]
    assert kept(x, top_k=2, top_p=0.6) == [0]
    assert kept(x, top_p=0.6) == [0, 1]


def test_near_one_float32_cuts_a_tail_that_exact_arithmetic_keeps():
    # vLLM 0.25.1 does the same on these logits (it was run): 1 - p is 1.19e-7, the tail 4.1e-8.
    assert kept([0.0, -17.5, -18.0, -40.0], top_p=0.9999999) == [0]
    assert kept([0.0, -17.5, -18.0, -40.0], top_p=1.0) == [0, 1, 2, 3]


@pytest.mark.clause("min-p.keep")
def test_min_p_acts_after_temperature_and_before_top_p():
    # 8:4:1:1 at T = 1; min-p 1/4 keeps 8:4.  At T = 1/2 it is 64:16:1:1 and the bound is 16.
    x = [math.log(8), math.log(4) + 1e-4, 0.0, 0.0]
    assert kept(x, min_p=0.25) == [0, 1]
    assert kept(x, temperature=0.5, min_p=0.25) == [0, 1]
    assert kept(x, temperature=0.25, min_p=0.25) == [0]
    # 8/12 = .67 of what min-p left is >= .6, of the whole row 8/14 = .57 is not.
    assert kept(x, min_p=0.25, top_p=0.6) == [0]
    assert kept(x, top_p=0.6) == [0, 1]
    assert kept([2.0, 1.0, 2.0], min_p=1.0) == [0, 2]


def test_nothing_is_done_when_both_filters_are_off():
    x = torch.tensor([[1.0, -INF, 2.0]])
    assert filter_logits(x, None, None) is x


def test_top_k_alone_equals_top_k_beside_a_top_p_that_is_off():
    generator = seeded(1)
    logits = torch.randint(-8, 8, (64, 50), generator=generator).float()
    top_k = torch.randint(1, 51, (64,), generator=generator, dtype=torch.int32)
    alone = filter_logits(logits, top_k, None)
    beside = filter_logits(logits, top_k, torch.ones(64))
    assert torch.equal(alone, beside)
    assert (alone == -INF).any()
    assert (alone[top_k == 50] > -INF).all()


@pytest.mark.parametrize("k", [0, 5])
@pytest.mark.parametrize("top_p", [None, [0.5]])
def test_k_out_of_range_is_refused_as_in_vllm(k, top_p):
    with pytest.raises(RuntimeError):
        backend.draw(torch.zeros(1, 4), rows(1, top_k=[k], top_p=top_p))


@pytest.mark.clause("input.dtypes")
def test_half_precision_is_widened_and_float64_refused_by_name():
    x = torch.tensor([[1.0, 3.0, 2.0]])
    for dtype in (torch.bfloat16, torch.float16):
        drawn = backend.draw(x.to(dtype), rows(1, top_k=[1]))
        assert processed(drawn).dtype == torch.float32
        assert drawn.ids.tolist() == [1]
    with pytest.raises(TypeError, match=r"float64.*bfloat16, float16, float32"):
        backend.draw(x.double(), rows(1))


@pytest.mark.clause("input.untouched")
@pytest.mark.parametrize(
    "parameters",
    [
        {"top_k": [2, 3]},
        {"top_p": [0.5, 0.9]},
        {"top_k": [2, 3], "top_p": [0.5, 0.9], "temperature": [0.5, 0.0], "min_p": [0.5, 0.0]},
    ],
)
def test_the_callers_logits_stay(parameters):
    logits = torch.tensor([[1.0, 2.0, 3.0, 3.0], [0.0, 5.0, 1.0, 2.0]])
    before = logits.clone()
    backend.draw(logits, rows(2, **parameters))
    assert torch.equal(logits, before)


@pytest.mark.clause("greedy.argmax")
def test_greedy_rows_take_the_lowest_argmax_alone_and_beside_random_rows():
    logits = torch.tensor([[1.0, 7.0, 7.0, NAN], [1.0, 7.0, 7.0, 0.0], [0.0, 0.0, 0.0, 90.0]])
    alone = backend.draw(logits[:2], rows(2, temperature=[0.0, 9e-6]))
    assert alone.ids.tolist() == [3, 1]
    mixed = backend.draw(logits, rows(3, temperature=[0.0, 0.0, 1.0]))
    assert mixed.ids.tolist() == [3, 1, 3]
    assert torch.equal(processed(mixed)[1], logits[1])


@pytest.mark.clause("nonfinite.contained")
def test_a_row_without_a_law_gives_id_0_and_leaves_its_neighbour_alone():
    lawless = ([NAN, 0.0, 1.0], [0.0, INF, 1.0], [-INF] * 3)
    logits = torch.tensor([*lawless, [-INF, -INF, 0.0]])
    for filters in ({}, {"top_k": [2] * 4}, {"top_k": [2] * 4, "top_p": [0.5] * 4}):
        ids = backend.draw(logits, rows(4, **filters)).ids.tolist()
        assert ids[3] == 2
        assert all(0 <= one < 3 for one in ids)
    assert backend.draw(logits, rows(4)).ids.tolist()[:3] == [0, 0, 0]


@pytest.mark.clause("seed.batch")
@pytest.mark.parametrize("fp64", [False, True])
def test_a_seeded_row_draws_the_same_bits_in_every_batch(fp64):
    kernel = NativeKernel(fp64=fp64)
    # Whole numbers tie by the dozen, also at the edge of top-p.
    row = torch.randn(4096, generator=seeded(0)).mul(4).round()
    alone = kernel.draw(row[None], rows(1, top_p=[0.9], generators={0: seeded(7)}))
    for size, place in ((2, 0), (2, 1), (9, 4), (130, 129)):
        logits = torch.randn(size, 4096, generator=seeded(size))
        logits[place] = row
        generators = {place: seeded(7), 1 - min(place, 1): seeded(8)}
        top_p = [0.5] * size
        top_p[place] = 0.9
        drawn = kernel.draw(
            logits.t().contiguous().t(), rows(size, top_p=top_p, generators=generators)
        )
        assert drawn.ids[place] == alone.ids[0]
        assert torch.equal(processed(drawn)[place], processed(alone)[0])


@pytest.mark.clause("seed.effect")
def test_bulk_noise_is_drawn_unless_every_row_is_seeded():
    logits = torch.zeros(2, 1000)
    torch.manual_seed(3)
    start = torch.get_rng_state()
    backend.draw(logits, rows(2, generators={0: seeded(1), 1: seeded(2)}))
    assert torch.equal(torch.get_rng_state(), start)
    backend.draw(logits, rows(2, generators={1: seeded(2)}))
    assert not torch.equal(torch.get_rng_state(), start)


@pytest.mark.clause("draw.support")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_masked_id_never_wins_against_noise_at_the_generators_floor(dtype, monkeypatch):
    # 2^-24 is the least float32 noise of CUDA; all noise equal, the only finite id must win.
    monkeypatch.setattr(torch.Tensor, "exponential_", lambda self, **_: self.fill_(2.0**-24))
    logits = torch.tensor([[-INF, -INF, -200.0, -INF]])
    assert race(logits, {}, dtype).tolist() == [2]


@pytest.mark.parametrize(
    ("dtype", "noise"), [(torch.float32, 0.0), (torch.float64, 0.0), (torch.float64, 2.0**-1030)]
)
def test_vllms_formula_leaks_a_masked_id_at_such_noise_as_the_docstring_says(
    dtype, noise, monkeypatch
):
    monkeypatch.setattr(torch.Tensor, "exponential_", lambda self, **_: self.fill_(noise))
    assert race(torch.tensor([[0.0, -INF]]), {}, dtype).tolist() == [1]


@pytest.mark.statistical
@pytest.mark.clause("draw.law")
@pytest.mark.parametrize("fp64", [False, True])
def test_law_of_a_filtered_row(fp64):
    """1:2:4:8 at T = 1/2 is 1:4:16:64; top-k 3 leaves 4:16:64, so the ids have 1/21, 4/21, 16/21.

    Three two-sided exact binomial tests share alpha = 1e-9, 6.3 standard deviations a tail.  Power:
    at T = 0.55 the top id would have 0.7335, which is 17 standard deviations away in 70 000 draws.
    """
    draws, alpha = 70_000, 1e-9
    row = torch.tensor([0.0, math.log(2), math.log(4), math.log(8)])
    torch.manual_seed(20)
    drawn = NativeKernel(fp64=fp64).draw(
        row.expand(draws, -1), rows(draws, temperature=[0.5] * draws, top_k=[3] * draws)
    )
    counts = np.bincount(drawn.ids.numpy(), minlength=4)
    assert counts[0] == 0
    for count, probability in zip(counts[1:], (1 / 21, 4 / 21, 16 / 21), strict=True):
        tail = min(binom.cdf(count, draws, probability), binom.sf(count - 1, draws, probability))
        assert tail >= alpha / 6


def test_the_result_shows_what_it_was_drawn_from():
    drawn = backend.draw(torch.tensor([[0.0, 1.0]]), rows(1, top_k=[1]))
    assert isinstance(drawn, Drawn)
    assert drawn.ids.dtype == torch.int64
    assert processed(drawn).tolist() == [[-INF, 1.0]]
