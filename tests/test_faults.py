"""The bank of faults: every public entry has its place, and each says what it breaks."""

import re
from typing import Any

import pytest

from refsampler.backends.protocol import BatchSampler, Engine, Kernel
from refsampler.clauses import UnknownClauseError, load
from refsampler.conformance.faults.base import Fault, Kind, Need, Shelf, State, missing_here
from refsampler.conformance.faults.registry import all_faults, fault, select
from refsampler.conformance.faults.right import RightKernel
from refsampler.conformance.isolation import Limits, guarded

PUBLIC = """
support-leaks: B126 B132 B143 B148 B150 B155 B197
garbage-ids: B038 B042 B044 B053 B072 B077 B116 B131 B137
filter-boundaries: B027 B030 B041 B055 B059 B076 B088 B101 B106 B114 B127 B128 B182 B187
order: B040 B093 B109 B117 B144
temperature: B050 B063 B082 B096 B115 B119 B163
penalty-history: B026 B039 B054 B089 B098 B104 B135 B138 B152 B190
row-mixing: B001 B011 B037 B062 B070 B079 B080 B107 B122 B179 B191
seeds: B002 B005 B022 B075 B099 B105 B139 B165
frozen-noise: B004 B034 B071 B087 B092 B146 B156
precision: B046 B091 B120 B125 B134 B141 B178
logprobs: B015 B043 B045 B068 B078 B151 B170
constraints: B058 B103 B145 B169 B173 B186
speculative: B023 B032 B052 B074 B164 B175 B195
large-tensors: B006 B024 B073 B085
races: B057 B066 B069 B168 B189
cost: B136 B140
ignored-parameters: B018 B049 B171 B188
"""
"""Kind -> the public entries: reports and repairs in real samplers."""

# An entry leaves this list when it gets its wrong subject; a blank line keeps kinds apart.
MISSING = """
support-leaks:

garbage-ids:

filter-boundaries:

order:

temperature:

penalty-history:

row-mixing:

seeds:

frozen-noise:
"""


def ids_by_kind(text: str) -> dict[Kind, set[str]]:
    found: dict[Kind, set[str]] = {}
    kind = Kind.SUPPORT_LEAKS
    for word in text.split():
        if word.endswith(":"):
            kind = Kind(word.removesuffix(":"))
            found[kind] = set()
        else:
            found[kind].add(word)
    return found


@pytest.mark.parametrize("kind", Kind)
def test_every_public_entry_is_there_or_known_to_be_missing(kind):
    here = {one.id for one in all_faults() if one.kind is kind}
    none: set[str] = set()
    public, missing = (ids_by_kind(text).get(kind, none) for text in (PUBLIC, MISSING))
    entries = {one for one in here if re.fullmatch(r"B\d+", one)}
    assert entries | missing == public
    assert not entries & missing


def test_there_are_120_public_entries():
    assert sum(map(len, ids_by_kind(PUBLIC).values())) == 120


def test_public_entries_name_their_thread_and_few_are_out_of_scope():
    public = {one for ids in ids_by_kind(PUBLIC).values() for one in ids}
    assert all(one.thread for one in all_faults() if one.id in public)
    assert sum(one.state is State.OUT_OF_SCOPE for one in all_faults()) <= 5


def test_every_fault_that_a_clause_speaks_about_can_be_asked_about():
    public = {one for ids in ids_by_kind(PUBLIC).values() for one in ids}
    ready = [one for one in all_faults() if one.id in public and one.state is State.READY]
    assert len(ready) == 115


def by_id(one: Fault) -> str:
    return one.id


@pytest.mark.parametrize(
    "one",
    [one for one in all_faults() if one.state is State.READY and not missing_here(one)],
    ids=by_id,
)
def test_a_fault_is_a_subject_of_a_level_that_owns_its_clause(one):
    assert one.make is not None
    subject = one.make()
    level = subject.capabilities.level
    assert isinstance(subject, {1: Kernel, 2: BatchSampler, 3: Engine}[level])
    owners = {str(clause.id): clause.owner for clause in load().clauses}
    folded = level == 1 and bool(subject.capabilities.folds)
    assert all(owners[clause] <= level or folded for clause in one.clauses)


def test_faults_are_selected_by_kind_and_by_id():
    assert {one.kind for one in select(kinds=("filter-*",))} == {Kind.FILTER_BOUNDARIES}
    assert [one.id for one in select(ids=("B114",))] == ["B114"]
    assert select() == all_faults()
    with pytest.raises(LookupError, match="'B000'"):
        fault("B000")


def test_a_fault_is_opened_by_its_name():
    spec = "refsampler.conformance.faults.subjects:B114"
    with guarded(spec, 1, isolate=False, limits=Limits()) as subject:
        assert subject.capabilities.level == 1


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"thread": "a bug report"}, "owner/repo#number"),
        ({"make": None}, "make belongs"),
        ({"reason": "why"}, "reason to what is not"),
        ({"clauses": ()}, "clauses is empty"),
        ({"summary": ""}, "summary is empty"),
    ],
)
def test_a_fault_that_could_not_be_looked_up_or_run_is_refused(changes, words):
    fields: dict[str, Any] = {
        "id": "X",
        "kind": Kind.ORDER,
        "engine": "one",
        "thread": "owner/repo#1",
        "clauses": ("order.pipeline",),
        "summary": "wrong",
        "make": RightKernel,
    }
    assert Fault(**fields).state is State.READY
    with pytest.raises(ValueError, match=words):
        Fault(**(fields | changes))
    with pytest.raises(UnknownClauseError):
        Fault(**(fields | {"clauses": ("no.clause",)}))


def test_a_shelf_takes_the_summary_from_the_docstring():
    shelf = Shelf(Kind.ORDER)

    @shelf.fault("X", "one", "owner/repo#1", "order.pipeline", needs=(Need.GPU,))
    class Wrong(RightKernel):
        """Does one thing
        wrongly.
        """

    (found,) = shelf.faults
    assert found.summary == "Does one thing wrongly."
    assert found.make is Wrong
