"""The fast CPU sampler against float64 numpy: kept sets, ids one by one, laws, tails, seeds."""

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import binom, poisson

from refsampler.backends.cpu import CpuKernel, deep
from refsampler.backends.cpu.kernel import _SMALLEST_SHARED
from refsampler.backends.protocol import Fold, Kernel
from refsampler.backends.registry import BackendBroken, resolve
from refsampler.conformance.checks.tail import required_grades
from tests.kernel_calls import processed, rows, seeded

pytest.importorskip("numba", reason="the extra cpu is not installed")

INF = float("inf")
NAN = float("nan")
MASK = 2**32 - 1


@pytest.fixture(scope="module")
def kernel():
    return CpuKernel()


@pytest.fixture(scope="module")
def showing():
    return CpuKernel(processed=True)


def philox(seed, step, throw=0, stream=0):
    """Philox4x32-10 of Salmon et al. (2011) in plain integers."""
    low, high = seed & MASK, seed >> 32
    c = [step & MASK, step >> 32, throw, stream]
    for turn in range(10):
        a, b = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        k0, k1 = (low + turn * 0x9E3779B9) & MASK, (high + turn * 0xBB67AE85) & MASK
        c = [(b >> 32) ^ c[1] ^ k0, b & MASK, (a >> 32) ^ c[3] ^ k1, a & MASK]
    return c


def float32(value):
    return float(np.float32(value))


def oracle(x, *, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0):
    """The law of one row in float64, and whether a boundary is closer than float64 can decide."""
    x = np.asarray(x, np.float64)
    p, least = float32(top_p), float32(min_p)
    masses = np.exp((x - x.max()) / float32(temperature))
    near = np.abs(masses - least) < 1e-13 * least
    unsure = bool((near & (x < x.max())).any())
    masses[masses < least] = 0
    if 0 < top_k < len(x):
        masses[x < np.sort(x)[-top_k]] = 0
    if p < 1:
        order = np.argsort(-x, kind="stable")
        first = np.searchsorted(-x[order], -x[order], "left")  # before the first of its equals
        above = np.concatenate([[0.0], masses[order].cumsum()])[first]
        wanted = p * masses.sum()
        unsure |= bool(((np.abs(above - wanted) < 1e-12 * wanted) & (above > 0)).any())
        masses[order[above >= wanted]] = 0
    return masses / masses.sum(), unsure


def drawn(kernel, x, count, start=0, step=0, **parameters):
    """The ids of `count` rows x with the seeds start, start + 1, ..."""
    many = rows(count, **{name: [value] * count for name, value in parameters.items()})
    seeds = torch.arange(start, start + count)
    asked = type(many)(
        many.top_k,
        many.top_p,
        many.temperature,
        many.min_p,
        seeds,
        torch.full_like(seeds, step),
        torch.ones(count, dtype=torch.bool),
        {},
    )
    return kernel.draw(x.expand(count, -1), asked)


def row_of(kind, vocab, generator):
    x = generator.normal(0, 1, vocab)
    match kind:
        case "peaked":
            x *= 6
        case "flat":
            x *= 0.01
        case "equal":
            x[:] = 0.25
        case "ties":
            x = np.round(x * 2) / 2
        case "zeros":
            x = generator.choice([-1.0, -0.0, 0.0, 1.0], vocab)
        case "masked":
            x[generator.random(vocab) < 0.9] = -INF
            x[generator.integers(vocab)] = 1
        case "zipf":
            x = -1.5 * np.log(generator.permutation(vocab) + 2.7) - 300
        case "last":
            x[:] = -INF
            x[-1] = 3
    return torch.from_numpy(x.astype(np.float32))


KINDS = ["normal", "peaked", "flat", "equal", "ties", "zeros", "masked", "zipf", "last"]
SIZES = [1, 2, 5, 63, 64, 65, 255, 256, 257, 1000, 4096, 20_001]


def test_it_is_a_kernel_that_folds_everything(kernel):
    assert isinstance(kernel, Kernel)
    assert kernel.capabilities.folds == frozenset(Fold)
    assert isinstance(resolve("cpu"), CpuKernel)


def test_philox_has_the_published_answer():
    # Random123's known-answer file: zero key, zero counter.
    assert philox(0, 0) == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]


@pytest.mark.clause("top-p.keep")
@pytest.mark.parametrize("kind", KINDS)
def test_kept_sets_are_those_of_float64(kind, showing):
    generator = np.random.default_rng(KINDS.index(kind))
    decided = 0
    for vocab in SIZES:
        for _ in range(12):
            dtype = (torch.float32, torch.bfloat16, torch.float16)[generator.integers(3)]
            x = row_of(kind, vocab, generator).to(dtype)
            k = int(generator.choice([vocab, 1, 2, 50, 200, vocab - 1, vocab // 2 + 1]))
            asked = {
                "temperature": float(generator.choice([1, 0.8, 0.01, 1e-4, 10])),
                "top_k": min(max(k, 1), vocab),
                "top_p": float(generator.choice([1, 0.9, 0.5, 0.999999, 0.1, 0.01, 1e-6])),
                "min_p": float(generator.choice([0, 0, 0.05, 0.5, 1, 1e-6])),
            }
            law, unsure = oracle(x.float().numpy(), **asked)
            both = drawn(showing, x, 3, **asked)
            shown = processed(both)
            assert (shown[range(3), both.ids.long()] > -INF).all()
            if unsure:
                continue
            decided += 1
            # float64 gives no mass to what is 745 e-folds down, which p = 1 keeps all the same
            kept = law > 0
            if asked["top_p"] == 1 and asked["min_p"] == 0:
                assert set(np.flatnonzero(kept)) <= set((shown[0] > -INF).nonzero()[:, 0].tolist())
            else:
                assert np.array_equal(shown[0].numpy() > -INF, kept), (vocab, asked)
            scaled = x.float() / asked["temperature"]
            assert torch.equal(shown[0][kept], scaled[kept])
    assert decided > 100


@pytest.mark.clause("top-k.ties")
def test_ties_at_k_stay_in_every_block(showing):
    # 2 000 blocks' worth of ids; three above, then ties spread over far more blocks than k.
    x = torch.full((40_000,), -2.0)
    x[[5, 20_000, 39_999]] = 3.0
    x[::100] = 1.0
    shown = processed(drawn(showing, x, 1, top_k=7))[0]
    assert sorted((shown > -INF).nonzero()[:, 0].tolist()) == sorted(
        {5, 20_000, 39_999, *range(0, 40_000, 100)}
    )
    shown = processed(drawn(showing, torch.zeros(40_000), 1, top_k=7, top_p=0.5))[0]
    assert (shown == 0).all()


@pytest.mark.clause("seed.reproducible")
@pytest.mark.parametrize("kind", ["normal", "zipf", "ties", "masked"])
def test_ids_of_top_k_are_one_inverse_cdf_in_id_order(kind, kernel):
    x = row_of(kind, 5000, np.random.default_rng(7))
    cases: list[dict[str, Any]] = [
        {"top_k": 40, "temperature": 0.7},
        {"top_k": 40, "top_p": 0.8, "min_p": 0.01},
        {"top_k": 3, "top_p": 0.3},
    ]
    for asked in cases:
        law, unsure = oracle(x.numpy(), **asked)
        assert not unsure
        start, step = 2**40 + 12345, 2**35 + 9
        ids = drawn(kernel, x, 500, start=start, step=step, **asked).ids.numpy()
        words = [philox(start + row, step) for row in range(500)]
        u = np.array([((w[0] << 32 | w[1]) >> 11) + 0.5 for w in words]) * 2.0**-53
        wanted = np.searchsorted(law.cumsum(), u, "right")
        # A uniform closer than rounding to a step may fall to either side; none of these is.
        assert np.abs(law.cumsum()[:, None] - u).min() > 1e-13
        assert np.array_equal(ids, wanted)


@pytest.mark.clause("seed.batch")
@pytest.mark.parametrize("threads", [1, 2])
def test_a_seeded_id_is_the_same_in_every_batch_layout_and_thread_count(threads, kernel):
    generator = np.random.default_rng(1)
    batch, vocab = 64, 5000
    assert batch * vocab > _SMALLEST_SHARED
    logits = torch.stack([row_of(KINDS[r % 8], vocab, generator) for r in range(batch)])
    logits = logits.to(torch.bfloat16).float()
    columns: dict[str, list[Any]] = {
        "top_k": [(vocab, 40, 200, vocab)[r % 4] for r in range(batch)],
        "top_p": [(0.9, 0.9, 1.0, 0.01, 1.0)[r % 5] for r in range(batch)],
        "min_p": [(0.0, 0.0, 0.05)[r % 3] for r in range(batch)],
        "temperature": [(1.0, 0.8, 0.0, 1.5, 0.3, 1.0, 1.0)[r % 7] for r in range(batch)],
    }
    seeds = torch.arange(batch) * 7919 - 5

    def ids(places, x):
        some = {name: [values[r] for r in places] for name, values in columns.items()}
        made = rows(len(places), **some)
        made.seed[:] = seeds[places]
        made.step[:] = 11
        made.seeded[:] = True
        return kernel.draw(x, made).ids

    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        together = ids(list(range(batch)), logits)
        mirrored = ids(list(range(batch))[::-1], logits.flip(0))
        wide = torch.full((batch, 2 * vocab), 99.0)
        wide[:, 1::2] = logits
        assert torch.equal(ids(list(range(batch)), wide[:, 1::2]), together)
        assert torch.equal(ids(list(range(batch)), logits.t().contiguous().t()), together)
        assert torch.equal(ids(list(range(batch)), logits.bfloat16()), together)
    finally:
        torch.set_num_threads(before)
    alone = torch.cat([ids([r], logits[r : r + 1]) for r in range(batch)])
    assert torch.equal(together, alone)
    assert torch.equal(mirrored.flip(0), alone)


@pytest.mark.statistical
@pytest.mark.clause("draw.law")
@pytest.mark.parametrize("kind", ["normal", "flat", "zipf", "ties", "masked", "blocks"])
def test_laws(kind, kernel):
    """Exact binomial tests of 16 cells of ids each; all six tests together err with 1e-9.

    Power: of 20 000 draws a cell of 1/16 has a standard deviation of 2.7 % of itself; 30 % are seen.
    Darts that miss and count all the same would give the second of two blocks 5.6 % more, which is
    10 standard deviations of 150 000 draws.
    """
    generator = np.random.default_rng(3)
    x = row_of(kind, 6000, generator)
    if kind == "blocks":  # two blocks of like mass, with bounds 0 and 6.1 % too large
        x = torch.cat([torch.zeros(256), torch.full((256,), -0.56 * float(np.log(2)))])
    modes: list[dict[str, Any]] = [
        {},
        {"top_p": 0.9},
        {"top_p": 0.01},
        {"top_p": 0.3},
        {"min_p": 0.1, "top_p": 0.8},
        {"top_k": 40, "top_p": 0.9},
    ]
    count = 150_000 if kind == "blocks" else 20_000
    alpha = 1e-9 / (6 * len(modes) * 16 * 2)
    cell = generator.integers(0, 16, len(x))
    if kind == "blocks":
        cell = np.arange(len(x)) // 256
    for mode in modes:
        law, _ = oracle(x.numpy(), temperature=0.8, **mode)
        ids = drawn(kernel, x, count, start=10**6, temperature=0.8, **mode).ids.numpy()
        assert (law[ids] > 0).all()
        masses = np.bincount(cell, law, 16)
        for seen, mass in zip(np.bincount(cell[ids], minlength=16), masses, strict=True):
            probability = min(mass, 1.0)
            assert binom.cdf(seen, count, probability) >= alpha
            assert binom.sf(seen - 1, count, probability) >= alpha


@pytest.mark.statistical
@pytest.mark.clause("draw.tail")
def test_the_tail_keeps_its_mass(kernel):
    """4095 ids of 1e-7 each: 164 hits expected of 400 000; both tails err with 1e-9 together."""
    x = torch.full((4096,), -float(np.log(1e7)))
    x[1234] = 0
    law, _ = oracle(x.numpy())
    ids = drawn(kernel, x, 400_000, start=5).ids
    hits, expected = int((ids != 1234).sum()), 400_000 * (1 - law[1234])
    assert poisson.cdf(hits, expected) >= 5e-10
    assert poisson.sf(hits - 1, expected) >= 5e-10


@pytest.mark.clause("greedy.tie")
def test_greedy_rows_take_the_lowest_of_equal_maxima(kernel):
    x = torch.zeros(4, 1000)
    x[0, [700, 300]] = 2
    x[1, 999] = 1
    x[2, :] = -INF
    x[2, [5, 6]] = -7
    x[3, 4] = NAN
    assert kernel.draw(x, rows(4, temperature=[0.0, 9e-6, 0.0, 0.0])).ids.tolist() == [
        300,
        999,
        5,
        0,
    ]


@pytest.mark.clause("nonfinite.contained")
@pytest.mark.parametrize("vocab", [3, 1000])
def test_a_row_without_a_law_gives_id_0_and_leaves_its_neighbours_alone(vocab, showing):
    x = torch.full((5, vocab), -INF)
    x[1] = NAN
    x[2] = 0
    x[2, 1] = INF
    x[3] = NAN  # counts as -inf
    x[3, 2] = 1
    x[4, 1] = 0
    for filters in ({}, {"top_k": [2] * 5}, {"top_p": [0.5] * 5}, {"min_p": [0.5] * 5}):
        assert showing.draw(x, rows(5, **filters)).ids.tolist() == [0, 0, 0, 2, 1]


@pytest.mark.clause("input.extreme")
def test_extreme_rows_are_decided_in_float64(showing):
    top = 3e4
    x = torch.tensor([top, float(np.nextafter(np.float32(top), np.float32(0))), -65504.0, 0.0])
    asked = {"temperature": 1e-5, "top_p": 0.99}
    assert (drawn(showing, x, 50, **asked).ids == 0).all()
    # One float below, at T = .01: 0.001953125 / .01 is 0.195 e-folds, so that both are kept.
    asked = {"temperature": 0.01, "top_p": 0.99}
    assert (processed(drawn(showing, x, 1, **asked))[0] > -INF).tolist() == [
        True,
        True,
        False,
        False,
    ]
    large = torch.tensor([3e38, 2e38, -3e38])
    assert (drawn(showing, large, 50, temperature=1e-5).ids == 0).all()


@pytest.mark.clause("seed.effect")
def test_unseeded_rows_take_their_keys_from_torch_and_seeded_rows_take_nothing(kernel):
    x = torch.zeros(300, 1000)
    torch.manual_seed(3)
    start = torch.get_rng_state()
    kernel.draw(x, rows(300, generators=dict.fromkeys(range(300), seeded(1))))
    assert torch.equal(torch.get_rng_state(), start)
    first = kernel.draw(x, rows(300)).ids
    second = kernel.draw(x, rows(300)).ids
    torch.set_rng_state(start)
    assert torch.equal(kernel.draw(x, rows(300)).ids, first)
    # Equal ids of 300 pairs are Binomial(300, 1/1000): 12 or more have probability below 1e-12.
    assert int((first == second).sum()) < 12
    # A key that equals a seed is another stream.
    assert philox(5, 0, 0, 1)[:2] != philox(5, 0, 0, 0)[:2]


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"top_p": [0.5, 0.0]}, r"top_p\[1\] = 0.0 is refused: allowed is above 0"),
        ({"temperature": [NAN, 1.0]}, r"temperature\[0\] = nan is refused: allowed is 0 or more"),
        ({"temperature": [1.0, INF]}, r"temperature\[1\] = inf is refused"),
        ({"min_p": [0.0, 1.5]}, r"min_p\[1\] = 1.5 is refused: allowed is 0 to 1"),
    ],
)
def test_parameters_out_of_range_are_refused_by_name(parameters, message, kernel):
    with pytest.raises(ValueError, match=message):
        kernel.draw(torch.zeros(2, 4), rows(2, **parameters))


def test_logits_of_another_kind_are_refused_by_name(kernel):
    with pytest.raises(TypeError, match=r"float64.*bfloat16, float16, float32"):
        kernel.draw(torch.zeros(1, 4, dtype=torch.float64), rows(1))
    with pytest.raises(ValueError, match=r"logits = \(2, 0\) on cpu is refused"):
        kernel.draw(torch.zeros(2, 0), rows(2))
    with pytest.raises(ValueError, match=r"top_k.shape = \(1,\) is refused: allowed is \(2,\)"):
        kernel.draw(torch.zeros(2, 4), rows(1, top_k=[1]))
    assert kernel.draw(torch.zeros(0, 4), rows(0)).ids.shape == (0,)


def test_logprobs_are_those_of_the_law(kernel):
    x = torch.tensor([[0.0, 1.0, 2.0, 3.0]])
    logprobs = kernel.processed_logprobs(x, rows(1, top_k=[2], temperature=[0.5]))
    # exp(-2) = 0.1353 beside 1.
    wanted = [-INF, -INF, -2.126928, -0.126928]
    assert torch.allclose(logprobs, torch.tensor([wanted]), atol=1e-6)


def test_extra_memory_is_at_most_16_bytes_a_logit_and_thread(kernel):
    kernel.draw(torch.zeros(1, 128_256, dtype=torch.bfloat16), rows(1))
    held = sum(one.nbytes for one in kernel._scratch(128_256, 1, widen=True))
    assert held <= 16 * 128_256


def test_without_numba_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "numba", None)
    with pytest.raises(BackendBroken, match=r"pip install 'refsampler\[cpu\]'"):
        resolve("cpu")


def test_a_fork_after_threads_draws_on_one_thread():
    # GNU's OpenMP ends a child that starts threads after its parent had some.
    script = (
        "import os, torch\n"
        "from refsampler.backends.cpu import CpuKernel\n"
        "from tests.kernel_calls import rows\n"
        "torch.set_num_threads(2)\n"
        "kernel, x = CpuKernel(), torch.zeros(64, 5000)\n"
        "kernel.draw(x, rows(64))\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    kernel.draw(x, rows(64))\n"
        "    os._exit(7)\n"
        "assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7\n"
    )
    subprocess.run([sys.executable, "-W", "ignore", "-c", script], check=True)


def test_only_deep_is_asked_for_tails_of_1e_9():
    assert min(required_grades(deep().capabilities.floor)) == 1e-9
    assert min(required_grades(CpuKernel().capabilities.floor)) == 1e-6
