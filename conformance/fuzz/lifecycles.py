"""Lifecycles: requests that come, move, wait, grow and leave, each row with one right id.

Rows are cold or greedy, or seeded ones that are compared with themselves alone; every step has logits
of its own, so that what a row keeps from the step before shows.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Final

from refsampler.clauses import ClauseId
from refsampler.conformance.case import Case, SessionStep
from refsampler.conformance.checks.base import clause_ids
from refsampler.conformance.designed.sessions import grown
from refsampler.conformance.fuzz.asks import asked_request
from refsampler.conformance.fuzz.rows import LiveRow, live_row
from refsampler.conformance.logits import LogitsRecipe, RowRecipe
from refsampler.request import Request

__all__ = ["lifecycle"]

_RUNNING: Final = 6
_STEPS: Final = (3, 7)
_NEVER_ASKED: Final = ("placeholder", "logprobs", "listed")
_MOVED: Final = clause_ids("batch.state", "history.preempt")
_DANGERS: Final = ("clear", "clear", "clear", "padded", "lattice")


@dataclass(slots=True)
class _Writer:
    """Writes the steps down.

    Attributes:
        rng: of every choice.
        vocab: V.
        asks: that are legal.
        running: requests by name, with the row that they are about.

    """

    rng: Random
    vocab: int
    asks: tuple[str, ...]
    running: dict[int, tuple[LiveRow, Request]] = field(default_factory=dict)
    rows: list[RowRecipe] = field(default_factory=list)
    requests: list[Request] = field(default_factory=list)
    steps: list[SessionStep] = field(default_factory=list)
    started: int = 0

    def step(self, *, waiting: bool) -> None:
        """Let some leave, some come, reorder who is there, sample them, and let them grow."""
        rng = self.rng
        leaving = tuple(name for name in [*self.running] if rng.random() < 0.2)
        for name in leaving:
            del self.running[name]
        least = 0 if self.running else 1
        for _ in range(rng.randint(least, max(least, min(3, _RUNNING - len(self.running))))):
            self._add()
        order = [*self.running]
        if rng.random() < 0.6:
            rng.shuffle(order)
        if waiting and len(order) > 1:
            order = order[: rng.randint(1, len(order))]
        for name in order:
            live, asked = self.running[name]
            self.rows.append(self._logits(live))
            self.requests.append(asked)
            gained = tuple(rng.choice(live.ids) for _ in range(rng.choice((0, 1, 1, 1, 2, 3))))
            self.running[name] = (live, grown(asked, gained))
        self.steps.append(SessionStep(tuple(order), leaving))

    def _add(self) -> None:
        """Add a request under a new name, at times one just like another that runs."""
        rng = self.rng
        if self.running and rng.random() < 0.25:
            member = rng.choice([*self.running.values()])
        else:
            live = live_row(rng.choice(_DANGERS), rng, self.vocab)
            mind = [one for one in self.asks if one not in _NEVER_ASKED]
            chosen = {*rng.sample(mind, min(rng.randint(0, 2), len(mind)))}
            wants = [one for one in ("logprobs", "listed") if one in self.asks]
            if wants and rng.random() < 0.25:
                chosen |= {rng.choice(wants)}
            heat = rng.choice(("cold", "greedy", "warm" if "seed" in chosen else "cold"))
            member = (live, asked_request(rng, self.vocab, live, heat, chosen))
        self.running[self.started] = member
        self.started += 1

    def _logits(self, live: LiveRow) -> RowRecipe:
        """Return the row of a step: the live ids, at times with their values turned round."""
        recipe, turn = live.recipe, self.rng.randrange(len(live.ids))
        if self.rng.random() < 0.5 or len(recipe.ids) != len(live.ids):
            return recipe
        values = (*recipe.values[turn:], *recipe.values[:turn])
        return RowRecipe(recipe.shape, recipe.seed, recipe.base, recipe.scale, recipe.ids, values)


def lifecycle(seed: int, asks: tuple[str, ...], clauses: tuple[ClauseId, ...] = _MOVED) -> Case:
    """Return the session of a seed; requests ask what is legal."""
    rng = Random(seed)
    writer = _Writer(rng, rng.choice((8, 16, 33, 64)), asks)
    waiting = rng.random() < 0.5
    for _ in range(rng.randint(*_STEPS)):
        writer.step(waiting=waiting)
    recipe = LogitsRecipe(writer.vocab, tuple(writer.rows))
    return Case(recipe, tuple(writer.requests), clauses=clauses, steps=tuple(writer.steps))
