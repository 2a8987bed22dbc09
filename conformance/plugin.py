"""The pytest plugin: `pytest --backend my_module:backend` tests a backend, a test item a clause.

It is loaded by every pytest run where refsampler is installed, so that everything but the options
is imported on use.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from argparse import ArgumentTypeError
from collections import Counter
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from refsampler.conformance.gate import Gate, Wanted
    from refsampler.conformance.results import ClauseResult

__all__ = [
    "BackendClauses",
    "ClauseItem",
    "pytest_addoption",
    "pytest_collection_modifyitems",
    "pytest_configure",
    "pytest_configure_node",
    "pytest_report_header",
    "pytest_runtest_call",
    "pytest_terminal_summary",
    "pytest_unconfigure",
]

_GATE = pytest.StashKey["Gate"]()
_SHARED = pytest.StashKey[Path]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options; their names are those of `refsampler check` where nothing forbids it."""
    group = parser.getgroup("refsampler", "conformance of token samplers (refsampler)")
    group.addoption(
        "--backend",
        action="append",
        default=[],
        metavar="B",
        dest="sampler_backends",
        help="Test this backend, a name or module:attribute; can be given more than once.",
    )
    group.addoption(
        "--sampler-profile",
        choices=("quick", "full"),
        default="quick",
        help="How many draws; default: quick.",
    )
    group.addoption(
        "--clause",
        default="*",
        metavar="GLOB",
        dest="sampler_clause",
        help="Only clauses of --backend that match, as top-p.*",
    )
    group.addoption(
        "--sampler-seed", type=_seed, metavar="N", help="Run seed; fresh and printed without."
    )
    group.addoption(
        "--sampler-report",
        type=Path,
        metavar="DIR",
        help="Folder in which each backend's report gets a folder; default: reports/runs.",
    )
    group.addoption(
        "--sampler-inconclusive",
        choices=("fail", "skip"),
        default="fail",
        help="What a clause that was not decided does; default: fail.",
    )
    group.addoption(
        "--sampler-in-process",
        action="store_true",
        help="Ask backends in pytest's own process, where a crash ends the session.",
    )
    group.addoption(
        "--expectations",
        type=Path,
        metavar="FILE",
        dest="sampler_expectations",
        help="TOML file of the failures of --backend that are expected, each with its reason.",
    )


def _seed(text: str) -> int:
    if not text.isdecimal():
        raise ArgumentTypeError(f"{text!r} is refused: allowed is a whole number of at least 0")
    return int(text)


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker; refuse a pattern that no clause matches and a file that says nothing."""
    config.addinivalue_line("markers", "clause(id): the contract clause that the test is about")
    if not config.option.sampler_backends:
        return
    from refsampler.conformance.gate import clause_names

    glob = config.option.sampler_clause
    if not clause_names(glob):
        raise pytest.UsageError(f"--clause: no clause matches {glob!r}")
    if config.option.sampler_expectations is not None:
        from refsampler.conformance.expectations import ExpectationsError, read_expectations

        try:
            read_expectations(config.option.sampler_expectations)
        except (ExpectationsError, OSError) as error:
            raise pytest.UsageError(f"--expectations: {error}") from error


def pytest_unconfigure(config: pytest.Config) -> None:
    """Remove what the workers of the session shared."""
    if _SHARED in config.stash:
        shutil.rmtree(config.stash[_SHARED], ignore_errors=True)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Give a worker of pytest-xdist the session's run seed and shared folder."""
    config: pytest.Config = node.config
    if _SHARED not in config.stash:
        config.stash[_SHARED] = Path(tempfile.mkdtemp(prefix="refsampler-"))
    node.workerinput["refsampler_shared"] = str(config.stash[_SHARED])
    node.workerinput["refsampler_seed"] = _gate(config).run_seed


def _gate(config: pytest.Config) -> Gate:
    """Return the session's runs."""
    if _GATE not in config.stash:
        from refsampler.conformance.gate import REPORTS, Gate

        option = config.option
        given: dict[str, Any] = getattr(config, "workerinput", {})
        seed = given.get("refsampler_seed", option.sampler_seed)
        gate = Gate(
            profile=option.sampler_profile,
            reports=option.sampler_report or REPORTS,
            shared=Path(given["refsampler_shared"]) if "refsampler_shared" in given else None,
            inconclusive=option.sampler_inconclusive,
            in_process=option.sampler_in_process,
            expectations=option.sampler_expectations,
        )
        if seed is not None:
            gate.run_seed = seed
        config.stash[_GATE] = gate
    return config.stash[_GATE]


def pytest_report_header(config: pytest.Config) -> list[str]:
    """Say what is tested; the same line names a backend that cannot be opened."""
    if hasattr(config, "workerinput"):  # the controller has said it
        return []
    return [_header(config, spec) for spec in dict.fromkeys(config.option.sampler_backends)]


def _header(config: pytest.Config, spec: str) -> str:
    from refsampler.backends.registry import BackendBroken, BackendNotFound, resolve
    from refsampler.conformance.evidence.budget import TOTAL

    try:
        capabilities = resolve(spec).capabilities
    except (BackendNotFound, BackendBroken) as error:
        return f"refsampler: ERROR: {error}"
    gate = _gate(config)
    return (
        f"refsampler: {spec}: {capabilities.name} {capabilities.version} on "
        f"{capabilities.device}, profile {gate.profile}, run seed {gate.run_seed}, "
        f"false alarm of the run (alpha) at most {TOTAL:.0e}"
    )


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(
    session: pytest.Session, config: pytest.Config, items: list[pytest.Item]
) -> None:
    """Add the clauses of each backend, whatever files were collected."""
    for spec in dict.fromkeys(config.option.sampler_backends):
        from refsampler.conformance.gate import Wanted

        clauses = BackendClauses.from_parent(session, name=spec, nodeid=f"refsampler/{spec}")
        clauses.wanted = Wanted(spec, config.option.sampler_clause)
        added = list(clauses.collect())
        items.extend(added)
        # The terminal counts what collection reports.
        report = pytest.CollectReport(clauses.nodeid, "passed", None, [*added])
        config.hook.pytest_collectreport(report=report)


class BackendClauses(pytest.Collector):
    """The clauses of a backend."""

    wanted: Wanted

    def collect(self) -> Iterator[ClauseItem]:
        """Yield an item a clause; the backend is not opened."""
        from refsampler.conformance.gate import clause_names
        from refsampler.conformance.results import NOT_SELECTED

        for name in clause_names(self.wanted.glob):
            item = ClauseItem.from_parent(self, name=name)
            item.wanted = self.wanted
            if name != NOT_SELECTED:
                item.add_marker(pytest.mark.clause(name))
            yield item


class ClauseItem(pytest.Item):
    """A clause of a backend; the first one that is set up runs the checks of all."""

    wanted: Wanted
    result: ClauseResult

    def setup(self) -> None:
        """Get the verdict: a run without one is an error of the set-up, never a skip."""
        from refsampler.conformance.gate import ClauseCheck, RunFailed, set_gate

        gate = _gate(self.config)
        take_back = set_gate(gate)
        failure = ""
        try:
            self.result = gate.clause(self.wanted, self.name)
        except RunFailed as error:
            failure = str(error)
        finally:
            self.user_properties += ClauseCheck(self.wanted, self.name).properties()
            take_back()
        headline, _, details = failure.partition("\n")
        if details:
            # Beside the message, which the closing summary repeats in full where CI is set.
            self.add_report_section("setup", "harness", details)
        if failure:
            pytest.fail(headline, pytrace=False)

    def runtest(self) -> None:
        """End as the clause ended."""
        from refsampler.conformance.gate import settle

        settle(self.result, _gate(self.config).inconclusive)

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """Show the verdict's own words; where the harness raised them says nothing."""
        from refsampler.conformance.gate import ClauseFailed, ClauseInconclusive

        if isinstance(excinfo.value, ClauseFailed | ClauseInconclusive):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[str, None, str]:
        """Return where the item stands, at no line of any file, and its headline.

        The headline is no end of the node id: pytest would print its dots as colons.
        """
        return self.nodeid.partition("::")[0], None, f"{self.name} of {self.wanted.backend}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Lend the session's runs to checks of `parametrize_with_checks`; note what they showed."""
    checks = _checks(item)
    if not checks:
        return (yield)
    from refsampler.conformance.gate import set_gate

    take_back = set_gate(_gate(item.config))
    try:
        return (yield)
    finally:
        for check in checks:
            item.user_properties += check.properties()
        take_back()


def _checks(item: pytest.Item) -> list[Any]:
    """Return the checks among a test's parameters, without importing anything for other tests."""
    gate = sys.modules.get("refsampler.conformance.gate")
    if gate is None:
        return []
    parameters = getattr(getattr(item, "callspec", None), "params", {})
    return [value for value in parameters.values() if isinstance(value, gate.ClauseCheck)]


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Count the verdicts of each backend, those that were not tested too."""
    counts: dict[tuple[str, str], Counter[str]] = {}
    stale: dict[str, dict[str, None]] = {}
    seen: set[str] = set()
    for reports in list(terminalreporter.stats.values()):
        for report in reports:
            held = dict(getattr(report, "user_properties", ()))
            if "backend" in held and "clause" in held and report.nodeid not in seen:
                seen.add(report.nodeid)
                run = counts.setdefault((held["backend"], held["run_seed"]), Counter())
                run[held["status"]] += 1
                if "stale_expectation" in held:
                    line = f"{held['clause']}: {held['stale_expectation']}"
                    stale.setdefault(held["backend"], {})[line] = None
    if not counts:
        return
    from refsampler.conformance.verdict import Status

    terminalreporter.section("refsampler")
    for (backend, run_seed), statuses in counts.items():
        shown = ", ".join(
            f"{statuses[one.name]} {one.name}" for one in Status if statuses[one.name]
        )
        terminalreporter.write_line(f"{backend}: {shown}; run seed {run_seed}")
        for line in stale.get(backend, ()):
            terminalreporter.write_line(f"{backend}: stale expectation of {line}")
