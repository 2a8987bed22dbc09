"""A shard far from its driver: nothing is lost between them, and what nobody was told is found again."""

import sys
from dataclasses import replace
from pathlib import Path
from threading import Event

import msgspec
from click.testing import CliRunner

from refsampler.backends.registry import resolve
from refsampler.conformance.case import Case, encode_case
from refsampler.conformance.cli import main
from refsampler.conformance.fuzz import cluster
from refsampler.conformance.fuzz.crew import Crew
from refsampler.conformance.fuzz.posted import Ended, Line, Message, Place, PostedShard
from refsampler.conformance.fuzz.report import header
from refsampler.conformance.fuzz.shard import Broken, declared
from refsampler.conformance.logits import LogitsRecipe, RowRecipe
from refsampler.conformance.records import CaseRecord, FindingRecord, ReportWriter
from refsampler.params import SamplingParams
from refsampler.request import Request
from tests.test_fuzz_workers import a_run

ASKED = "refsampler.conformance.fuzz.posted.fuzz_shard"


def posted(monkeypatch, work):
    monkeypatch.setattr(ASKED, lambda shard, put, copy: work(shard.folder, put, copy))
    _, shard = declared(a_run(Path("runs/one")))
    return PostedShard(shard)


def test_a_shard_goes_on_when_its_last_post_is_asked_past(monkeypatch):
    wrote, told = Event(), Event()

    def work(_folder, put, copy):
        copy(b"line")
        wrote.set()
        put(b"message")
        told.set()

    shard = posted(monkeypatch, work)
    place = shard.take(0)
    assert isinstance(place, Place)
    folder = Path(place.folder)
    assert folder.is_dir()
    assert folder.name.startswith("one.1-")
    assert shard.take(1) == shard.take(1) == Line(b"line")
    assert not wrote.is_set()
    assert shard.take(2) == shard.take(2) == Message(b"message")
    assert (wrote.is_set(), told.is_set()) == (True, False)
    assert shard.take(3) == Ended("")
    assert not folder.exists()


def test_a_shard_that_fails_says_why_and_leaves_its_folder(monkeypatch):
    def work(folder, _put, _copy):
        (folder / "report.jsonl").write_bytes(b"")
        raise ValueError("no such thing")

    shard = posted(monkeypatch, work)
    place = shard.take(0)
    assert isinstance(place, Place)
    assert shard.take(1) == Ended("ValueError: no such thing")
    report = Path(place.folder) / "report.jsonl"
    assert report.is_file()
    report.unlink()
    report.parent.rmdir()


CASE = Case(LogitsRecipe(4, (RowRecipe(),)), (Request(SamplingParams(top_k=2)),))


def found(clause, candidates=()):
    return CaseRecord(
        check="fuzzed-batches",
        id=CASE.id,
        case=msgspec.Raw(encode_case(CASE)),
        clauses=(clause,),
        draws=0,
        seconds=0.0,
        findings=(
            FindingRecord(clause, "words", "others", 1e-20, candidates=candidates),
            FindingRecord("mask.allowed", "words", "others", given="another clause"),
        ),
    )


def test_what_a_shard_did_not_live_to_tell_is_taken_from_its_report(tmp_path):
    told: list[Broken] = []
    crew = Crew(declared(a_run(tmp_path / "one", count=3)), told.append)
    crew.take(Broken(0, "top-p.keep", (), "words", "others", 0.0, "abc"))
    for shard, record in enumerate((found("top-k.keep"), found("min-p.keep", ("top-p.keep",)))):
        folder = tmp_path / f"one.{shard}"
        folder.mkdir()
        with ReportWriter((folder / "report.jsonl").open("wb")) as writer:
            writer.write(record)
    crew.salvage()
    crew.salvage()
    # the second shard's is explained by what was told, and the third wrote nothing
    assert [(one.shard, one.clause, one.case, one.charge) for one in told[1:]] == [
        (0, "top-k.keep", CASE.id, 1e-20)
    ]
    assert "top-k" in told[1].asks
    assert len([*crew.verdicts()]) == 2


def test_every_line_is_copied_when_it_is_written(tmp_path):
    path, copied = tmp_path / "report.jsonl", []
    with ReportWriter(
        path.open("wb"), lambda line: copied.append((line, path.read_bytes()))
    ) as one:
        one.write(found("top-k.keep"))
        one.write(found("top-p.keep"))
    (first, then), (second, whole) = copied
    assert then == first
    assert whole == first + second == path.read_bytes()


def test_a_shard_of_another_version_is_refused():
    capabilities = resolve("native").capabilities
    first = header(capabilities, "native", 3, None)
    there = msgspec.structs.replace(first, refsampler="0", run_seed=7, charge=1.0)
    unlike = cluster._unlike
    assert unlike(msgspec.json.encode(there), first) == "refsampler"
    assert not unlike(msgspec.json.encode(msgspec.structs.replace(first, run_seed=7)), first)
    delta = msgspec.structs.replace(first, capabilities=replace(capabilities, delta=0.001))
    assert unlike(msgspec.json.encode(delta), first) == "capabilities"


def test_a_shard_of_a_cuda_backend_asks_for_a_gpu():
    assert [cluster._wanted(device) for device in ("cpu", "cuda:0")] == [
        {"CPU": 1},
        {"CPU": 1, "GPU": 1},
    ]


def test_without_ray_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    ended = CliRunner().invoke(main, ["fuzz", "native", "--ray"])
    assert ended.exit_code == 2
    assert "pip install 'refsampler[ray]'" in ended.output
