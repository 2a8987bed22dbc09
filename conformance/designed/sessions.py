"""Sessions: requests that come, move, wait and leave, each with an id that only it may get.

A row has four live ids of clearly different value; which one wins depends on the request's own
parameters and history, by 60 nats at T = 2^-9 or as an argmax, and in numbers that are exact.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from refsampler.backends.protocol import Feature
from refsampler.conformance.case import Case, SessionStep
from refsampler.conformance.designed.build import Row, batch, flat, request, row
from refsampler.conformance.logits import RowRecipe
from refsampler.request import Request

__all__ = [
    "VOCAB",
    "Script",
    "asks",
    "constraint_cases",
    "grown",
    "history_cases",
    "logprobs_cases",
    "member",
    "move_cases",
    "preempt_cases",
    "seed_cases",
]

VOCAB = 64
_COLD = 2.0**-9
_WARM = 2.0
_VALUES = (4.0, 3.0, 2.25, 1.25)
_FILTERS: dict[str, dict[str, Any]] = {
    "top-k": {"top_k": 1},
    "top-p": {"top_p": 0.05},
    "min-p": {"min_p": 0.75},
}
"""Each leaves the best id alone, which a row without its filter gives in 7 % of draws."""


class Script:
    """Writes down the steps of a session; rows and requests follow from what was written.

    Attributes:
        running: the members in it, by id.

    """

    def __init__(self, vocab: int = VOCAB) -> None:
        self.running: dict[int, Row] = {}
        self._vocab = vocab
        self._rows: list[Row] = []
        self._steps: list[SessionStep] = []
        self._leaving: list[int] = []

    def add(self, name: int, member: Row) -> None:
        """Let a request in; the engine learns of it when it is first sampled."""
        self.running[name] = member

    def remove(self, name: int) -> None:
        """Let a request go before the next step."""
        del self.running[name]
        self._leaving.append(name)

    def step(self, ids: Sequence[int], tokens: Mapping[int, tuple[int, ...]] | None = None) -> None:
        """Sample these requests in this order, then append tokens to their outputs."""
        self._rows += [self.running[name] for name in ids]
        self._steps.append(SessionStep(tuple(ids), tuple(self._leaving)))
        self._leaving = []
        for name, gained in (tokens or {}).items():
            recipe, asked = self.running[name]
            self.running[name] = (recipe, grown(asked, gained))

    def case(self, *clauses: str) -> Case:
        """Return what was written."""
        return batch(self._vocab, self._rows, *clauses, steps=tuple(self._steps))


def grown(asked: Request, tokens: tuple[int, ...]) -> Request:
    """Return the request after more output."""
    return Request(asked.params, asked.prompt, (*asked.output, *tokens))


def asks(features: frozenset[Feature]) -> tuple[str, ...]:
    """Return the kinds of members that a backend can serve; each minds another parameter."""
    kinds = ["plain", *_FILTERS]
    if Feature.MASKS in features:
        kinds += ["allowed", "word", "phrase", "minimum", "bias"]
    if Feature.PENALTIES in features:
        kinds += ["repetition", "frequency", "presence"]
    return tuple(kinds)


def member(
    kind: str, ids: Sequence[int], *, greedy: bool, prompt: tuple[int, ...] = (), **more: Any
) -> Row:
    """Return a request of a kind, and its row; of its four live ids the first is the best."""
    first, second, third, fourth = ids
    kinds: dict[str, dict[str, Any]] = {
        "plain": {},
        "allowed": {"allowed_token_ids": (second, fourth)},
        "word": {"bad_words_token_ids": ((first,),)},
        "phrase": {"bad_words_token_ids": ((second, first), (first, first), (third, second))},
        "minimum": {"min_tokens": 3, "stop_token_ids": (first,), "eos_token_id": third},
        "bias": {"logit_bias": ((first, -1.5),)},
        "repetition": {"repetition_penalty": 2.0},
        "frequency": {"frequency_penalty": 2.0},
        "presence": {"presence_penalty": 2.0},
        **_FILTERS,
    }
    filtered = kind in _FILTERS
    recipe = row(dict(zip(ids, _VALUES, strict=True)), base=1.0 if filtered else -8.0)
    drawn = _WARM if filtered else _COLD
    temperature = 0.0 if greedy else drawn
    return (recipe, request(prompt=prompt, temperature=temperature, **kinds[kind], **more))


def _ids(number: int) -> tuple[int, int, int, int]:
    """Return four ids for a member, unlike its neighbours'; the ends of the vocabulary come up."""
    first = (23 * number) % VOCAB
    return (first, (first + 17) % VOCAB, (first + 41) % VOCAB, (first + 63) % VOCAB)


def _members(features: frozenset[Feature], *, prompts: bool = True) -> list[Row]:
    """Return a member of each kind, greedy and random, some with the best id in the prompt."""
    found = []
    kinds = asks(features)
    for number, kind in enumerate(kinds * 2):
        ids = _ids(number)
        prompt = (ids[0],) * (number % 3) if prompts else ()
        greedy = (number + number // len(kinds)) % 2 == 0
        found.append(member(kind, ids, greedy=greedy, prompt=prompt))
    return found


def move_cases(features: frozenset[Feature]) -> tuple[Case, ...]:
    """Return rows added, removed from the middle, swapped and reversed, histories as added."""
    members = _members(features)
    # histories of their own, so that one that stays behind shows without any further token
    members = [
        (recipe, grown(asked, (recipe.ids[0],) * (place % 3)))
        for place, (recipe, asked) in enumerate(members)
    ]
    count = len(members)
    swaps, holes, reuse = Script(), Script(), Script()
    for name, one in enumerate(members):
        swaps.add(name, one)
        holes.add(name, one)
    everyone = list(range(count))
    swaps.step(everyone)
    swaps.step([1, 0, *everyone[2:]])
    swaps.step(everyone[::-1])
    swaps.step([*everyone[3:], *everyone[:3]])
    swaps.step(everyone)
    holes.step(everyone)
    for name in (0, count // 2):
        holes.remove(name)
    holes.step([name for name in everyone if name not in (0, count // 2)])
    for name in everyone[1::2]:
        if name in holes.running:
            holes.remove(name)
    holes.step(list(holes.running)[::-1])
    holes.add(count, members[0])
    holes.step([count, *[name for name in holes.running if name != count]])
    # an id and a slot used again, by a request that minds other parameters
    for turn in range(count):
        reuse.add(0, members[turn])
        reuse.add(1, members[(turn + 1) % count])
        reuse.step([0, 1] if turn % 2 else [1, 0])
        reuse.remove(0)
        reuse.remove(1)
    scripts = (swaps, holes, reuse, _twins(features), *_vacated(features))
    return tuple(script.case("batch.state") for script in scripts)


def _vacated(features: frozenset[Feature]) -> Iterator[Script]:
    """Yield a request of each kind that moves down, and a plain one that takes the row it left."""
    for kind in asks(features)[1:]:
        script = Script()
        for name, one in enumerate(("plain", "plain", kind)):
            script.add(name, member(one, _ids(name), greedy=False))
        script.step([0, 1, 2])
        script.remove(0)
        script.step([2, 1])
        script.add(3, member("plain", _ids(3), greedy=False))
        script.step([2, 1, 3])
        yield script


def _twins(features: frozenset[Feature]) -> Script:
    """Return pairs of requests of equal parameters whose outputs grow apart."""
    script = Script()
    for number, kind in enumerate(asks(features)):
        for name in (2 * number, 2 * number + 1):
            script.add(name, member(kind, _ids(number), greedy=number % 2 == 0))
    for turn in range(4):
        tokens = {
            name: (recipe.ids[(turn + 2 * (name % 2)) % 4],)
            for name, (recipe, _) in script.running.items()
        }
        script.step(list(script.running), tokens)
    return script


def history_cases(features: frozenset[Feature]) -> tuple[Case, ...]:
    """Return batches whose rows stay where they are while their outputs grow, ragged.

    Each token is the id that leads next, or id 0, or several accepted at once.
    """
    if Feature.PENALTIES not in features:
        return ()
    script = Script()
    kinds = ("repetition", "frequency", "presence", "plain")
    for name in range(8):
        ids = (0, 17, 41, 63) if name >= 6 else _ids(name)
        prompt = (ids[1],) * (5 * name % 7)
        script.add(name, member(kinds[name % 4], ids, greedy=name % 3 == 0, prompt=prompt))
    lengths = {name: name % 3 for name in range(8)}
    for turn in range(6):
        tokens = {}
        for name, (recipe, _) in script.running.items():
            gained = [recipe.ids[(turn + place) % 4] for place in range(lengths[name])]
            if turn % 2 == 0 and name % 2:
                gained = [*gained, 0]
            tokens[name] = tuple(gained)
        script.step(list(range(8)), tokens)
    return (script.case("penalty.history"),)


def constraint_cases(features: frozenset[Feature]) -> tuple[Case, ...]:
    """Return batches whose rows stay where they are while steps give one to three tokens.

    What a phrase bans depends on the last of them, and a minimum on how many there are.
    """
    if Feature.MASKS not in features:
        return ()
    cases = []
    for kind, clause in (("phrase", "mask.bad-words"), ("minimum", "mask.min-tokens")):
        script = Script()
        for name in range(6):
            script.add(name, member(kind, _ids(name), greedy=name % 2 == 0))
        for turn in range(5):
            tokens = {}
            for name, (recipe, _) in script.running.items():
                # ends in the second, the third, the first id by turns, each after another one
                places = [(turn + name + back) % 3 for back in range(1 + (turn + name // 2) % 3)]
                tokens[name] = tuple(recipe.ids[place] for place in places[::-1])
            script.step(list(range(6)), tokens)
        script.step(list(range(6)))
        cases.append(script.case(clause))
    return tuple(cases)


def preempt_cases(features: frozenset[Feature]) -> tuple[Case, ...]:
    """Return requests that wait for some steps and go on, first, middle and last rows."""
    members = _members(features)
    count = len(members)
    cases = []
    for waiting in ((0,), (count - 1,), tuple(range(0, count, 2)), tuple(range(1, count))):
        script = Script()
        for name, one in enumerate(members):
            script.add(name, one)
        everyone = list(range(count))
        left = [name for name in everyone if name not in waiting]
        # an engine learns of a token when the request is sampled next: of the first before the
        # wait, of the second after it, and only both together leave the third best id
        first, second = (
            {name: (members[name][0].ids[place],) for name in everyone} for place in (0, 1)
        )
        script.step(everyone, first)
        script.step(everyone, second)
        script.step(left, {name: first[name] for name in left})
        script.step(left, {name: first[name] for name in left})
        script.step(everyone, first)
        script.step(everyone)
        cases.append(script.case("history.preempt", "batch.state"))
    return tuple(cases)


def _live(number: int) -> RowRecipe:
    """Return 40 ids nearly equally likely."""
    return row({(7 * place + 5 * number) % 61: -place / 256 for place in range(40)})


def seed_cases() -> tuple[Case, ...]:
    """Return seeded rows over steps: by themselves, with neighbours that come, go and wait.

    In the last case the steps give unequally many tokens.
    """
    still, moving, waiting, arriving, uneven = (Script() for _ in range(5))
    for script in (still, moving, waiting, uneven):
        for name in range(16):
            script.add(name, (_live(name), request(seed=5000 + name)))
        for name in range(16, 20):
            script.add(name, (flat(), request(top_k=3 + name)))
    everyone, seeded = list(range(20)), list(range(16))
    token = {name: (name,) for name in everyone}
    for turn in range(5):
        still.step(everyone, token)
        uneven.step(everyone, {name: (name,) * (1 + (name + turn) % 3) for name in everyone})
        moving.step(everyone[turn:] + everyone[:turn] if turn % 2 else everyone[::-1], token)
        away = set(range(turn * 3, turn * 3 + 3)) if turn in (1, 2) else set()
        present = [name for name in everyone if name not in away]
        waiting.step(present, {name: token[name] for name in present})
    for name in (0, 7, 18):
        moving.remove(name)
    moving.step([name for name in seeded[::-1] if name in moving.running], {})
    # one by one, the last ones into rows that others left
    for name in range(8):
        arriving.add(name, (_live(name), request(seed=6000 + name)))
        arriving.step(list(arriving.running), {})
        if name in (5, 6):
            arriving.remove(name - 4)
    return (
        still.case("seed.reproducible"),
        moving.case("batch.state", "seed.batch"),
        arriving.case("batch.state", "seed.batch"),
        waiting.case("history.preempt", "seed.batch"),
        uneven.case("batch.state", "seed.batch"),
    )


def logprobs_cases() -> tuple[Case, ...]:
    """Return rows that stay and ask for logprobs of steps whose logits all differ.

    The steps give one, two and three tokens.
    """
    script = Script()
    wants: tuple[dict[str, Any], ...] = (
        {"logprobs": 3},
        {"logprobs": 0, "temperature": 0.0},
        {"logprob_token_ids": (63, 0)},
        {},
        {"logprobs": 5, "temperature": 2.0, "top_k": 2},
    )
    for turn in range(4):
        for name, want in enumerate(wants):
            bell = RowRecipe(shape="bell", seed=31 * turn + name, scale=1.0)
            asked = request(output=(1,) * (turn * (turn + 1) // 2), **want)
            script.add(name, (bell, asked))
        script.step(range(len(wants)), {})
    return (script.case("logprobs.step"),)
