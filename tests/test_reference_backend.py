"""The reference as a subject: what its engine session adds to the sampler."""

import pytest
import torch

from refsampler.backends.protocol import BatchSampler, Engine
from refsampler.backends.reference import ReferenceEngine, ReferenceSampler
from refsampler.metadata import SamplingMetadata
from refsampler.params import SamplingParams
from refsampler.request import Request
from refsampler.sampler import Sampler
from refsampler.validation import ParameterError

V = 1000


def greedy(token):
    """A request whose bias alone decides."""
    return Request(SamplingParams(temperature=0, logit_bias=((token, 5.0),)))


def sampled(session, ids):
    output = session.sample(ids, torch.zeros(len(ids), V))
    return output.sampled_token_ids.flatten().tolist()


def test_both_follow_the_protocol():
    assert isinstance(ReferenceSampler(), BatchSampler)
    assert isinstance(ReferenceEngine(), Engine)


def test_the_order_of_ids_is_the_row_order_and_the_others_wait():
    session = ReferenceEngine().open(V, 0)
    for request_id, token in ((7, 70), (8, 80), (9, 90)):
        session.add(request_id, greedy(token))
    assert sampled(session, [9, 7]) == [90, 70]
    assert sampled(session, [8, 9, 7]) == [80, 90, 70]
    session.remove(9)
    assert sampled(session, [7]) == [70]
    session.remove(8)
    assert sampled(session, [7]) == [70]


def test_a_seeded_request_goes_on_where_it_was_while_it_waited():
    seeded = Request(SamplingParams(seed=4))
    metadata = SamplingMetadata.from_requests([seeded], V)
    sampler = Sampler()
    straight = [sampler(torch.zeros(1, V), metadata).sampled_token_ids.item() for _ in range(3)]
    session = ReferenceEngine().open(V, 0)
    session.add(1, seeded)
    session.add(2, greedy(3))
    seen = []
    for ids in ([1, 2], [2], [2, 1], [2], [1]):
        drawn = dict(zip(ids, sampled(session, ids), strict=True))
        session.accept(ids, [[drawn[one]] for one in ids])
        seen += [drawn[1]] if 1 in drawn else []
    assert seen == straight


def test_accepted_tokens_are_history_even_while_waiting():
    once = Request(SamplingParams(temperature=0, presence_penalty=1.0, logit_bias=((3, 0.5),)))
    session = ReferenceEngine().open(V, 0)
    session.add(1, once)
    session.add(2, greedy(5))
    assert sampled(session, [2]) == [5]
    session.accept([1], [[3]])
    assert sampled(session, [1]) == [0]


def test_a_refused_request_changes_nothing():
    session = ReferenceEngine().open(V, 0)
    session.add(1, greedy(70))
    with pytest.raises(ParameterError, match=r"allowed_token_ids = 1000"):
        session.add(2, Request(SamplingParams(allowed_token_ids=(V,))))
    assert sampled(session, [1]) == [70]
    with pytest.raises(ValueError, match="request_id = 1 is refused"):
        session.add(1, greedy(3))
    session.add(3, greedy(71))
    assert sampled(session, [1]) == [70]
    with pytest.raises(ValueError, match="id = 3 is refused"):
        session.add(3, greedy(3))


def test_sessions_with_one_seed_agree_and_leave_the_default_generator_alone():
    before = torch.random.get_rng_state()
    runs = []
    for seed in (1, 1, 2):
        session = ReferenceEngine().open(V, seed)
        session.add(0, Request())
        runs.append([sampled(session, [0]) for _ in range(4)])
        session.close()
    assert runs[0] == runs[1] != runs[2]
    # four equal draws of one id in 1,000: probability 1e-9
    assert len(set(map(tuple, runs[0]))) > 1
    assert torch.equal(before, torch.random.get_rng_state())


def test_a_closed_session_can_be_filled_again():
    session = ReferenceEngine().open(V, 0)
    session.add(0, greedy(1))
    session.close()
    session.add(0, greedy(2))
    assert sampled(session, [0]) == [2]
