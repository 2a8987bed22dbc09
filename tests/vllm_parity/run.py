"""Compare the reference with the real vLLM sampler on batches that Hypothesis makes.

    .venv-vllm/bin/python -m tests.vllm_parity.run [--batches N] [--seed S] [--report DIR]

Runs in the environment of setup_env.py; `make vllm-parity` does both. Exit 0: every difference is
explained by a clause. Exit 1: one is not; the smallest such batch is printed as JSON.
"""

from __future__ import annotations

import argparse
import logging
import platform
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import msgspec
import torch

from refsampler.clauses import load
from refsampler.conformance.case import encode_case
from tests.vllm_parity import oracle, reference
from tests.vllm_parity.batches import ParityCase, features, make, smaller
from tests.vllm_parity.compare import compare
from tests.vllm_parity.findings import Finding, Kind
from tests.vllm_parity.report import Result, Unexplained, Versions, tally, write
from tests.vllm_parity.sides import seeded_globally

__all__ = ["main"]

REPO = Path(__file__).resolve().parents[2]
REPORT = Path("reports/vllm-parity")
MOST_SHRINKS = 500


def main(argv: Sequence[str] | None = None) -> int:
    """Run, report, and say by the exit code whether every difference is explained."""
    parser = argparse.ArgumentParser(prog="python -m tests.vllm_parity.run")
    parser.add_argument("--batches", type=int, default=2000, help="default: %(default)s")
    parser.add_argument("--seed", type=int, default=1, help="of Hypothesis; default: %(default)s")
    parser.add_argument("--report", type=Path, help="folder to write; none if left out")
    options = parser.parse_args(argv)
    # vLLM compiles its draw for a few shapes and then runs it eagerly; dynamo says so at length
    logging.getLogger("torch._dynamo").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    result = run(options.batches, options.seed)
    if options.report is not None:
        write(result, options.report)
    sys.stdout.write(summary(result))
    return 1 if result.unexplained else 0


def run(batches: int, run_seed: int) -> Result:
    """Compare `batches` batches and count how the comparisons ended."""
    start = time.monotonic()
    made = make(batches, run_seed)
    found = [judge(one) for one in made]
    clauses = load().clauses
    checks, differences = tally(
        found,
        departs={one.id: one.departs for one in clauses},
        texts={one.id: one.text for one in clauses},
    )
    counts = Counter(name for one in made for name in features(one))
    return Result(
        date=datetime.now(UTC).date().isoformat(),
        command=f"python -m tests.vllm_parity.run --batches {batches} --seed {run_seed}",
        versions=versions(),
        run_seed=run_seed,
        batches=len(made),
        rows=sum(len(one.case.requests) for one in made),
        seconds=round(time.monotonic() - start, 1),
        features=dict(sorted(counts.items())),
        checks=checks,
        differences=differences,
        unexplained=unexplained(made, found),
    )


def judge(one: ParityCase) -> tuple[Finding, ...]:
    """Run both samplers on a batch and compare them."""
    logits, requests = one.case.build_logits(), one.case.requests
    with seeded_globally(0):
        ours = reference.run(logits, requests, one.mode)
        metadata = oracle.build_metadata(requests, one.case.logits.vocab)
        real = oracle.run(logits, metadata, one.mode)
    return compare(logits, requests, one.mode, ours, real)


def unexplained(
    made: Sequence[ParityCase], found: Sequence[Sequence[Finding]]
) -> tuple[Unexplained, ...]:
    """Return each kind of unexplained difference once, in a batch made as small as it gets."""
    first: dict[tuple[str, str], ParityCase] = {}
    counts: Counter[tuple[str, str]] = Counter()
    for one, findings in zip(made, found, strict=True):
        for finding in _unexplained(findings):
            key = finding.check, finding.clause
            counts[key] += 1
            first.setdefault(key, one)
    return tuple(_shrunk(one, key, counts[key]) for key, one in first.items())


def _shrunk(one: ParityCase, key: tuple[str, str], count: int) -> Unexplained:
    """Simplify the batch as long as the same comparison fails."""
    tried = 0
    progress = True
    while progress and tried < MOST_SHRINKS:
        progress = False
        for candidate in smaller(one):
            tried += 1
            if tried > MOST_SHRINKS:
                break
            if _fails(candidate, key):
                one, progress = candidate, True
                break
    finding = next(f for f in _unexplained(judge(one)) if (f.check, f.clause) == key)
    return Unexplained(finding, one.mode, msgspec.Raw(encode_case(one.case)), count)


def _fails(one: ParityCase, key: tuple[str, str]) -> bool:
    return any((finding.check, finding.clause) == key for finding in _unexplained(judge(one)))


def _unexplained(findings: Sequence[Finding]) -> list[Finding]:
    return [one for one in findings if one.kind is Kind.UNEXPLAINED]


def versions() -> Versions:
    """Return what is compared, and with what."""
    return Versions(
        vllm=version("vllm").removesuffix("+cpu"),  # what setup_env.py adds
        torch=str(torch.__version__),
        python=platform.python_version(),
        platform=f"{platform.system()} {platform.machine()}",
        commit=_commit(),
    )


def _commit() -> str:
    """Return the commit, and whether the code that ran differs from it."""

    def git(*arguments: str) -> str:
        done = subprocess.run(
            ["git", "-C", str(REPO), *arguments], check=False, capture_output=True, text=True
        )
        return done.stdout.strip()

    changed = git(
        "status", "--porcelain", "--", "refsampler", "backends", "conformance", "tests/vllm_parity"
    )
    return git("rev-parse", "--short", "HEAD") + (" with changes" if changed else "")


def summary(result: Result) -> str:
    """Return the counts as text; unexplained batches as JSON."""
    versions = result.versions
    head = f"{result.batches} batches, {result.rows} rows, {result.seconds} s, vllm {versions.vllm}"
    checks = (
        f"{one.agrees:7} agree {one.open:5} open {one.departs:5} depart "
        f"{one.unexplained:3} unexplained  {one.check}"
        for one in result.checks
    )
    problems = (msgspec.json.encode(one).decode() for one in result.unexplained)
    return "\n".join((head, *checks, *problems)) + "\n"


if __name__ == "__main__":
    raise SystemExit(main())
