"""JUnit XML from the command line: every outcome at its element, any text survives."""

from typing import Any
from xml.etree import ElementTree as ET

import pytest
from click.testing import CliRunner

from refsampler.conformance.cli import main
from refsampler.conformance.reporting.junit import junit
from refsampler.conformance.results import NOT_SELECTED, ClauseResult
from refsampler.conformance.verdict import Status


def result(clause, status, **fields):
    held: dict[str, Any] = {
        "must": True,
        "needed": False,
        "text": f"{status.name}: why",
        "log_e": None,
    }
    held |= {"draws": 1000, "detectable": "", "seconds": 0.25}
    return ClauseResult(clause=clause, status=status, **(held | fields))


def parsed(document):
    return ET.fromstring(document)  # noqa: S314 - what the function under test wrote


@pytest.mark.parametrize(
    ("one", "kind"),
    [
        (result("a.b", Status.PASS), None),
        (result("a.b", Status.FAIL), "failure"),
        (result("a.b", Status.FAIL, must=False), "skipped"),
        (result("a.b", Status.FAIL, expected="expected: known"), "skipped"),
        (result("a.b", Status.INCONCLUSIVE), "failure"),
        (result("a.b", Status.UNSUPPORTED), "skipped"),
        (result("a.b", Status.UNSUPPORTED, needed=True), "failure"),
        (result("a.b", Status.INHERITED), "skipped"),
        (result("a.b", Status.NOT_RUN), "skipped"),
        (result("a.b", Status.ERROR), "error"),
    ],
)
def test_each_status_has_its_element(one, kind):
    (case,) = parsed(junit("mine", [one])).iter("testcase")
    assert [child.tag for child in case if child.tag != "properties"] == ([kind] if kind else [])


def test_counts_times_and_properties():
    statuses = (Status.PASS, Status.FAIL, Status.FAIL, Status.ERROR, Status.NOT_RUN)
    results = [result(f"a.{name}", one) for name, one in zip("bcdef", statuses, strict=True)]
    results.append(result("draw.law", Status.PASS, log_e=-0.125, detectable="top-k +1"))
    root = parsed(junit("mine", results, ["check x: broke"]))
    (suite,) = root
    for element in (root, suite):
        counts = {key: element.get(key) for key in ("tests", "failures", "errors", "skipped")}
        assert counts == {"tests": "6", "failures": "2", "errors": "1", "skipped": "1"}
        assert element.get("time") == "1.500"
    assert suite.find("system-err").text == "check x: broke"
    law = list(suite.iter("testcase"))[-1]
    assert (law.get("classname"), law.get("name")) == ("refsampler.mine", "draw.law")
    assert {one.get("name"): one.get("value") for one in law.iter("property")} == {
        "clause": "draw.law",
        "status": "PASS",
        "log_e": "-0.125",
        "draws": "1000",
        "detectable_bias": "top-k +1",
    }


def test_any_text_survives():
    text = 'FAIL a.b\n  seen <ids> & "quotes" ]]> \x1b[31m\x00 \ud800 \N{GREEK SMALL LETTER DELTA}'
    one = result(NOT_SELECTED, Status.FAIL, text=text, detectable='<&"\x07')
    (case,) = parsed(junit('<m>&"\x01', [one], ["\x02"])).iter("testcase")
    shown = text.replace("\x1b", "\ufffd").replace("\x00", "\ufffd").replace("\ud800", "\ufffd")
    assert case.find("failure").text == shown
    assert case.find("failure").get("message") == "FAIL a.b"
    assert case.get("classname") == 'refsampler.<m>&"\ufffd'


def test_check_writes_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["check", "tests.broken_samplers:OneMore", "--clause", "top-k.*", "--seed", "3"]
    words += ["--in-process", "--junit", "out/junit.xml"]
    ran = CliRunner().invoke(main, words)
    assert ran.exit_code == 1, ran.output
    assert isinstance(ran.exception, SystemExit), ran.exc_info
    root = parsed((tmp_path / "out" / "junit.xml").read_bytes())
    assert root.get("failures") == "1"
    cases = {case.get("name"): case for case in root.iter("testcase")}
    assert set(cases) == {"top-k.keep", "top-k.ties", "top-k.off"}
    lines = cases["top-k.keep"].find("failure").text.splitlines()
    assert [line.split()[0] for line in lines] == [
        *("FAIL", "expected", "seen", "sure", "smallest", "replay")
    ]
