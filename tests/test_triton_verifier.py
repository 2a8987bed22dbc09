"""The verifier's kernels, on the GPU or in Triton's interpreter, against float64 numpy."""

from dataclasses import replace

import numpy as np
import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed: not run")

from refsampler.backends.protocol import Verifier
from refsampler.backends.triton.verifier import TritonVerifier
from refsampler.metadata import SamplingMetadata
from refsampler.params import SamplingParams
from refsampler.request import PLACEHOLDER, Request
from tests.triton_oracle import Asked, invert, kept, philox, token

ON_GPU = torch.cuda.is_available()
if not ON_GPU:
    from triton.knobs import runtime

    if not runtime.interpret:
        pytest.skip("no GPU and triton was imported without TRITON_INTERPRET=1: not run", True)
    from tests.interpreting import patch_once

    patch_once()

verifier = TritonVerifier()
device = verifier.capabilities.device
VOCAB = 128256 if ON_GPU else 150
ACCEPT, RECOVER = 2, 4


def bits(seed, step, place, stream):
    r0, r1, _, _ = philox(seed % 2**64, (step & 0xFFFFFFFF, step >> 32, place, stream))
    return r0 << 32 | r1


def law(x, asked):
    """The target law of a row, in float64."""
    mass = kept(x, asked)[0]
    return mass / mass.sum()


def emitted(drafts, x, q, asked, seed):
    """What a seeded request emits, by the definition: min(1, p/q), then max(p - q, 0)."""
    greedy = asked.temperature < 1e-5
    for place, draft in enumerate(drafts):
        best = token(x[place], Asked(0.0), seed, 0)
        if greedy:
            if draft != best:
                return [*drafts[:place], best]
            continue
        p = law(x[place], asked)
        own = np.arange(len(p)) == draft if q is None else q[place] * (draft >= 0)
        u = (bits(seed, 0, place, ACCEPT) >> 11) / 2**53
        if draft < 0 or own[draft] <= 0 or u * own[draft] >= p[draft]:
            left = np.maximum(p - own, 0)
            left = left if left.any() else p
            return [*drafts[:place], invert(left, bits(seed, 0, place, RECOVER) / 2**64)]
    return [*drafts, token(x[len(drafts)], asked, seed, len(drafts))]


ASKED = [Asked(), Asked(0.7), Asked(0.0), Asked(1.5, k=20), Asked(k=9, p=0.7), Asked(p=0.8)]
SIZES = [2, 0, 3, 1, 2, 2]


def batch(seed, asked=ASKED, sizes=SIZES):
    """Logits, draft laws near the targets, and drafts from those; the last of some is none."""
    generator = torch.Generator().manual_seed(seed)
    rows = [torch.randn(size + 1, VOCAB, generator=generator) for size in sizes]
    near = [one[:-1] + 0.7 * torch.randn(one[:-1].shape, generator=generator) for one in rows]
    laws = [one.softmax(-1) for one in near]
    drafts = [
        [int(torch.multinomial(one, 1, generator=generator)) for one in part] for part in laws
    ]
    drafts[2][:2] = rows[2][:2].argmax(-1).tolist()
    if seed % 2:
        drafts[4][1] = PLACEHOLDER
    return rows, laws, drafts


def requests(drafts, asked=ASKED, seeds=(0, 1, 2, 3, 4, 5)):
    params = [
        SamplingParams(temperature=one.temperature, top_k=one.k, top_p=one.p, seed=seed)
        for one, seed in zip(asked, seeds, strict=True)
    ]
    return [Request(one, drafts=tuple(ids)) for one, ids in zip(params, drafts, strict=True)]


def verified(rows, laws, asked):
    """What the backend emits; laws None if the drafts are certain."""
    ids = torch.tensor([one for request in asked for one in request.drafts], dtype=torch.int32)
    probs = None if laws is None else torch.cat(laws).to(device)
    metadata = SamplingMetadata.from_requests(asked, VOCAB, device=device, speculative=True)
    given = ids.to(device), probs, torch.cat(rows).to(device), metadata
    return verifier.verify(*given).emitted()


def test_it_is_a_verifier():
    assert isinstance(verifier, Verifier)


@pytest.mark.clause("spec.law")
@pytest.mark.clause("spec.greedy")
@pytest.mark.parametrize("certain", [False, True])
@pytest.mark.parametrize("seed", range(40 if ON_GPU else 2))
def test_what_is_emitted_is_the_oracles(seed, certain):
    """Filtered and plain, greedy and random, without drafts and with a placeholder."""
    rows, laws, drafts = batch(seed)
    seeds = [7 * seed + row for row in range(len(ASKED))]
    found = verified(rows, None if certain else laws, requests(drafts, seeds=seeds))
    right = [
        emitted(ids, x.numpy(), None if certain else q.double().numpy(), one, own)
        for ids, x, q, one, own in zip(drafts, rows, laws, ASKED, seeds, strict=True)
    ]
    assert found == right


@pytest.mark.clause("seed.batch")
def test_a_request_emits_the_same_alone():
    rows, laws, drafts = batch(0)
    asked = requests(drafts)
    alone = [verified(rows[at : at + 1], laws[at : at + 1], asked[at : at + 1])[0] for at in (3, 4)]
    assert alone == verified(rows, laws, asked)[3:5]


@pytest.mark.clause("spec.degenerate")
def test_where_nothing_is_left_the_target_is_drawn():
    """p = q but for an id that q has twice as often: half of its rejections leave nothing."""
    p = torch.full((VOCAB,), 1e-9)
    p[3], p[5] = 2.0**-9, 1 - 2.0**-9
    q = p.clone()
    q[3] = 2.0**-8
    rows = [torch.stack([p.log(), p.log()])] * 4
    law_of = [q[None] * (1 + 2.0**-18)] * 4
    asked = requests([[3]] * 4, [Asked(k=2)] * 4, range(4))
    found = verified(rows, law_of, asked)
    accepted = [(bits(seed, 0, 0, ACCEPT) >> 11) / 2**53 < 0.5 for seed in range(4)]
    assert [len(ids) == 2 for ids in found] == accepted
    assert {*accepted} == {True, False}
    for seed, ids in enumerate(found):
        if not accepted[seed]:
            u = bits(seed, 0, 0, RECOVER) / 2**64
            assert ids == [3 if u < 2.0**-9 else 5]


def test_unseeded_requests_draw_afresh():
    rows, laws, drafts = batch(0)
    asked = [replace(one, params=replace(one.params, seed=None)) for one in requests(drafts)]
    torch.manual_seed(1)
    first, second = verified(rows, laws, asked), verified(rows, laws, asked)
    torch.manual_seed(1)
    assert verified(rows, laws, asked) == first
    assert first != second


def test_the_last_kernels_fit_any_number_of_drafts():
    """As many drafts of one request as are allowed, all the argmax but the last one."""
    rows = torch.randn(129, VOCAB, generator=torch.Generator().manual_seed(2))
    drafts = rows[:-1].argmax(-1).tolist()
    drafts[-1] = (drafts[-1] + 1) % VOCAB
    (one,) = requests([drafts], [Asked(0.0)], [1])
    assert verified([rows], None, [one]) == [rows[:-1].argmax(-1).tolist()]
