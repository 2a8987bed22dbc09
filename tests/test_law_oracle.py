"""The law against a second reading of the clauses: one row at a time, in Python floats.

The oracle is a concrete engine: it breaks ties by a given order of the ids and keeps a list.  The
law must say of every order of the ids what that engine does: its core is what all orders keep, its
hull what some order keeps, and the tie class is the difference, of which every order keeps as many.
"""

import itertools
import math
from collections import Counter

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from refsampler.law import target_law
from refsampler.params import SamplingParams
from refsampler.request import PLACEHOLDER, Request
from refsampler.semantics import PROFILES, Scope, Semantics, Step

FILTERS = (Step.MIN_P, Step.TOP_K, Step.TOP_P)
MARGIN = 1e-3


class Engine:
    """One row, one order of the ids, all decisions with their margins."""

    def __init__(self, logits, request, semantics, tie_break):
        self.x = dict(enumerate(logits))
        self.request, self.semantics, self.tie_break = request, semantics, tie_break
        self.params = request.params
        self.kept = [v for v in self.x if self.x[v] > -math.inf]
        self.before_top_k = None
        self.margin = math.inf

    def run(self):
        for step in self.semantics.order:
            getattr(self, step.value)()
            self.kept = [v for v in self.kept if self.x[v] > -math.inf]
        return self

    def law(self):
        return self.softmax(self.kept)

    def softmax(self, ids):
        top = max((self.x[v] for v in ids), default=0.0)
        total = math.fsum(math.exp(self.x[v] - top) for v in ids)
        return {v: math.exp(self.x[v] - top) / total for v in ids}

    def ranked(self, ids):
        return sorted(ids, key=lambda v: (-self.x[v], self.tie_break.index(v)))

    def compare(self, a, b):
        """The sign of a - b, and how nearly it was another; equality is exact by construction."""
        if a != b:
            self.margin = min(self.margin, abs(a - b))
        return (a > b) - (a < b)

    def history(self, scope):
        output = [v for v in self.request.output if v != PLACEHOLDER]
        ids = (list(self.request.prompt) if scope is Scope.PROMPT_OUTPUT else []) + output
        window = self.semantics.window
        return Counter(ids if window is None else ids[-window:])

    def ban(self, ids):
        self.x |= dict.fromkeys(ids, -math.inf)

    def allowed(self):
        if self.params.allowed_token_ids is not None:
            self.ban(set(self.x) - set(self.params.allowed_token_ids))

    def bad_words(self):
        for *prefix, last in self.params.bad_words_token_ids:
            if not prefix or list(self.request.output[-len(prefix) :]) == prefix:
                self.ban([last])

    def min_tokens(self):
        if len(self.request.output) < self.params.min_tokens:
            self.ban(self.params.stop_token_ids)

    def logit_bias(self):
        for v, bias in self.params.logit_bias:
            self.x[v] += bias

    def repetition(self):
        r = self.params.repetition_penalty
        for v in self.history(self.semantics.repetition_scope):
            self.x[v] = self.x[v] / r if self.x[v] > 0 else self.x[v] * r

    def frequency(self):
        for v, count in self.history(self.semantics.count_scope).items():
            self.x[v] -= self.params.frequency_penalty * count

    def presence(self):
        for v in self.history(self.semantics.count_scope):
            self.x[v] -= self.params.presence_penalty

    def thinking(self):
        pass

    def temperature(self):
        self.x = {v: x / self.params.temperature for v, x in self.x.items()}

    def min_p(self):
        if self.params.min_p and self.kept:
            top = max(self.x[v] for v in self.kept)
            edge = math.log(self.params.min_p)
            self.kept = [v for v in self.kept if self.compare(self.x[v] - top, edge) >= 0]

    def top_k(self):
        self.before_top_k = self.kept
        k = self.params.top_k
        if not 0 < k < len(self.kept):
            return
        ranked = self.ranked(self.kept)
        if self.semantics.top_k_ties == "exactly_k":
            self.kept = ranked[:k]
        else:
            self.kept = [v for v in ranked if self.x[v] >= self.x[ranked[k - 1]]]

    def top_p(self):
        joint = self.semantics.top_p_mass == "joint" and self.before_top_k is not None
        base = self.before_top_k if joint else self.kept
        p = self.params.top_p
        if p >= 1 or not base:
            return
        probs = self.softmax(base)
        passing = []
        for place, v in enumerate(ranked := self.ranked(base)):
            if self.semantics.top_p_ties == "count":
                above = ranked[:place]
            else:
                above = [u for u in base if self.x[u] > self.x[v]]
            mass = math.fsum(probs[u] for u in above)
            sign = self.compare(mass, p) if above else -1
            strict = self.semantics.top_p_cut == "strict"
            if sign < 0 or (sign == 0 and not strict):
                passing.append(v)
        self.kept = [v for v in self.kept if v in passing]


VOCAB = 5
ids = st.integers(0, VOCAB - 1)
float32s = torch.tensor([0.05, 0.3, 0.45, 0.6, 0.7, 0.8, 0.9]).tolist()


@st.composite
def requests(draw):
    powers = st.sampled_from([0.5, 1.0, 2.0])
    params = SamplingParams(
        temperature=draw(st.sampled_from([0.5, 0.75, 1.0, 1.5, 2.0])),
        top_k=draw(st.integers(0, VOCAB)),
        top_p=draw(st.sampled_from([*float32s, 0.25, 0.5, 0.75, 1.0])),
        min_p=draw(st.sampled_from([0.0, 0.0, float32s[0], float32s[1], 1.0])),
        repetition_penalty=draw(powers),
        frequency_penalty=draw(st.sampled_from([0.0, 0.5, -0.25])),
        presence_penalty=draw(st.sampled_from([0.0, 0.25, -1.0])),
        logit_bias=tuple(draw(st.dictionaries(ids, st.sampled_from([-1.0, 0.5])).map(dict.items))),
        allowed_token_ids=draw(st.none() | st.sets(ids, min_size=1).map(tuple)),
        bad_words_token_ids=tuple(
            draw(st.lists(st.lists(ids, min_size=1, max_size=3).map(tuple), max_size=2))
        ),
        min_tokens=draw(st.integers(0, 3)),
        stop_token_ids=tuple(draw(st.sets(ids, max_size=2))),
    )
    output = st.lists(ids | st.just(PLACEHOLDER), max_size=4).map(tuple)
    return Request(params, draw(st.lists(ids, max_size=4).map(tuple)), draw(output))


# Few values, so that ties are common.
rows = st.lists(
    st.sampled_from([-math.inf, -1.0, 0.0, 0.5, 1.0, 2.0]), min_size=VOCAB, max_size=VOCAB
)
orders = st.builds(
    Semantics,
    order=st.permutations([Step.MIN_P, Step.TOP_K, Step.TOP_P, Step.TEMPERATURE]).map(
        lambda steps: (Step.BAD_WORDS, Step.FREQUENCY, *steps)
    ),
    top_k_ties=st.sampled_from(["all", "exactly_k"]),
    top_p_ties=st.sampled_from(["all", "count"]),
    top_p_cut=st.sampled_from(["strict", "inclusive"]),
    top_p_mass=st.sampled_from(["after_top_k", "joint"]),
    min_p_space=st.sampled_from(["probability", "logit"]),
    count_scope=st.sampled_from(list(Scope)),
    window=st.none() | st.integers(1, 3),
)


def check(logits, request, semantics):
    engines = [
        Engine(logits, request, semantics, order).run()
        for order in itertools.permutations(range(VOCAB))
    ]
    assume(min(engine.margin for engine in engines) > MARGIN)
    law = target_law(torch.tensor([logits]), [request], semantics)
    every = set.intersection(*(set(engine.kept) for engine in engines))
    some = set.union(*(set(engine.kept) for engine in engines))
    sizes = {len(engine.kept) for engine in engines}
    assert len(sizes) == 1
    assert law.valid.item() is bool(some)
    if not some:
        return
    assert law.exact.item()
    assert set_of(law.core) == every
    assert set_of(law.hull) == some == set_of(law.admissible)
    assert set_of(law.lumped) == some - every
    assert law.lump_count.item() == sizes.pop() - len(every)
    want = engines[0].law()
    for v in range(VOCAB):
        assert math.exp(law.logprobs[0, v]) == pytest.approx(
            want[v] if v in every else 0, abs=1e-12
        )
    lump = sum(mass for v, mass in want.items() if v not in every)
    assert math.exp(law.lump_logprob.item()) == pytest.approx(lump, abs=1e-12)


def set_of(mask):
    return set(mask[0].nonzero().flatten().tolist())


@pytest.mark.parametrize("semantics", PROFILES, ids=lambda semantics: semantics.profile)
@settings(max_examples=60)
@given(logits=rows, request=requests())
def test_profiles(logits, request, semantics):
    check(logits, request, semantics)


@settings(max_examples=300)
@given(logits=rows, request=requests(), semantics=orders)
def test_any_order_and_policy(logits, request, semantics):
    check(logits, request, semantics)
