"""Tails and independence: each mistake fails its clause, and no clause that it leaves true."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch

from refsampler.backends.native import NativeKernel
from refsampler.backends.protocol import Capabilities, Subject
from refsampler.clauses import ClauseId
from refsampler.conformance.caserun import judge_case
from refsampler.conformance.checks import all_checks
from refsampler.conformance.checks.independence import INDEPENDENCE
from refsampler.conformance.checks.tail import RESOLUTION, TAIL
from refsampler.conformance.commands.verdict_table import plan_lines
from refsampler.conformance.costs import group_seconds, left_out, total_seconds
from refsampler.conformance.designed.tails import TAIL_VOCAB
from refsampler.conformance.evidence.budget import SEQUENTIAL
from refsampler.conformance.faults.right import RightKernel
from refsampler.conformance.plan import LAW, Plan, make_plan
from refsampler.conformance.records import LawRecord, ReportWriter, TailRecord, read_report
from refsampler.conformance.runner import run
from refsampler.conformance.sequential import SPLIT, batch_sizes
from refsampler.conformance.subject import OpenSubject
from refsampler.conformance.threads import one_thread
from tests import broken_streams as broken
from tests.shapes import unchecked

SEED = 20251
LAW_DRAWS = 20_000

_TAILS = ("draw.tail", "draw.resolution", "draw.law")
GLOBS = {
    "TailDropped": _TAILS,
    "TailTripled": _TAILS,
    "Coarse": _TAILS,
    "Race24": ("draw.tail",),
    "native": ("independence.*", "draw.tail"),
}
"""What is asked of whom; of the others independence, tails and laws."""


def together(*plans: Plan) -> Plan:
    """One plan of what several globs ask for, without the cases of exact checks."""
    first = plans[0]
    sequential = replace(
        first.sequential,
        pairs=tuple(one for plan in plans for one in plan.sequential.pairs),
        tails=tuple({one.case.id: one for plan in plans for one in plan.sequential.tails}.values()),
        unplanned=tuple(one for plan in plans for one in plan.sequential.unplanned),
    )
    laws = tuple(
        replace(one, draws=LAW_DRAWS, least=LAW_DRAWS, carried=())
        for plan in plans
        for one in plan.laws[1:3]
    )
    return replace(
        first,
        cases=(),
        standings=tuple(one for plan in plans for one in plan.standings),
        # two rows without parameters: the samplers here know none
        laws=laws,
        mixed=(),
        planned={key: n for plan in plans for key, n in plan.planned.items()} | {LAW: len(laws)},
        sequential=sequential,
    )


def planned(capabilities: Capabilities, *globs: str) -> Plan:
    return together(*(make_plan(capabilities, glob=glob, run_seed=SEED) for glob in globs))


# one plan serves all that are asked the same: making it takes longer than running it
@cache
def plan_of(level: int, floor: float, globs: tuple[str, ...]) -> Plan:
    capabilities = {1: NativeKernel, 2: broken.Independent}[level]().capabilities
    return planned(replace(capabilities, floor=floor), *globs)


@cache
def verdicts(name: str) -> dict[str, list[str]]:
    """Clause -> status, reason and what was seen."""
    sampler: Subject = NativeKernel() if name == "native" else getattr(broken, name)()
    declared = sampler.capabilities
    floor = 1e-5 if name == "native" else declared.floor
    globs = GLOBS.get(name, ("independence.*", "draw.tail", "draw.law"))
    with one_thread(), unchecked():
        plan = plan_of(declared.level, floor, globs)
        outcome = run(OpenSubject(sampler, SEED), plan, ReportWriter(None))
    found = {
        str(one.verdict.clause): [str(one.verdict.status), one.reason, one.seen]
        for one in outcome.decisions
    }
    return found | ({"errors": list(outcome.errors)} if outcome.errors else {})


@pytest.fixture(scope="module")
def plan() -> Plan:
    return planned(broken.Independent.capabilities, "independence.*", "draw.tail")


def failing(verdicts: dict[str, list[str]]) -> set[str]:
    return {clause for clause, one in verdicts.items() if one[0] == "fail"}


@pytest.mark.statistical
@pytest.mark.parametrize("sampler", ["Independent", "native"])
def test_right_noise_passes_everything(sampler):
    # false alarm: at most 1e-9 by the plan
    assert {status for status, _, _ in verdicts(sampler).values()} == {"pass"}


def test_the_exact_number_of_draws_is_taken_and_stored(tmp_path):
    # 2^15 rows a call at most: 20,000 and then one short call, and 54,926 in calls of 2,048
    plan = planned(broken.Independent.capabilities, "draw.law", "draw.tail")
    tails = plan.sequential.tails[:1]
    plan = replace(plan, sequential=replace(plan.sequential, tails=tails))
    with ReportWriter((tmp_path / "report.jsonl").open("wb")) as writer:
        run(OpenSubject(broken.Independent(), SEED), plan, writer)
    records = tuple(read_report(tmp_path / "report.jsonl"))
    laws = [one for one in records if isinstance(one, LawRecord)]
    (tail,) = [one for one in records if isinstance(one, TailRecord)]
    assert [one.draws for one in laws] == [LAW_DRAWS] * 2
    assert sum(n for _, n in tail.counts) == tail.draws == tails[0].draws
    # two ids: the observed distance is about 0.002, and sqrt(ln 1e6 / 40000) = 0.0186 comes on top
    upper = laws[0].tv_upper
    assert upper is not None
    assert 0.0186 <= upper <= 0.035


def test_a_pass_says_which_distance_and_which_grades_were_ruled_out():
    assert verdicts("Independent")[LAW][1].startswith("TV at most 0.0")
    assert verdicts("Independent")[TAIL][1].count("would show") == 2
    assert "grade 1e-06" in verdicts("Independent")[TAIL][1]


@pytest.mark.parametrize(
    ("sampler", "clauses"),
    [
        ("OneUniform", {"independence.rows"}),
        ("Antithetic", {"independence.rows"}),
        ("Affine", {"independence.rows"}),
        ("Repeats", {"independence.rows"}),
        ("Reseeded", {"independence.calls", "independence.streams"}),
        ("SameSeedAsTorch", {"independence.streams"}),
        ("NotAdvanced", {"independence.calls", "independence.streams"}),
        ("ThreadsAlike", {"independence.streams"}),
        ("TailDropped", {"draw.tail"}),
        ("TailTripled", {"draw.tail"}),
        ("Coarse", {"draw.resolution"}),
        # exponentials never below 2^-24 = 6e-8: an id of 1e-8 wins only if the likely id draws q > 6
        ("Race24", {"draw.tail"}),
    ],
)
def test_a_mistake_fails_its_clause_and_no_other(sampler, clauses):
    assert failing(verdicts(sampler)) == clauses


def test_a_law_that_rests_on_broken_rows_is_a_consequence():
    assert verdicts("OneUniform")[LAW][:2] == ["inconclusive", "consequence of independence.rows"]


def test_the_race_on_24_bits_counts_grid_points():
    # on a grid of 2^10
    thresholds = [1e-5, 9e-4, 1.1e-3, 2e-3, 0.1, 3.0]
    closed = broken.share_below(torch.tensor(thresholds, dtype=torch.float64), 10)
    assert closed.tolist() == [broken.counted_below(one, 10) for one in thresholds]


def test_the_split_of_the_promise():
    clauses = (LAW, TAIL, *INDEPENDENCE, "spec.law", "spec.draft-law")
    assert sum(SPLIT.alpha(clause) for clause in clauses) == pytest.approx(SEQUENTIAL)


@pytest.mark.parametrize(
    ("floor", "required"),
    [(1e-5, {1e-5}), (1e-6, {1e-5, 1e-6}), (1e-7, {1e-5, 1e-6, 1e-7})],
)
def test_the_declared_floor_decides_which_grades_gate(floor, required):
    capabilities = replace(broken.Independent.capabilities, floor=floor)
    plan = make_plan(capabilities, glob="draw.tail", run_seed=SEED)
    assert {one.grade for one in plan.sequential.tails} == required
    assert plan.planned[TAIL] == plan.planned[RESOLUTION] == len(required)


def test_the_full_profile_adds_the_next_grade_and_names_what_it_leaves_out():
    capabilities = broken.Independent.capabilities
    plan = make_plan(capabilities, glob="draw.tail", profile="full", run_seed=SEED)
    assert [one.grade for one in plan.sequential.tails] == [1e-5, 1e-6, 1e-7]
    assert plan.planned[TAIL] == 2
    left = [one.words.partition(":")[0] for one in plan.sequential.unplanned]
    assert left == ["grade 1e-08", "grade 1e-09"]


def test_every_planned_case_says_what_it_would_see(plan):
    for clause in (TAIL, *INDEPENDENCE, ClauseId("draw.resolution")):
        powers = plan.sequential.would_see(clause)
        assert powers
        assert all(one.probability >= 1 - 1e-6 for one in powers)


def test_a_missing_tail_at_the_floor_is_planned_to_show(plan):
    # all draws outside the tail: e = (1 - 0.95 s)^-N for "missing", one of 15 bets, half of the
    # evidence, one of two grades; N must bring it to 1/alpha
    for one in plan.sequential.tails:
        log_e = -one.draws * np.log1p(-0.95 * one.tail.mass)
        assert log_e - np.log(15) - np.log(2 * 2) > SPLIT.log_threshold(TAIL)
        assert one.tail.mass == pytest.approx((TAIL_VOCAB - 1) * one.grade, rel=1e-3)


def test_batches_make_exactly_the_planned_draws():
    assert list(batch_sizes(5000, 1024, None)) == [2048, 2048, 904]
    assert list(batch_sizes(10, 8, 32)) == [4, 4, 2]
    assert list(batch_sizes(3, 100, 50)) == [1, 1, 1]


class OneBuffer(RightKernel):
    """Keeps the noise of all threads in one buffer."""

    def __init__(self):
        self.buffer = torch.empty(64, 1024)

    def draw(self, logits, rows):
        probs = self.filtered(self.scaled(logits.float(), rows, rows.temperature == 0), rows)
        noise = self.buffer[: len(logits), : logits.shape[1]]
        noise.exponential_()
        for row, generator in rows.generators.items():
            noise[row].exponential_(generator=generator)
        return (probs.softmax(dim=-1) / noise).argmax(dim=-1)


def under_load(kernel):
    check = next(one for one in all_checks() if one.name == "seeds-under-load")
    (case,) = check.cases(kernel.capabilities, SEED)
    return judge_case(OpenSubject(kernel, SEED), check, case)


def test_noise_that_threads_share_is_seen_under_load():
    # 23 calls of 32 seeded rows beside a thread that rewrites the buffer all the time
    (finding,) = under_load(OneBuffer()).findings
    assert finding.clause == "determinism.repeat"
    assert finding.seen.endswith("while another thread draws")


def test_a_right_kernel_repeats_itself_under_load():
    judged = under_load(RightKernel())
    assert judged.findings == ()
    assert judged.draws == 24 * 32


def test_the_costs_cover_everything_that_is_planned(plan):
    spent = dict(group_seconds(plan))
    assert set(spent) == {one.check.name for one in plan.sequential.pairs} | {"tails"}
    # 54,990 and 93,038 draws of 1,024 logits at 40 ns
    assert spent["tails"] == pytest.approx((54_990 + 93_038) * 1024 * 4e-8)
    assert total_seconds(plan) == pytest.approx(sum(spent.values()))
    assert set(left_out(plan, 0.0)) == {str(clause.id) for clause, _ in plan.standings}


def test_the_plan_names_splits_powers_and_what_it_leaves_out(plan):
    text = "\n".join(plan_lines(plan, 0.0))
    assert "draw.law draw.tail independence.rows independence.calls independence.streams" in text
    assert "tail of grade 1e-06 off by x0.1 and less" in text
    assert "independence.rows would see with probability 1 - 1e-6" in text
    left = text.partition("not in the quick profile: ")[2]
    assert "draw.tail grade 1e-07" in left
    assert "independence.rows rows 2^24 logits apart" in left
