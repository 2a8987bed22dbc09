"""Oracles of a fuzzed batch: its exact laws, and the same rows asked in other surroundings.

A right sampler gives every row an id of its law in each arrangement, gives a seeded row the same id in
all of them, and shows logprobs of the logits it was handed.  Nothing is designed here; a batch shows
whatever it happens to be able to show.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from refsampler.backends.process import SubjectEnded
from refsampler.backends.protocol import Capabilities, Feature
from refsampler.clauses import ClauseId
from refsampler.conformance.case import Case
from refsampler.conformance.checks.base import (
    Arrangement,
    Asked,
    Check,
    Finding,
    Kind,
    Trial,
    clause_ids,
)
from refsampler.conformance.checks.batches import reordered
from refsampler.conformance.checks.controls import without_surroundings
from refsampler.conformance.checks.expected import Expected
from refsampler.conformance.checks.logprobs import judge_draw
from refsampler.conformance.checks.rows import judge_rows
from refsampler.conformance.subject import Draw, OpenSubject, SubjectError

__all__ = ["BATCHES", "CERTAIN", "CLAUSES", "FUZZED"]

CERTAIN: Final = 50.0
"""Nats that make an event impossible here: 10^11 draws, weeks of fuzzing, cost 4e-11 (rule 2)."""

CLAUSES: Final = clause_ids("batch.isolation", "effect.parameters")
"""Clauses of every fuzzed batch; a wrong id that nothing explains is about its surroundings, unless
the row is wrong by itself too."""

_CONFIRMED: Final = 64
"""Fresh seeds on which a difference of seeded ids is asked again, where bits are not promised."""
_HOPELESS: Final = 16
"""Seeds that are enough if none of them differs: what is left undone can only hide a difference."""
_DIFFERENT: Final = 8
"""Of those at least so many differ: C(64, 8) 1e-32 = 4e-23 if one in 10,000 may (`seed.batch`)."""


@dataclass(frozen=True, slots=True, eq=False)
class _Asking:
    """A batch, the same without anyone asking for logprobs, and how it is asked."""

    subject: OpenSubject
    case: Case
    silent: Case
    key: str
    expected: Expected

    def draw(self, case: Case, name: str) -> Draw | None:
        """Draw once; None if rows without a law were refused by name.

        Raises:
            SubjectError: the backend raised.

        """
        try:
            return self.subject.sample(case, 0, f"{self.key}/{name}")
        except SubjectEnded:
            raise
        except SubjectError as error:
            lawless = not all(law.valid for law in self.expected.distinct)
            named = any(word in str(error) for word in ("logits", "row"))
            if lawless and named and error.refused:
                return None
            raise

    def arranged(self, rows: list[int], name: str, *, silent: bool = False) -> Arrangement | None:
        """Draw the batch of these rows, in this order; silent: nobody asks for logprobs."""
        case = reordered(self.silent if silent else self.case, rows)
        drawn = self.draw(case, name)
        if drawn is None:
            return None
        expected = replace(self.expected, kind_of=self.expected.kind_of[rows])
        return Arrangement(case, expected, (drawn,))


def _silent(case: Case) -> Case:
    """Return the batch without anyone asking for logprobs."""
    silent = {
        key: replace(one, params=replace(one.params, logprobs=None, logprob_token_ids=None))
        for key, one in {id(one): one for one in case.requests}.items()
        if one.params.logprobs is not None or one.params.logprob_token_ids
    }
    if not silent:
        return case
    return replace(case, requests=tuple(silent.get(id(one), one) for one in case.requests))


def _ask(subject: OpenSubject, case: Case) -> Asked:
    """Draw the batch and some of its other arrangements, and judge them all."""
    key = case.id
    expected = Expected.of(case, subject.capabilities.semantics)
    asking = _Asking(subject, case, _silent(case), key, expected)
    count = len(case.requests)
    orders = [(list(range(count)), "batch", False)]
    if len(asking.expected.distinct) > 1 or count < 8:
        # copies of one row have nothing to be mixed up with
        orders += _others(count, int(key, 16))
    arrangements: list[tuple[list[int], Arrangement]] = []
    for rows, name, silent in orders:
        try:
            made = asking.arranged(rows, name, silent=silent)
        except SubjectEnded:
            raise
        except SubjectError as error:
            crash = _crash(asking, error, "" if name == "batch" else f"{name}: ")
            return Asked((crash,), count)
        if made is not None:
            arrangements.append((rows, made))
    if not arrangements:
        return Asked((), count)
    findings = (*_of_laws(asking, arrangements), *_of_logprobs(asking, arrangements[0][1]))
    findings = (*findings, *_of_seeds(asking, arrangements))
    draws = sum(len(rows) for rows, _ in arrangements)
    whole = arrangements[0][1].draws[0].ids
    return Asked(findings, draws, ids=whole.astype("<i4").tobytes())


def _others(count: int, number: int) -> list[tuple[list[int], str, bool]]:
    """Return the batch turned round and silent, and a row alone; a hash says which."""
    if count < 2:
        return [([0] * count, "again", True)] if count else []
    turn, alone = number % count, (number // 7) % count
    order = [*range(turn, count), *range(turn)][::-1]
    return [(order, "turned round", True), ([alone], f"row {alone} alone", False)]


def _crash(asking: _Asking, error: SubjectError, where: str) -> Finding:
    """Return the finding of a call that raised."""
    lawless = not all(law.valid for law in asking.expected.distinct)
    returns = ClauseId("output.returns")
    if not lawless:
        return Finding(returns, "a result", f"{where}{error}")
    own = ClauseId("nonfinite.contained")
    expected = "an id in range, or an error that names the rows"
    return Finding(own, expected, f"{where}{error}", candidates=(own, returns))


def _of_laws(
    asking: _Asking, arrangements: list[tuple[list[int], Arrangement]]
) -> Iterator[Finding]:
    """Judge every row of every arrangement against its law; one finding a clause."""
    capabilities = asking.subject.capabilities
    made = tuple(one for _, one in arrangements)
    trial = Trial(capabilities, made, Kind.NEAR_CERTAIN, CERTAIN)
    first: dict[tuple[ClauseId, ...], Finding] = {}
    for one in judge_rows(trial):
        first.setdefault((one.clause, *one.candidates), one)

    def again(case: Case, call: int) -> Draw:
        return asking.subject.sample(case, call, f"{asking.key}/again")

    for one in first.values():
        yield without_surroundings(capabilities, made[one.arrangement].case, one, again)


def _of_logprobs(asking: _Asking, whole: Arrangement) -> Iterator[Finding]:
    """Judge the logprobs of a sampler in its default mode."""
    capabilities = asking.subject.capabilities
    asked = any(
        one.params.logprobs is not None or one.params.logprob_token_ids
        for one in whole.case.requests
    )
    if capabilities.level == 1 or Feature.LOGPROBS not in capabilities.features or not asked:
        return
    if not all(law.valid for law in asking.expected.distinct):
        return
    yield from {one.clause: one for one in judge_draw(whole.case, whole.draws[0])}.values()


def _of_seeds(
    asking: _Asking, arrangements: list[tuple[list[int], Arrangement]]
) -> Iterator[Finding]:
    """Compare each seeded row with itself in the other arrangements."""
    (_, whole), *others = arrangements
    ids = whole.draws[0].ids
    if len(ids) != len(asking.case.requests):
        return
    for rows, other in others:
        here = other.draws[0].ids
        if len(here) != len(rows):
            continue
        for place, row in enumerate(rows):
            if ids[row] != here[place] and _comparable(asking, row):
                found = _difference(asking, row, rows)
                if found is not None:
                    yield found
                    return


def _comparable(asking: _Asking, row: int) -> bool:
    """Whether the row's id follows from its seed alone (`seed.batch`)."""
    params, law = asking.case.requests[row].params, asking.expected.row(row)
    if params.seed is None or params.greedy or not law.valid:
        return False
    if Feature.BITWISE in asking.subject.capabilities.features:
        return True
    exact = not (law.tied.any() or (law.allowed & ~law.core).any())
    return exact and int(law.allowed.sum()) <= 64


def _difference(asking: _Asking, row: int, rows: list[int]) -> Finding | None:
    """Ask again on fresh seeds, and say what makes the difference."""
    steps = (
        ("seed.reproducible", list(range(len(asking.case.requests))), False, "the same batch"),
        ("logprobs.neutral", list(range(len(asking.case.requests))), True, "without logprobs"),
        ("seed.batch", rows, True, f"a batch of {len(rows)}"),
        ("seed.batch", [row], False, "a batch of its own"),
    )
    bitwise = Feature.BITWISE in asking.subject.capabilities.features
    enough = 1 if bitwise else _DIFFERENT
    for clause, order, silent, words in steps:
        if row not in order:
            continue
        differ, seen = _differing(asking, row, order, enough, silent=silent)
        if differ >= enough:
            return Finding(
                ClauseId(clause),
                f"id {seen[0]} for one seed, as before",
                f"id {seen[1]} in {words}" + ("" if bitwise else f"; {differ} seeds differ"),
                0.0 if bitwise else 4e-23,
                row,
            )
    return None


def _differing(
    asking: _Asking, row: int, order: list[int], enough: int, *, silent: bool
) -> tuple[int, tuple[int, int]]:
    """Return how many fresh seeds give the row another id in that order, and two such ids."""
    differ, seen = 0, (0, 0)
    for number in range(_CONFIRMED):
        seeds = {row: (int(asking.key, 16) + number) % 2**31}
        if number == 0:
            own = asking.case.requests[row].params.seed
            assert own is not None
            seeds = {row: own}
        whole = _reseeded(asking.case, seeds)
        there = reordered(whole, order)
        try:
            before = asking.subject.sample(whole, 0, f"{asking.key}/seed {number}").ids[row]
            case = _silent(there) if silent else there
            after = asking.subject.sample(case, 0, f"{asking.key}/other {number}").ids
        except (SubjectError, IndexError):
            return differ, seen
        now = after[order.index(row)] if len(after) == len(order) else before
        if before != now:
            differ, seen = differ + 1, (int(before), int(now))
        if differ >= enough or (number + 1 >= _HOPELESS and not differ):
            break
    return differ, seen


def _reseeded(case: Case, seeds: dict[int, int]) -> Case:
    requests = list(case.requests)
    for row, seed in seeds.items():
        requests[row] = replace(requests[row], params=replace(requests[row].params, seed=seed))
    return replace(case, requests=tuple(requests))


def _none(_capabilities: Capabilities, _run_seed: int) -> tuple[Case, ...]:
    """Return no case: a run of the suite has its own."""
    return ()


FUZZED: Final = Check(
    "fuzzed-batches",
    (*CLAUSES, *clause_ids("seed.batch", "seed.reproducible", "logprobs.neutral")),
    Kind.NEAR_CERTAIN,
    _none,
    ask=_ask,
    profiles=(),
)
"""Judges batches of any kind; `refsampler check` plans none."""

BATCHES: Final = (FUZZED,)
