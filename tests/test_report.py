"""The HTML report: everything in it comes from the JSONL, and nothing that a backend says is markup."""

import re
from dataclasses import replace
from html.parser import HTMLParser
from urllib.parse import quote, unquote

import msgspec
import pytest
from click.testing import CliRunner

from refsampler.conformance.cli import main
from refsampler.conformance.records import Footer, Record, VerdictRecord, read_report
from refsampler.conformance.reporting import html as html_module
from refsampler.conformance.reporting.health import Health, committed, read_health
from refsampler.conformance.reporting.html import html
from refsampler.conformance.reporting.stored import NoReportError, read_run
from tests.failing_run import EVIL


@pytest.fixture
def plain(monkeypatch):
    """Pages without plots, which take most of the time."""
    monkeypatch.setattr(html_module, "can_plot", lambda: False)


class Elements(HTMLParser):
    """Tags that are open at the end, ids, links inside the page, and everything fetched."""

    EMPTY = frozenset({"meta", "link", "br", "use", "path"})

    def __init__(self, text):
        super().__init__()
        self.open, self.ids, self.links, self.tags, self.text = [], [], set(), set(), []
        self.fetched = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        named = dict(attrs)
        self.tags.add(tag)
        if tag not in self.EMPTY:
            self.open.append(tag)
        self.ids += [named["id"]] if "id" in named else []
        if tag == "a" and named["href"].startswith("#"):
            self.links.add(named["href"][1:])
        self.fetched += [named[key] for key in ("src", "srcset", "data") if key in named]

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in self.EMPTY:
            self.open.pop()

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


def test_a_failing_run_becomes_a_page(failing, plain):
    page = html(read_run(failing))
    found = Elements(page)
    assert found.open == []
    assert len(found.ids) == len(set(found.ids))
    assert found.links <= set(found.ids)
    assert "f-draw.law" in found.ids
    text = " ".join(" ".join(found.text).split())
    assert "does not conform" in text
    assert "the exact law within the declared delta" in text
    (size,) = re.findall(r"temperature looks like ([0-9.]+) \(.{0,40}fitted to \d+ laws", text)
    assert 1.04 < float(size) < 1.06
    assert "at most 1e-09 that a right backend is reported FAIL" in text
    assert "run seed 3" in text
    assert re.search(r"refsampler replay [0-9a-f]{12}", text)


def test_what_a_backend_says_stays_text_and_nothing_is_fetched(failing, plain):
    page = html(read_run(failing))
    found = Elements(page)
    assert "script" not in found.tags
    assert EVIL in "".join(found.text)
    assert found.fetched == []
    assert "@import" not in page
    assert not re.search(r"(?:href|url\()=?[\"']?https?:", page)


def test_the_script_of_a_failure_is_linked_where_it_lies(failing, plain):
    run = read_run(failing)
    page = html(run)
    scripts = [path.name for path in (failing / "repro").glob("*.py")]
    assert scripts
    assert all(f'href="repro/{name}"' in page for name in scripts)
    assert 'href="repro/' not in html(replace(run, folder=run.folder / "elsewhere"))


def test_without_matplotlib_the_page_is_written_and_says_so(failing, plain):
    page = html(read_run(failing))
    assert "refsampler[report]" in page
    assert "<svg" not in page


def test_each_law_has_its_plots_in_the_colours_of_the_page(failing):
    pytest.importorskip("matplotlib", reason="the extra `report` is not installed")
    run = read_run(failing)
    page = html(run)
    assert page.count("<svg") == sum(4 if len(law.path) > 1 else 3 for law in run.laws)
    ids = Elements(page).ids
    assert len(ids) == len(set(ids))
    assert not set(re.findall(r"""(?:xlink:href="|url\()#([^")]+)""", page)) - set(ids)
    assert {"var(--line)", "var(--band)", "var(--off)"} <= set(re.findall(r"var\(--\w+\)", page))
    assert not re.search("#0[1-5]0[1-5]0[1-5]", page)
    assert "refsampler[report]" not in page
    assert len(page) < 3 * 2**20


def test_the_path_of_the_evidence_is_stored(failing):
    run = read_run(failing)
    for law in run.laws:
        draws = [drawn for drawn, _ in law.path]
        assert draws == sorted(set(draws))
        drawn, log_e = law.path[-1]
        assert drawn == law.draws
        assert log_e == pytest.approx(law.log_e, abs=1e-4)


def test_the_command_writes_it_beside_the_report(failing, plain):
    ran = CliRunner().invoke(main, ["report", str(failing)])
    assert ran.exit_code == 0, ran.output
    assert (failing / "report.html").read_text("utf-8").startswith("<!DOCTYPE html>")
    missing = CliRunner().invoke(main, ["report", str(failing / "nowhere")])
    assert missing.exit_code == 2
    assert "Traceback" not in missing.output


def rewritten(source, target, change):
    """Write a report with some records changed or, where None comes back, left out."""
    changed = (change(record) for record in read_report(source / "report.jsonl"))
    lines = [msgspec.json.encode(one) + b"\n" for one in changed if one is not None]
    (target / "report.jsonl").write_bytes(b"".join(lines))
    return read_run(target)


def test_failures_stand_with_the_worst_first(failing, plain, tmp_path):
    def failed(clause, **said):
        (law,) = (one for one in read_run(failing).verdicts if one.clause == "draw.law")
        return msgspec.structs.replace(law, clause=clause, **said)

    added = [
        failed("mask.flagged", log_e=None, false_alarm=0.0),  # a SHOULD
        failed("top-k.keep", log_e=None, false_alarm=0.0),
        failed("top-p.keep", expected="fail", reason="expected: known", log_e=None),
    ]

    def change(record: Record):
        if isinstance(record, VerdictRecord) and record.clause != "draw.law":
            return None
        return record if not isinstance(record, Footer) else None

    run = rewritten(failing, tmp_path, change)
    with (tmp_path / "report.jsonl").open("ab") as stream:
        stream.writelines(msgspec.json.encode(one) + b"\n" for one in added)
    run = read_run(tmp_path)
    order = re.findall(r'id="f-([^"]+)"', html(run))
    assert order == ["top-k.keep", "draw.law", "mask.flagged", "top-p.keep"]


def test_a_killed_run_claims_nothing(failing, plain, tmp_path):
    def change(record: Record):
        return None if isinstance(record, Footer | VerdictRecord) else record

    page = html(rewritten(failing, tmp_path, change))
    assert "the run did not end" in page
    assert 'class="verdict open"' in page


def test_no_report_is_refused(tmp_path):
    for content in ("", "no json\n", '{"record":"footer"}\n'):
        (tmp_path / "report.jsonl").write_text(content)
        with pytest.raises(NoReportError):
            read_run(tmp_path)


def test_the_committed_results_about_the_suite_are_read(tmp_path):
    found = read_health(committed())
    assert found.calibration
    assert all(one.reached <= one.allowed for one in found.calibration)
    assert found.faults
    assert all(0 <= one.caught <= one.asked for one in found.faults)
    assert "refsampler audit" in found.faults_made
    assert read_health(tmp_path) == Health()


def test_an_index_shows_every_clause_of_every_run(failing, plain, tmp_path):
    from xml.etree import ElementTree as ET

    second, folder = tmp_path / "second <run>", tmp_path / "index"
    second.mkdir()
    rewritten(failing, second, lambda record: record)
    (second / "note.txt").write_text("by hand: <b>Tuesday</b>\n", "utf-8")
    ran = CliRunner().invoke(main, ["report", str(failing), str(second), "--index", str(folder)])
    assert ran.exit_code == 0, ran.output
    assert not (second / "report.html").exists()
    page = (folder / "README.md").read_text("utf-8")
    assert "| `draw.law` | ✗ | ✗ |" in page
    assert "<script" not in page
    assert "* note: by hand: &lt;b>Tuesday&lt;/b>" in page
    assert "* asked: profile quick, clauses draw.law only, run seed 3, " in page
    assert re.search(r"\* not asked: .*\btop-k\.keep, ", page)
    browsable = (folder / "index.html").read_text("utf-8")
    found = Elements(browsable)
    assert found.open == []
    assert "script" not in found.tags
    assert found.fetched == []
    names = {unquote(one) for one in re.findall(r'href="([^"#]+)#[fc]-', browsable)}
    assert names == {f"{failing.name}.html", "second <run>.html"}
    for name in names:
        ids = Elements((folder / name).read_text("utf-8")).ids
        anchors = re.findall(rf'href="{re.escape(quote(name))}#([^"]+)"', browsable)
        assert "f-draw.law" in anchors
        assert set(anchors) <= set(ids)
    root = ET.fromstring((folder / "map.svg").read_text("utf-8"))  # noqa: S314 - our own
    cells = [one for one in root.findall(".//{*}rect") if one.find("{*}title") is not None]
    verdicts = read_run(failing).verdicts
    assert [one.get("class") for one in cells] == 2 * [one.status for one in verdicts]
    assert not root.findall(".//{*}script")
    same = CliRunner().invoke(main, ["report", str(failing), str(failing), "--index", str(folder)])
    assert same.exit_code == 2
