"""Compare the reference's verifier with vLLM's V1 rejection sampler on steps that Hypothesis makes.

    .venv-vllm/bin/python -m tests.vllm_parity.speculative [--batches N] [--seed S] [--report DIR]

Runs in the environment of setup_env.py; `make vllm-parity` does it too.  Every random request has a
seed, and both sides take the same noise from it in the same order, so ids are compared one by one.
Exit 0: every difference is explained by a clause. Exit 1: one is not; the first is printed as JSON.
"""

from __future__ import annotations

from tests.vllm_parity.interpreter import install

install()  # before vLLM

import argparse  # noqa: E402
import sys  # noqa: E402
import time  # noqa: E402
from collections.abc import Sequence  # noqa: E402
from datetime import UTC, datetime  # noqa: E402
from pathlib import Path  # noqa: E402

import msgspec  # noqa: E402
import torch  # noqa: E402

from refsampler.clauses import load  # noqa: E402
from refsampler.conformance.case import Case, encode_case  # noqa: E402
from refsampler.conformance.verifying import step_of  # noqa: E402
from refsampler.metadata import SamplingMetadata  # noqa: E402
from refsampler.speculative import RejectionSampler  # noqa: E402
from tests.vllm_parity import rejection  # noqa: E402
from tests.vllm_parity.drafted import compare, make  # noqa: E402
from tests.vllm_parity.findings import Finding, Kind  # noqa: E402
from tests.vllm_parity.report import LEGEND, Result, Unexplained, tally  # noqa: E402
from tests.vllm_parity.run import summary, versions  # noqa: E402
from tests.vllm_parity.sides import seeded_globally  # noqa: E402

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run, report, and say by the exit code whether every difference is explained."""
    parser = argparse.ArgumentParser(prog="python -m tests.vllm_parity.speculative")
    parser.add_argument("--batches", type=int, default=1000, help="default: %(default)s")
    parser.add_argument("--seed", type=int, default=1, help="of Hypothesis; default: %(default)s")
    parser.add_argument("--report", type=Path, help="folder to write; none if left out")
    options = parser.parse_args(argv)
    torch.set_num_threads(1)
    result = run(options.batches, options.seed)
    if options.report is not None:
        write(result, options.report)
    sys.stdout.write(summary(result))
    return 1 if result.unexplained else 0


def run(batches: int, run_seed: int) -> Result:
    """Compare so many steps and count how the comparisons ended."""
    start = time.monotonic()
    made = make(batches, run_seed)
    found = [judge(one) for one in made]
    clauses = load().clauses
    checks, differences = tally(
        found,
        departs={one.id: one.departs for one in clauses},
        texts={one.id: one.text for one in clauses},
    )
    steps = [step_of(one) for one in made]
    return Result(
        date=datetime.now(UTC).date().isoformat(),
        command=f"python -m tests.vllm_parity.speculative --batches {batches} --seed {run_seed}",
        versions=versions(),
        run_seed=run_seed,
        batches=len(made),
        rows=sum(len(one.requests) for one in steps),
        seconds=round(time.monotonic() - start, 1),
        features={"drafts": sum(len(ids) for one in steps for ids in one.drafts)},
        checks=checks,
        differences=differences,
        unexplained=[
            Unexplained(finding, "", msgspec.Raw(encode_case(one)), 1)
            for one, findings in zip(made, found, strict=True)
            for finding in findings
            if finding.kind is Kind.UNEXPLAINED
        ],
    )


def judge(case: Case) -> tuple[Finding, ...]:
    """Run both verifiers on a step and compare them."""
    step = step_of(case)
    ids = torch.tensor([token for one in step.drafts for token in one], dtype=torch.int32)
    metadata = SamplingMetadata.from_requests(step.requests, case.logits.vocab, speculative=True)
    with seeded_globally(0):
        ours = RejectionSampler()(ids, step.draft_probs, step.logits, metadata).emitted()
    with seeded_globally(0):
        real = rejection.verify(step.requests, step.logits, step.draft_probs)
    return compare(case, ours, real)


def write(result: Result, folder: Path) -> None:
    """Write speculative.json and speculative.md."""
    folder.mkdir(parents=True, exist_ok=True)
    encoded = msgspec.json.format(msgspec.json.encode(result), indent=1)
    (folder / "speculative.json").write_bytes(encoded + b"\n")
    versions, drafts = result.versions, result.features["drafts"]
    lines = [
        "# The reference's verifier against vLLM's V1 rejection sampler",
        "",
        f"{result.batches} steps ({result.rows} requests, {drafts} drafts) went through the reference and",
        f"through vLLM {versions.vllm}'s input batch, Sampler and RejectionSampler on a CPU, its kernels in",
        "Triton's interpreter. Every random request has a seed, and both take the same noise from it.",
        f"**{len(result.unexplained)} differences are unexplained.**",
        "",
        f"{result.date}, commit {versions.commit}, torch {versions.torch},",
        f"Python {versions.python}, {versions.platform}, {result.seconds:.0f} s.",
        f"Run again: `{result.command}` (`make vllm-parity`). All counts: `speculative.json`.",
        "",
        LEGEND,
        "",
        "| compared | agrees | open | departs | unexplained |",
        "| --- | ---: | ---: | ---: | ---: |",
        *(
            f"| {c.check} | {c.agrees} | {c.open} | {c.departs} | {c.unexplained} |"
            for c in result.checks
        ),
        "",
        "| kind | clause | compared | times | the clause on vLLM, or itself where open |",
        "| --- | --- | --- | ---: | --- |",
        *(
            f"| {d.kind} | `{d.clause}` | {d.check} | {d.count} | {d.says} |"
            for d in result.differences
        ),
        "",
        "Not compared: the thinking budget, unseeded noise, logprobs of drafted positions, vLLM's compiled GPU",
        "kernels and its V2 rejection sampler.",
    ]
    (folder / "speculative.md").write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    raise SystemExit(main())
