"""The Triton kernels, on the GPU or in Triton's interpreter, against float64 numpy."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed: not run")

from refsampler.backends.protocol import Feature, Fold, Kernel, Rows
from refsampler.backends.triton.device.nucleus import OPEN, WHOLE
from refsampler.backends.triton.device.top_k import PLATEAU
from refsampler.backends.triton.geometry import INTERPRETED, TUNED, Geometry
from refsampler.backends.triton.kernel import TritonKernel
from tests.triton_oracle import Asked, philox, token

ON_GPU = torch.cuda.is_available()
VOCAB = 128256 if ON_GPU else 300
COPIES = 8 if ON_GPU else 1
INF, NAN = float("inf"), float("nan")

if not ON_GPU:
    from triton.knobs import runtime

    if not runtime.interpret:
        pytest.skip("no GPU and triton was imported without TRITON_INTERPRET=1: not run", True)
    from tests.interpreting import patch_once

    patch_once()

kernel = TritonKernel()
device = kernel.capabilities.device


def column(values, dtype, off):
    """A parameter of each row; None if no row asks for it."""
    if all(value == off for value in values):
        return None
    return torch.tensor(values, dtype=dtype, device=device)


def rows(asked, seeds, steps=None):
    """The rows as the pipeline hands them over, all of them seeded."""
    steps = [0] * len(asked) if steps is None else steps
    return Rows(
        top_k=column([one.k for one in asked], torch.int32, 0),
        top_p=column([one.p for one in asked], torch.float32, 1.0),
        temperature=column([one.temperature for one in asked], torch.float32, 1.0),
        min_p=column([one.min_p for one in asked], torch.float32, 0.0),
        seed=torch.tensor(seeds, dtype=torch.int64, device=device),
        step=torch.tensor(steps, dtype=torch.int64, device=device),
        seeded=torch.ones(len(asked), dtype=torch.bool, device=device),
        generators={row: torch.Generator() for row in range(len(asked))},
    )


def drawn(logits, asked, seeds, steps=None, by=kernel):
    return by.draw(logits.to(device), rows(asked, seeds, steps)).ids.tolist()


def expected(logits, asked, seeds, steps=None):
    steps = [0] * len(asked) if steps is None else steps
    x = logits.float().numpy()
    return [token(*one) for one in zip(x, asked, seeds, steps, strict=True)]


def bell(count, vocab=VOCAB, seed=0, sigma=1.0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, vocab, generator=generator) * sigma


def tied(count, vocab=VOCAB, seed=0):
    return (bell(count, vocab, seed) * 2).round() / 2


def sparse(count, vocab=VOCAB, seed=0):
    x = torch.full((count, vocab), -INF)
    for row, one in enumerate(bell(count, 40, seed)):
        x[row, (torch.arange(40) * 6197 + row) % vocab] = one
    return x


def level(count, vocab=VOCAB, seed=0):
    """Rows of which a sixth shares the largest value."""
    return bell(count, vocab, seed).clamp(max=1.0)


FILTERS = {
    "none": [Asked(), Asked(temperature=0.7), Asked(temperature=0.0)],
    "k": [Asked(k=1), Asked(k=7), Asked(0.5, k=20), Asked(1.5, k=60), Asked(k=200)],
    "k and p": [Asked(k=9, p=0.5), Asked(2.0, k=50, p=0.9), Asked(k=150, p=0.95)],
    "p": [Asked(p=0.9), Asked(0.7, p=0.5), Asked(p=0.02), Asked(p=0.7), Asked(0.0, p=0.5)],
    "min-p": [Asked(min_p=0.2), Asked(0.5, min_p=0.05, k=4), Asked(min_p=0.01, p=0.6)],
}
# Rows of each kind; in the interpreter, where a row takes a tenth of a second, every other one.
FILTERS["mixed"] = [
    one for name in ("none", "k", "p", "min-p") for one in FILTERS[name][:: 1 if ON_GPU else 2]
]


def test_philox_gives_the_published_numbers():
    assert philox(0, (0, 0, 0, 0)) == (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)
    ones = 2**32 - 1
    assert philox(2**64 - 1, (ones,) * 4) == (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)


def test_it_is_a_kernel_that_declares_what_it_does():
    assert isinstance(kernel, Kernel)
    assert kernel.capabilities.folds == frozenset(Fold)
    assert {Feature.SEED, Feature.BITWISE} <= kernel.capabilities.features


@pytest.mark.clause("top-k.keep")
@pytest.mark.clause("top-p.keep")
@pytest.mark.parametrize("shape", [bell, tied, sparse, level], ids=lambda one: one.__name__)
@pytest.mark.parametrize("filters", FILTERS)
def test_ids_are_the_oracles(filters, shape):
    """A filter that keeps one id too many or too few moves the ids of most seeds behind it."""
    asked = FILTERS[filters] * COPIES
    seeds = [11 * row - 5 for row in range(len(asked))]
    steps = [row % 3 * 2**31 for row in range(len(asked))]
    logits = shape(len(asked), seed=len(filters))
    assert drawn(logits, asked, seeds, steps) == expected(logits, asked, seeds, steps)


@pytest.mark.clause("input.layout")
@pytest.mark.parametrize("vocab", [1, 2, 31, 65])
def test_small_vocabularies(vocab):
    asked = [Asked(), Asked(k=3), Asked(p=0.6), Asked(min_p=0.5), Asked(k=2, p=0.3), Asked(0.0)]
    logits = bell(len(asked), vocab)
    seeds = list(range(len(asked)))
    assert drawn(logits, asked, seeds) == expected(logits, asked, seeds)
    for one in asked:
        assert drawn(logits[:1], [one], [4]) == expected(logits[:1], [one], [4])


@pytest.mark.clause("seed.batch")
def test_a_row_draws_the_same_alone_and_whatever_its_neighbours_ask():
    asked = FILTERS["mixed"]
    logits, seeds = tied(len(asked), seed=5), list(range(len(asked)))
    together = drawn(logits, asked, seeds)
    order = list(range(len(asked)))[::-1]
    backwards = drawn(logits[order], [asked[row] for row in order], [seeds[row] for row in order])
    assert backwards[::-1] == together
    alone = order[:: 1 if ON_GPU else 2]
    ids = [drawn(logits[row : row + 1], [asked[row]], [row])[0] for row in alone]
    assert ids == [together[row] for row in alone]


@pytest.mark.clause("seed.batch")
def test_ids_do_not_depend_on_the_size_of_blocks():
    other = Geometry(
        mass_chunk=8,
        mass_rows=4,
        top_chunk=4,
        top_rows=8,
        reopened=4,
        candidates=256,
        ranked=64,
        lanes=4,
        above_tile=(8, 2),
        level_tile=(2, 32),
        rounds_tile=(4, 8),
        rounds_beside=(8, 2),
        rest_block=512,
    )
    if ON_GPU:
        other = Geometry(
            top_chunk=32,
            top_rows=128,
            reopened=16,
            above_tile=(4, 8),
            level_tile=(8, 256),
            rounds_tile=(4, 4),
            rounds_beside=(2, 8),
            rest_block=2048,
            rest_warps=4,
        )
    asked = [one for one in FILTERS["mixed"] if one.k != 200]
    logits, seeds = bell(len(asked), seed=8), list(range(len(asked)))
    resized = TritonKernel(geometry=other)
    assert drawn(logits, asked, seeds, by=resized) == drawn(logits, asked, seeds)


@pytest.mark.clause("input.dtypes")
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_widened(dtype):
    asked = FILTERS["k"][1:4] + FILTERS["p"][:2] + FILTERS["none"]
    logits, seeds = bell(len(asked)).to(dtype), list(range(len(asked)))
    assert drawn(logits, asked, seeds) == expected(logits, asked, seeds)


@pytest.mark.clause("input.layout")
def test_strided_rows_and_ids():
    asked = FILTERS["mixed"][:6]
    logits, seeds = bell(len(asked)), list(range(len(asked)))
    right = expected(logits, asked, seeds)
    wide = torch.full((len(asked), VOCAB + 5), 9.0)
    wide[:, 3 : VOCAB + 3] = logits
    assert drawn(wide[:, 3 : VOCAB + 3], asked, seeds) == right
    columns = logits.t().contiguous().to(device).t()
    assert columns.stride(1) != 1
    assert kernel.draw(columns, rows(asked, seeds)).ids.tolist() == right
    assert drawn(logits[:1].expand(3, -1), asked[:3], [1, 2, 3]) == expected(
        logits[:1].expand(3, -1), asked[:3], [1, 2, 3]
    )


@pytest.mark.clause("input.untouched")
def test_the_callers_logits_stay():
    asked = FILTERS["mixed"][:: 1 if ON_GPU else 3]
    logits = bell(len(asked)).to(device)
    before = logits.clone()
    kernel.draw(logits, rows(asked, list(range(len(asked)))))
    assert torch.equal(logits, before)


@pytest.mark.clause("nonfinite.contained")
@pytest.mark.parametrize("asked", [Asked(), Asked(k=3), Asked(p=0.9), Asked(min_p=0.1), Asked(0.0)])
def test_nan_and_infinities_stay_in_their_row(asked):
    logits = bell(6)
    logits[1] = NAN
    logits[2, 7] = NAN
    logits[3, 17] = INF
    logits[4] = -INF
    seeds = list(range(6))
    right = expected(logits, [asked] * 6, seeds)
    assert right[1] == right[4] == 0
    assert right[3] == 17
    assert drawn(logits, [asked] * 6, seeds) == right


@pytest.mark.clause("input.extreme")
def test_extreme_numbers():
    logits = torch.full((3, VOCAB), -65504.0)
    logits[:, 5] = 65504.0
    logits[1, 9] = 65504.0
    asked = [Asked(1e-5, k=4, p=0.9), Asked(1e-5), Asked(2.0, p=0.5)]
    for seed in range(3):
        ids = drawn(logits, asked, [seed] * 3)
        assert ids[0] == ids[2] == 5
        assert ids[1] in (5, 9)


@pytest.mark.clause("output.form")
def test_no_rows_give_no_ids():
    empty = kernel.draw(torch.empty(0, 5, device=device), rows([], []))
    assert empty.ids.shape == (0,)
    assert empty.ids.dtype == torch.int32


def test_what_the_kernels_would_misread_is_refused():
    with pytest.raises(TypeError, match=r"float64.*bfloat16, float16, float32"):
        kernel.draw(torch.zeros(1, 4, dtype=torch.float64), rows([Asked()], [0]))
    with pytest.raises(ValueError, match=r"logits.shape = \(4,\)"):
        kernel.draw(torch.zeros(4), rows([Asked()], [0]))
    with pytest.raises(ValueError, match=r"top_k.shape = \(2,\)"):
        kernel.draw(torch.zeros(1, 4), rows([Asked(k=1)] * 2, [0, 0]))


@pytest.mark.clause("seed.effect")
def test_unseeded_rows_take_fresh_keys_from_torchs_generator():
    asked, logits = [Asked()] * 4, torch.zeros(4, VOCAB, device=device)
    bare = rows(asked, [0] * 4)
    unseeded = Rows(
        bare.top_k,
        bare.top_p,
        bare.temperature,
        bare.min_p,
        bare.seed,
        bare.step,
        torch.tensor([True, False, False, False], device=device),
        {0: torch.Generator()},
    )
    torch.manual_seed(1)
    first, second = (kernel.draw(logits, unseeded).ids.tolist() for _ in range(2))
    torch.manual_seed(1)
    assert kernel.draw(logits, unseeded).ids.tolist() == first
    assert first[0] == second[0] == expected(torch.zeros(1, VOCAB), [Asked()], [0])[0]
    assert len({*first[1:], *second[1:]}) == 6


@pytest.mark.gpu
@pytest.mark.clause("independence.calls")
@pytest.mark.skipif(not ON_GPU, reason="CUDA graphs need a GPU: not run")
@pytest.mark.parametrize("asked", [Asked(), Asked(k=50, p=0.9), Asked(p=0.9), Asked(k=50)])
def test_a_replayed_graph_draws_afresh_and_follows_the_step(asked):
    logits = torch.zeros(8, VOCAB, device=device) if asked == Asked() else bell(8).to(device)
    given = rows([asked] * 8, list(range(8)))
    seeded = torch.arange(8, device=device) < 4
    half = Rows(
        given.top_k, given.top_p, given.temperature, given.min_p, given.seed, given.step,
        seeded, {row: torch.Generator() for row in range(4)},
    )  # fmt: skip
    kernel.draw(logits, half)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        ids = kernel.draw(logits, half).ids
    seen = []
    for step in range(3):
        half.step.fill_(step)
        graph.replay()
        seen.append(ids.tolist())
        right = expected(logits.cpu(), [asked] * 8, list(range(8)), [step] * 8)
        assert seen[-1][:4] == right[:4]
    assert len(np.unique([one[4:] for one in seen], axis=0)) == 3


@pytest.mark.parametrize(
    ("shape", "asked", "left"),
    [
        (bell, Asked(k=3), lambda todo: todo == 0),
        (level, Asked(k=9), lambda todo: todo == PLATEAU.value),
        (bell, Asked(k=200 * 200 if ON_GPU else 200), lambda todo: todo == WHOLE.value),
        (bell, Asked(p=0.9), lambda todo: todo == 0),
    ],
)
def test_the_examples_meet_every_path(shape, asked, left):
    """Ranked at once, a plateau, the whole row, a proposal taken."""
    logits = shape(8, seed=3)
    assert drawn(logits, [asked] * 8, list(range(8))) == expected(
        logits, [asked] * 8, list(range(8))
    )
    assert any(left(todo) for todo in kernel.left_over().tolist())


@pytest.mark.clause("top-p.keep")
@pytest.mark.parametrize("beside", [False, True])
def test_what_lies_too_near_the_edge_for_float32_is_summed_in_integers(beside):
    """Half of the ids has twice the mass of the others: at p = 2/3 these begin to be kept."""
    count = 8 * COPIES
    logits = torch.zeros(count, VOCAB)
    logits[:, 1::2] = -math.log(2)
    asked = [Asked(p=2 / 3 + (-1) ** row * 8e-7) for row in range(count)]
    if beside:
        asked[-1] = Asked(k=3)
    ids = drawn(logits, asked, list(range(count)))
    assert ids == expected(logits, asked, list(range(count)))
    assert any(one % 2 for one in ids[::2])
    assert not any(one % 2 for one in ids[1::2])
    # Alone, only a row of which some proposal lies near the edge.
    assert (WHOLE if beside else OPEN).value in kernel.left_over().tolist()


@pytest.mark.clause("top-p.keep")
def test_a_row_whose_proposals_all_fell_outside_is_searched():
    """Two rounds only: their draws miss a nucleus of a few ids nearly always."""
    once = TritonKernel(geometry=replace(TUNED if ON_GPU else INTERPRETED, rounds=2))
    asked = [Asked(p=0.001), Asked(p=0.005), Asked(2.0, p=0.01), Asked(0.5, p=0.002)]
    logits, seeds = bell(4, seed=2), [3, 4, 5, 6]
    right = [
        token(x, one, seed, 0, rounds=2)
        for x, one, seed in zip(logits.numpy(), asked, seeds, strict=True)
    ]
    assert drawn(logits, asked, seeds, by=once) == right
    assert OPEN.value in once.left_over().tolist()
