"""``python -m refsampler.backends.gpu_check``: the gate on the GPU of this machine, path by path.

Each path runs in a process of its own, after the other.  What is not installed is named as not run.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import click
import torch

__all__ = ["PATHS", "GpuPath", "main", "paths_for"]


@dataclass(frozen=True, slots=True)
class GpuPath:
    """A path to check.

    Attributes:
        name: of the report.
        spec: as `refsampler check` takes it.
        package: that it needs; empty if torch is enough.
        devices: `cuda`, `rocm` or both.

    """

    name: str
    spec: str
    package: str
    devices: tuple[str, ...] = ("cuda", "rocm")


PATHS: Final = (
    GpuPath("native", "refsampler.backends.native:on_gpu", ""),
    GpuPath("native-fp64", "refsampler.backends.native:on_gpu_fp64", ""),
    GpuPath("triton", "triton", "triton"),
    GpuPath("triton-verifier", "triton-verifier", "triton"),
    GpuPath("flashinfer", "flashinfer", "flashinfer", ("cuda",)),
    GpuPath("flashinfer-verifier", "flashinfer-verifier", "flashinfer", ("cuda",)),
    GpuPath("aiter", "aiter", "aiter", ("rocm",)),
)


def paths_for(device: str) -> tuple[GpuPath, ...]:
    """Return the paths of a kind of device."""
    return tuple(path for path in PATHS if device in path.devices)


def _device() -> str:
    """Return `cuda` or `rocm`.

    Raises:
        click.ClickException: torch sees no GPU.

    """
    if not torch.cuda.is_available():
        raise click.ClickException("torch sees no GPU: nothing was run")
    kind = "cuda" if torch.version.hip is None else "rocm"
    version = torch.version.cuda or torch.version.hip
    click.echo(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {kind} {version}")
    return kind


@click.command()
@click.option(
    "--report",
    default="reports/runs/gpu",
    show_default=True,
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder of the reports, one folder a path.",
)
@click.option("--profile", default="quick", show_default=True, help="quick or full.")
@click.option("--bench/--no-bench", default=True, show_default=True, help="Time the kernels too.")
def main(report: Path, profile: str, *, bench: bool) -> None:
    """Run the gate for every path of this GPU; exit 1 unless all that ran conform."""
    worst = 0
    for path in paths_for(_device()):
        if path.package and importlib.util.find_spec(path.package) is None:
            click.echo(f"\n== {path.name}: not run, {path.package} is not installed")
            continue
        click.echo(f"\n== {path.name}")
        wanted = ["check", path.spec, "--profile", profile, "--report", str(report / path.name)]
        done = subprocess.run([sys.executable, "-m", "refsampler", *wanted], check=False)
        worst = max(worst, done.returncode)
    if bench and importlib.util.find_spec("triton") is not None:
        click.echo("\n== speed of the Triton kernels")
        timed = [sys.executable, "-m", "refsampler.backends.triton.bench"]
        worst = max(worst, subprocess.run(timed, check=False).returncode)
    if worst:
        raise click.ClickException(f"a path did not conform or did not run: exit code {worst}")


if __name__ == "__main__":
    main()
