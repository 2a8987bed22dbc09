"""The rejection sampler: walks worked by hand, an oracle with the same noise, and what is emitted."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from refsampler.drafts import draft_laws, propose
from refsampler.law import target_law
from refsampler.law_speculative import (
    acceptance_rate,
    emitted_given,
    emitted_pair,
    position_requests,
)
from refsampler.metadata import SamplingMetadata
from refsampler.params import SamplingParams
from refsampler.positions import all_positions, at_positions
from refsampler.processors import MinP
from refsampler.request import PLACEHOLDER, Request, ThinkingMarkers
from refsampler.sampler import Sampler
from refsampler.speculative import RejectionSampler, accepts, recover, walk_greedy, walk_random

INF = float("inf")
P = torch.tensor([0.1, 0.45, 0.45], dtype=torch.float64)
Q = torch.tensor([0.7, 0.25, 0.05], dtype=torch.float64)
ONES = torch.ones(3, dtype=torch.float64)


def request(drafts=(), output=(), prompt=(), **params):
    return Request(SamplingParams(**params), prompt=prompt, output=output, drafts=drafts)


def verify(requests, logits, probs=None, sampler=None, **batch):
    logits = torch.as_tensor(logits, dtype=torch.float32)
    metadata = SamplingMetadata.from_requests(requests, logits.shape[-1], speculative=True, **batch)
    ids = torch.tensor([token for one in requests for token in one.drafts], dtype=torch.int64)
    laws = None if probs is None else torch.as_tensor(probs, dtype=torch.float32)
    return RejectionSampler(sampler)(ids, laws, logits, metadata)


def peaks(*ids, vocab=8):
    """Rows that hold one id for certain."""
    return [[0.0 if token == one else -INF for token in range(vocab)] for one in ids]


def doubles(values):
    return torch.tensor(values, dtype=torch.float64)


def test_a_draft_is_accepted_with_probability_p_over_q():
    # p/q = 1/7 for id 0, and above 1 for the others
    assert accepts(0, P, Q, 0.1428)
    assert not accepts(0, P, Q, 0.1429)
    assert accepts(1, P, Q, 1 - 2**-53)


def test_an_id_without_target_mass_is_accepted_for_no_noise():
    assert not accepts(0, doubles([0, 1]), doubles([1, 0]), 0.0)


def test_what_cannot_have_been_drafted_is_not_accepted():
    assert not accepts(1, doubles([0, 1]), doubles([1, 0]), 0.0)
    assert not accepts(PLACEHOLDER, P, Q, 0.0)


@pytest.mark.parametrize(
    ("noise", "id_"), [([1, 1, 1], 2), ([1e-9, 1, 1], 2), ([1, 0.4, 1], 1), ([1, 0.6, 1], 2)]
)
def test_a_rejected_draft_is_replaced_from_the_positive_part(noise, id_):
    # p - q is (-.6, .2, .4): without id 0, and in a ratio that neither p nor q has
    assert recover(P, Q, doubles(noise)) == id_
    assert walk_random(
        (0, 1), P.expand(3, 3), Q.expand(2, 3), ONES[:2] * 0.99, doubles(noise), 0
    ) == (id_,)


def test_an_empty_residual_falls_back_to_the_target():
    p = doubles([0.0, 0.5, 0.5])
    over = doubles([0.004, 0.5, 0.5])
    assert recover(p, over, doubles([1e-9, 1, 0.5])) == 2
    assert recover(p, over, doubles([1e-9, 0.5, 1])) == 1


def test_the_bonus_follows_only_if_all_drafts_are_accepted():
    certain = torch.eye(3, dtype=torch.float64)
    assert walk_random((1, 2), certain[[1, 2, 0]], certain[[1, 2]], ONES[:2] * 0.9, ONES, 0) == (
        1,
        2,
        0,
    )
    assert walk_random((1, 2), certain[[1, 1, 0]], certain[[1, 2]], ONES[:2] * 0.9, ONES, 0) == (
        1,
        1,
    )
    assert walk_random((), P[None], Q[:0].reshape(0, 3), ONES[:0], ONES, 2) == (2,)


def test_a_greedy_walk_ends_at_the_first_other_argmax():
    best = torch.tensor([4, 5, 6, 7])
    assert walk_greedy((4, 5, 6), best, 7) == (4, 5, 6, 7)
    assert walk_greedy((4, 0, 6), best, 7) == (4, 5)
    assert walk_greedy((PLACEHOLDER, 5), best, 7) == (4,)
    assert walk_greedy((), best, 7) == (7,)


def test_position_j_is_judged_by_row_j():
    one = request(drafts=(2, 5, 1))
    assert verify([one], peaks(2, 5, 7, 3)).emitted() == [[2, 5, 7]]
    assert verify([one], peaks(2, 5, 1, 3)).emitted() == [[2, 5, 1, 3]]


def test_disjoint_laws_emit_the_target():
    one = request(drafts=(0,))
    assert verify([one], peaks(2, 4), [[1.0, *[0.0] * 7]]).emitted() == [[2]]


def test_cells_behind_the_last_id_are_placeholders_whatever_others_emit():
    requests = [
        request(drafts=(1, 2)),
        request(),
        request(drafts=(3,), temperature=0),
        request(drafts=(4, 4, 4)),
    ]
    rows = peaks(1, 5, 6, 7, 2, 1, 4, 4, 4, 0)
    output = verify(requests, rows)
    assert output.token_ids.dtype is torch.int32
    assert output.token_ids.tolist() == [
        [1, 5, -1, -1],
        [7, -1, -1, -1],
        [2, -1, -1, -1],
        [4, 4, 4, 0],
    ]
    assert output.valid.tolist() == [True] * 4


def test_a_batch_without_drafts_is_plain_decoding():
    logits = torch.randn(3, 9, generator=torch.Generator().manual_seed(3))
    requests = [request(temperature=0), request(seed=5), request(seed=6, top_k=3)]
    metadata = SamplingMetadata.from_requests(requests, 9)
    plain = Sampler()(logits, metadata).sampled_token_ids
    assert torch.equal(verify(requests, logits).token_ids, plain)


def test_no_requests():
    output = verify([], torch.zeros(0, 5))
    assert output.token_ids.shape == (0, 1)
    assert output.emitted() == []


def test_a_placeholder_is_no_draft():
    one = request(drafts=(PLACEHOLDER, 3), temperature=0)
    assert verify([one], peaks(6, 3, 1)).emitted() == [[6]]
    law = draft_laws(torch.tensor([PLACEHOLDER, 1]), torch.eye(3)[[2, 1]], 3)
    assert law.tolist() == [[0, 0, 0], [0, 1, 0]]
    # hence the residual is the whole target
    assert recover(P, law[0], doubles([1, 0.4, 0.5])) == 1


def test_a_hundred_and_twenty_eight_drafts_and_no_more():
    ids = tuple(range(1, 129))
    rows = peaks(*ids, 0, vocab=130)
    assert verify([request(drafts=ids)], rows).emitted() == [[*ids, 0]]
    with pytest.raises(ValueError, match="drafts = '129 ids' is refused: allowed is at most 128"):
        verify([request(drafts=(*ids, 0))], peaks(*ids, 0, 1, vocab=130))


# positions: output (0), then drafts 1, 1 and 2; logits are 0 everywhere, the rule acts on histories


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        # x - f c: id 1 was drafted never, once, twice before
        (
            {"frequency_penalty": 1.0},
            [[-1, 0, 0, 0], [-1, -1, 0, 0], [-1, -2, 0, 0], [-1, -2, -1, 0]],
        ),
        (
            {"presence_penalty": 1.0},
            [[-1, 0, 0, 0], [-1, -1, 0, 0], [-1, -1, 0, 0], [-1, -1, -1, 0]],
        ),
        # (1, 1, 2) is complete only behind both drafts 1
        (
            {"bad_words_token_ids": ((1, 1, 2), (2, 0))},
            [[0, 0, 0, 0], [0, 0, 0, 0], [0, 0, -INF, 0], [-INF, 0, 0, 0]],
        ),
        # one id exists, so two more come before a stop
        (
            {"min_tokens": 3, "stop_token_ids": (3,)},
            [[0, 0, 0, -INF], [0, 0, 0, -INF], [0, 0, 0, 0], [0, 0, 0, 0]],
        ),
        # and the bonus position counts its drafts too
        (
            {"min_tokens": 4, "stop_token_ids": (3,)},
            [[0, 0, 0, -INF], [0, 0, 0, -INF], [0, 0, 0, -INF], [0, 0, 0, 0]],
        ),
        ({"allowed_token_ids": (1, 2)}, [[-INF, 0, 0, -INF]] * 4),
    ],
)
def test_histories_at_draft_positions(params, expected):
    one = request(drafts=(1, 1, 2), output=(0,), **params)
    metadata = SamplingMetadata.from_requests([one], 4, speculative=True)
    positions = at_positions(metadata, all_positions([one.drafts]))
    assert Sampler().process(torch.zeros(4, 4), positions).tolist() == expected
    assert positions.steps == [0, 1, 2, 3]
    # and the ordinary sampler's bonus row is the last of them
    greedy = request(drafts=one.drafts, output=(0,), temperature=0, logprobs=-1, **params)
    output = Sampler("processed_logits")(
        torch.zeros(1, 4),
        SamplingMetadata.from_requests([greedy], 4, speculative=True),
        predict_bonus_token=True,
    )
    assert output.logprobs_tensors is not None
    assert sorted(output.logprobs_tensors.logprobs[0, 1:].tolist()) == sorted(expected[-1])


def test_a_repetition_penalty_at_draft_positions():
    one = request(drafts=(1, 2), prompt=(3,), repetition_penalty=2.0, temperature=0)
    # 4 4 4 8: halved where an id of prompt, output or earlier draft
    output = verify([one], [[4.0, 6, 4, 8], [4, 6, 5, 8], [4, 6, 5, 8]])
    # 4 6 4 4 -> 1 accepted; 4 3 5 4 -> 2 accepted; 4 3 2.5 4 -> 0, the lowest of two
    assert output.emitted() == [[1, 2, 0]]


def test_a_thinking_budget_ends_at_a_draft_position():
    markers = ThinkingMarkers((6,), (7,))
    one = request(drafts=(1, 2, 3), prompt=(6,), temperature=0, thinking_token_budget=2)
    # two ids are thought, then the end is forced in place of draft 3
    assert verify([one], peaks(1, 2, 3, 4), thinking=markers).emitted() == [[1, 2, 7]]
    ended = request(drafts=(1, 2, 7), prompt=(6,), temperature=0, thinking_token_budget=2)
    assert verify([ended], peaks(1, 2, 3, 4), thinking=markers).emitted() == [[1, 2, 7, 4]]
    random = request(drafts=(1, 2, 7), prompt=(6,), thinking_token_budget=2)
    assert verify([random], peaks(1, 2, 3, 4), thinking=markers).emitted() == [[1, 2, 7, 4]]


def test_requests_that_speculation_refuses():
    for params in ({"min_p": 0.1}, {"logit_bias": ((1, 1.0),)}):
        with pytest.raises(ValueError, match="speculative"):
            verify([request(**params)], torch.zeros(1, 3))
        metadata = SamplingMetadata.from_requests([request(**params)], 3)
        with pytest.raises(ValueError, match="made for speculative decoding"):
            RejectionSampler()(torch.zeros(0, dtype=torch.int64), None, torch.zeros(1, 3), metadata)
    with pytest.raises(ValueError, match="custom"):
        verify([request()], torch.zeros(1, 3), custom=[MinP])


@pytest.mark.parametrize(
    ("ids", "probs", "rows", "message"),
    [
        (
            [1],
            None,
            3,
            r"draft_ids = \[1\] is refused: allowed is spec_token_ids in a row, \[1, 2\]",
        ),
        ([2, 1], None, 3, "draft_ids"),
        ([1, 2], None, 2, r"logits.shape = \(2, 4\) is refused: allowed is \(3, 4\)"),
        (
            [1, 2],
            [[1.0, 0, 0, 0]],
            3,
            r"draft_probs.shape = \(1, 4\) is refused: allowed is \(2, 4\)",
        ),
        ([1, 2], [[1.0, 0, 0, 0], [4.0, 2, 1, 1]], 3, "probabilities that sum to 1"),
        ([1, 2], [[1.0, 0, 0, 0], [2.0, -1, 0, 0]], 3, "probabilities that sum to 1"),
        ([1, 2], [[1.0, 0, 0, 0], [math.nan, 1, 0, 0]], 3, "probabilities that sum to 1"),
    ],
)
def test_what_does_not_fit_together_is_refused(ids, probs, rows, message):
    metadata = SamplingMetadata.from_requests([request(drafts=(1, 2))], 4, speculative=True)
    laws = None if probs is None else torch.tensor(probs)
    with pytest.raises(ValueError, match=message):
        RejectionSampler()(torch.tensor(ids), laws, torch.zeros(rows, 4), metadata)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_row_without_a_law_gives_an_id_in_range_and_leaves_others_alone(temperature):
    one = request(drafts=(1,), temperature=temperature)
    rows = [*peaks(1, 2, vocab=4), [math.nan] * 4, *peaks(3, vocab=4), *[[-INF] * 4] * 2]
    output = verify([one, one, one], rows)
    assert output.valid.tolist() == [True, False, False]
    assert output.emitted()[0] == [1, 2]
    assert all(0 <= token < 4 for ids in output.emitted() for token in ids)


def test_logprobs_of_every_position():
    requests = [request(drafts=(1, 2), logprobs=1, temperature=0), request(logprobs=1)]
    logits = torch.tensor([[0.0, 3, 1], [2, 0, 1], [9, 9, 9], [0, -INF, -INF]])
    tensors = verify(requests, logits).logprobs_tensors
    # draft 1 is accepted, draft 2 replaced by 0; position 2 emits nothing
    assert tensors.logprob_token_ids[:, 0].tolist() == [1, 0, 0, 0]
    expected = logits.log_softmax(-1)[range(4), [1, 0, 0, 0]]
    assert torch.equal(tensors.logprobs[:, 0], expected)
    assert tensors.selected_token_ranks.tolist() == [1, 1, 3, 1]
    assert verify([request()], logits[:1]).logprobs_tensors is None


# the oracle: plain numpy, one request at a time, fed with the noise of the request's generator


def oracle(one, logits, probs, seed):
    """Emit the ids of a seeded request in the order of its noise: bonus race, uniforms, race."""
    generator = torch.Generator().manual_seed(seed)
    vocab, count = logits.shape[-1], len(one.drafts)

    def exponential():
        return torch.empty(vocab, dtype=torch.float64).exponential_(generator=generator).numpy()

    bonus_noise = exponential()
    uniforms = torch.rand(count, dtype=torch.float64, generator=generator).numpy()
    noise = exponential()
    targets = [
        oracle_law(row, [*one.output, *one.drafts[:place]], one.params)
        for place, row in enumerate(logits)
    ]
    for place, draft in enumerate(one.drafts):
        p, q = targets[place], probs[place].astype(np.float64)
        if uniforms[place] >= p[draft] / q[draft]:
            return [*one.drafts[:place], int(np.argmax(np.maximum(p - q, 0) / noise))]
    return [*one.drafts, int(np.argmax(targets[count] / bonus_noise))]


def oracle_law(logits, history, params):
    x = logits.astype(np.float64)
    for token in set(history):
        x[token] -= params.presence_penalty + params.frequency_penalty * history.count(token)
    x = x / np.float64(np.float32(params.temperature))
    if params.top_k:
        x[x < np.sort(x)[-params.top_k]] = -np.inf
    weights = np.exp(x - x.max())
    return weights / weights.sum()


def test_seeded_requests_against_numpy_alone_and_together():
    """Exact: 40 requests, each compared id by id; a wrong order of noise shows at once."""
    rng = np.random.default_rng(7)
    vocab = 11
    requests: list[Request] = []
    rows: list[np.ndarray] = []
    laws: list[np.ndarray] = []
    expected: list[list[int]] = []
    for seed in range(40):
        count = int(rng.integers(1, 6))
        law = rng.dirichlet(np.ones(vocab), size=count).astype(np.float32)
        drafts = tuple(int(rng.choice(vocab, p=one / one.sum())) for one in law.astype(float))
        one = request(
            drafts,
            output=tuple(int(v) for v in rng.integers(0, vocab, 3)),
            seed=seed,
            temperature=float(rng.choice([0.5, 1.0, 1.5])),
            top_k=int(rng.choice([0, 4])),
            presence_penalty=0.5,
            frequency_penalty=0.25,
        )
        # near their drafts' laws, so that some drafts are accepted
        logits = np.log(np.concatenate([law, law[:1]]) + 0.02).astype(np.float32)
        expected.append(oracle(one, logits, law, seed))
        requests, rows, laws = [*requests, one], [*rows, logits], [*laws, law]
        assert verify([one], logits, law).emitted() == expected[-1:]
    together = verify(requests, np.concatenate(rows), np.concatenate(laws))
    assert together.emitted() == expected
    lengths = {len(ids) - 1 - len(one.drafts) for ids, one in zip(expected, requests, strict=True)}
    assert 0 in lengths  # some walks reach their bonus
    assert len(lengths) > 2  # and others end at several places


# laws


def test_the_exact_law_of_two_tokens_by_hand():
    second = doubles([[1, 0, 0], [0, 0.5, 0.5], [0.25, 0.25, 0.5]])
    assert float(acceptance_rate(P, Q)) == pytest.approx(0.1 + 0.25 + 0.05)
    joint = emitted_pair(P, Q, second)
    expected = [
        [0.1, 0, 0, 0],
        [0, 0.125, 0.125, 0.2],
        [0.0125, 0.0125, 0.025, 0.4],
    ]
    assert joint.tolist() == [pytest.approx(row) for row in expected]
    assert joint.sum(-1).tolist() == pytest.approx(P.tolist())


def test_the_law_given_a_draft_by_hand():
    # 1/7 accepted; the rest goes to ids 1 and 2 as 1 : 2
    assert emitted_given(0, P, Q).tolist() == pytest.approx([1 / 7, 2 / 7, 4 / 7])
    assert emitted_given(2, P, Q).tolist() == pytest.approx([0, 0, 1])
    assert emitted_given(0, P, P).tolist() == pytest.approx([1, 0, 0])
    over = doubles([0.2, 0.45, 0.45])
    assert emitted_given(0, P, over).tolist() == pytest.approx([0.55, 0.225, 0.225])


def test_the_law_given_a_draft_averages_to_the_target():
    generator = torch.Generator().manual_seed(1)
    for _ in range(20):
        p, q = torch.rand(2, 6, generator=generator, dtype=torch.float64)
        p, q = p / p.sum(), q / q.sum()
        given = torch.stack([emitted_given(token, p, q) for token in range(6)])
        assert (q @ given).tolist() == pytest.approx(p.tolist(), abs=1e-14)


def test_positions_as_requests():
    one = request(drafts=(4, 5), output=(3,))
    assert [
        (each.output, each.drafts) for each in position_requests([one, request(output=(1,))])
    ] == [
        ((3,), ()),
        ((3, 4), ()),
        ((3, 4, 5), ()),
        ((1,), ()),
    ]


@pytest.mark.statistical
def test_joint_law_of_two_tokens_end_to_end():
    """False alarm <= 1e-9 (exact binomial tests, Bonferroni over 12 cells and the acceptance).

    A recovery with the draft's own noise moves 6 % of the mass between two cells' sums, 11 standard
    deviations of 8000 steps; the penalty moves as much if the second position forgets the first id.
    """
    steps = 8000
    torch.manual_seed(29)
    metadata = SamplingMetadata.from_requests([request()] * steps, 3)
    proposed = propose(Sampler(), Q.log().float().expand(steps, 3), metadata)
    requests = [request((token,), presence_penalty=1.0) for token in proposed.ids.tolist()]
    logits = P.log().float().expand(2 * steps, 3)
    output = verify(requests, logits, proposed.probs)
    behind = [request(output=(token,), presence_penalty=1.0) for token in range(3)]
    joint = emitted_pair(P, Q, target_law(logits[:3], behind).logprobs.exp())
    first = output.token_ids[:, 0].long()
    second = output.token_ids[:, 1].long() % 4  # nothing behind is the last column
    counts = (first * 4 + second).bincount(minlength=12).tolist()
    cells = [*zip(counts, joint.flatten().tolist(), strict=True)]
    cells.append((int((second < 3).sum()), float(acceptance_rate(P, Q))))
    for count, p in cells:
        assert stats.binomtest(count, steps, min(p, 1.0)).pvalue > 1e-9 / len(cells)


def test_a_greedy_draft_is_certain_and_a_random_one_tells_its_filtered_law():
    logits = torch.tensor([[0.0, 3, 1], [0, 3, 1]])
    requests = [request(temperature=0), request(top_k=2)]
    proposed = propose(Sampler(), logits, SamplingMetadata.from_requests(requests, 3))
    assert proposed.ids[0] == 1
    assert proposed.probs[0].tolist() == [0, 1, 0]
    e = math.exp(-2)
    assert proposed.probs[1].tolist() == pytest.approx([0, 1 / (1 + e), e / (1 + e)])
