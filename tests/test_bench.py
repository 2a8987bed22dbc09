"""The bench: what it samples, what it takes off, and what it reports; never how fast."""

import json

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from refsampler.backends.native import backend as native
from refsampler.backends.reference import engine, sampler
from refsampler.conformance.bench.contestants import Floor, contestant
from refsampler.conformance.bench.measure import FLOOR, Effort, measure
from refsampler.conformance.bench.workload import Cache, Cell, Pool, RowKind, parameters
from refsampler.conformance.cli import main

CELL = Cell(batch=4, vocab=50, mode="k=3,p=.5", rows=RowKind.LLM, cache=Cache.DRAM)


def test_modes_are_parameters():
    both = parameters("k=50,p=.9")
    assert (both.temperature, both.top_k, both.top_p) == (0.8, 50, 0.9)
    alone = parameters("T")
    assert (alone.temperature, alone.top_p, alone.min_p) == (0.8, 1.0, 0.0)
    other = parameters("T=2,min_p=.1")
    assert (other.temperature, other.min_p) == (2.0, 0.1)
    with pytest.raises(ValueError, match="mode = 'q=3' is refused: allowed are T, or k, p"):
        parameters("q=3")


def test_rows_are_of_their_kind(monkeypatch):
    monkeypatch.setattr("refsampler.conformance.bench.workload._POOL_BYTES", 1)
    rows = {kind: Pool(kind, 2, 4096, "cpu").window() for kind in RowKind}
    # Standard deviations of 8192 numbers are within 5 % of the truth by six of their own.
    assert float(rows[RowKind.PEAKED].std()) == pytest.approx(4, rel=0.05)
    assert float(rows[RowKind.FLAT].std()) == pytest.approx(0.01, rel=0.05)
    assert rows[RowKind.EQUAL].unique().numel() == 1
    # Rank 100 of Zipf's 1.5 lies 1.5 ln(102.7 / 3.7) = 5.0 below rank 1; noise moves it by 1 or so.
    ranked = rows[RowKind.LLM].sort(descending=True).values
    assert torch.all((ranked[:, 0] - ranked[:, 100] - 5.0).abs() < 3)


def test_windows_go_round_and_meet_again_after_the_whole_pool(monkeypatch):
    monkeypatch.setattr("refsampler.conformance.bench.workload._POOL_BYTES", 4 * 10 * 2 * 3)
    pool = Pool(RowKind.FLAT, 2, 10, "cpu")
    starts = [pool.window().data_ptr() for _ in range(4)]
    assert len(set(starts[:3])) == 3
    assert starts[3] == starts[0]


@pytest.mark.parametrize("subject", [native, sampler, engine])
def test_a_backend_of_any_level_samples_a_window(subject):
    made = contestant("it", subject, CELL)
    with made.closing:
        window = torch.randn(4, 50)
        found = made.call(window)
    ids = getattr(found, "ids", getattr(found, "sampled_token_ids", None))
    assert ids is not None
    kept = window.topk(3).indices
    assert all(int(one) in kept[row] for row, one in enumerate(ids.flatten()))


class Told(Floor):
    """A floor that takes two seconds a row."""

    def __init__(self):
        self.name = "told"

    def read(self, window, times=1):
        clock.now += 2.0 * times * len(window)


class Slow:
    capabilities = native.capabilities

    def draw(self, window, _rows):
        clock.now += 10.0 * len(window)
        return window.argmax(-1)


class Clock:
    now = 0.0


clock = Clock()


@pytest.mark.parametrize("cache", list(Cache))
def test_times_are_a_row_and_ratios_are_to_the_floor(cache, monkeypatch):
    monkeypatch.setattr("refsampler.conformance.bench.workload._POOL_BYTES", 1)
    monkeypatch.setattr("time.perf_counter", lambda: clock.now)
    monkeypatch.setattr("time.process_time", lambda: clock.now / 2)
    cell = Cell(batch=4, vocab=50, mode="T", rows=RowKind.FLAT, cache=cache)
    floor, slow = measure(cell, [("slow", Slow())], Told(), Effort(repeats=3))
    assert (floor.name, slow.name) == (FLOOR, "slow")
    assert floor.row_us == pytest.approx(2e6)
    assert slow.row_us == slow.best_us == slow.low_us == pytest.approx(10e6)
    assert slow.tokens_per_s == pytest.approx(0.1)
    assert slow.tokens_per_core_s == pytest.approx(0.2)
    assert (floor.of_floor, slow.of_floor) == pytest.approx((1, 0.2))


def test_the_command_writes_json_and_a_table(tmp_path, monkeypatch):
    monkeypatch.setattr("refsampler.conformance.bench.workload._POOL_BYTES", 1)
    out = tmp_path / "new" / "bench.json"
    options = "--batch 2 --vocab 600 --mode T --rows equal --cache dram --cache read --repeats 3"
    ran = CliRunner().invoke(
        main, ["bench", "cpu", "native", *options.split(), "--output", str(out)]
    )
    assert ran.exit_code == 0, ran.output
    report = json.loads(out.read_text("utf-8"))
    assert [one["name"] for one in report["measured"]] == ["memory floor", "cpu", "native"] * 2
    assert {one["repeats"] for one in report["measured"]} == {3}
    assert report["ready_s"]["cpu"] > 0
    assert np.isfinite(report["measured"][0]["row_us"])
    assert ran.output.splitlines()[1].split()[:6] == ["600", "2", "equal", "T", "dram", "memory"]


def test_what_cannot_be_opened_is_left_out_and_said():
    options = ["--batch", "1", "--vocab", "10", "--mode", "T", "--rows", "equal"]
    nothing = CliRunner().invoke(main, ["bench", "absent", *options])
    assert nothing.exit_code == 4
    assert "left out: backend 'absent' is not known" in nothing.output
    refused = CliRunner().invoke(main, ["bench", "native", "--mode", "z=1"])
    assert refused.exit_code == 2
