"""The corpus: minimal cases that wrong samplers fail and right ones pass, first in every check."""

import re
from dataclasses import replace
from importlib.resources import files

import pytest
from click.testing import CliRunner

from refsampler.backends.registry import resolve
from refsampler.conformance.caserun import case_record, judge_case
from refsampler.conformance.checks import all_checks
from refsampler.conformance.cli import main
from refsampler.conformance.corpus import decode_entry, encode_entry, entries, file_name
from refsampler.conformance.faults.registry import fault
from refsampler.conformance.fuzz.oracles import CLAUSES
from refsampler.conformance.fuzz.report import header
from refsampler.conformance.plan import make_plan
from refsampler.conformance.records import ReportWriter
from refsampler.conformance.subject import OpenSubject

CORPUS = [one for one in all_checks() if one.name.startswith("corpus-")]
FOUND = [(one.about.split(":")[0], one) for one in entries() if re.match(r"B\d+:", one.about)]


def cases_for(subject):
    return [(check, case) for check in CORPUS for case in check.cases(subject.capabilities, 0)]


def shown(subject, check, case):
    findings = judge_case(subject, check, case).findings
    return {clause for one in findings for clause in (one.clause, *one.candidates)}


def test_entries_are_small_and_stand_under_their_names():
    assert len(entries()) >= 5
    names = sorted(one.name for one in files("refsampler.conformance.corpus").iterdir())
    assert [file_name(one) for one in entries()] == [one for one in names if ".json" in one]
    for entry in entries():
        case = entry.read
        assert case.logits.vocab <= 16
        assert len(case.requests) <= 3
        assert [*case.clauses] == [entry.clause]
        again = decode_entry(encode_entry(entry))
        assert (file_name(again), again.about) == (file_name(entry), entry.about)


def test_a_check_asks_the_corpus_first():
    plan = make_plan(resolve("reference").capabilities, glob="penalty.*", run_seed=1)
    asked = [one.check.name.startswith("corpus-") for one in plan.cases]
    assert asked[0]
    assert asked == sorted(asked, reverse=True)


@pytest.mark.parametrize("name", ["native", "reference", "reference-engine"])
def test_right_backends_pass_it(name):
    """Near-certain cases are charged at most 2e-15 a draw."""
    subject = OpenSubject(resolve(name), 5)
    asked = cases_for(subject)
    assert asked
    for check, case in asked:
        assert shown(subject, check, case) == set(), case.id


@pytest.mark.parametrize(("name", "entry"), FOUND, ids=[name for name, _ in FOUND])
def test_the_fault_that_an_entry_came_from_fails_it(name, entry):
    wrong = fault(name)
    assert wrong.make is not None
    subject = OpenSubject(wrong.make(), 9)
    (found,) = (one for one in cases_for(subject) if one[1].id == entry.read.id)
    assert entry.clause in shown(subject, *found)


def test_a_finding_of_fuzzing_joins_the_corpus(tmp_path):
    known = next(one for one in entries() if one.clause == "penalty.repetition")
    spec = "refsampler.conformance.faults.subjects:B093"
    subject = OpenSubject(resolve(spec), 4)
    (found,) = (one for one in cases_for(subject) if one[1].id == known.read.id)
    fuzzed = next(one for one in all_checks() if one.name == known.check)
    case = replace(found[1], clauses=CLAUSES)
    with ReportWriter((tmp_path / "report.jsonl").open("wb")) as writer:
        writer.write(header(subject.capabilities, spec, 4, None))
        writer.write(case_record(fuzzed, case, judge_case(subject, fuzzed, case).findings, 0, 0.0))
    asked = ["corpus", case.id, "--report", str(tmp_path), "--about", known.about]
    asked += ["--into", str(tmp_path / "kept"), "--clause"]
    kept = CliRunner().invoke(main, [*asked, "penalty.repetition"])
    assert kept.exit_code == 0, kept.output
    (file,) = (tmp_path / "kept").iterdir()
    assert file.name == file_name(known)
    assert file.read_bytes() == encode_entry(known)
    assert CliRunner().invoke(main, [*asked, "top-k.keep"]).exit_code == 2
    asked[1] = "nothing"
    assert CliRunner().invoke(main, [*asked, "penalty.repetition"]).exit_code == 2
