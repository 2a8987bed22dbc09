"""Builds the virtual environment of one engine: `python backends/engines/environments.py NAME`.

Run by path, before anything is installed; so it imports the standard library only.  Each engine has
an environment of its own, since their pins contradict each other.  A package under `alone` comes
without its dependencies, which are hundreds for a GPU; the adapter imports the sampler's modules only.
"""

from __future__ import annotations

import argparse
import hashlib
import subprocess
import sys
import venv
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

__all__ = ["ENVIRONMENTS", "Environment", "build", "main"]

_REPOSITORY: Final = Path(__file__).resolve().parents[2]
_FOLDER: Final = ".venv-engines"
_STAMP: Final = "refsampler-engine.sha256"


@dataclass(frozen=True, slots=True)
class Environment:
    """What an engine's environment holds beside refsampler.

    Attributes:
        spec: the backend that is served there, as the registry names it.
        packages: installed with their dependencies.
        alone: installed without.
        script: builds the environment in place of pip, given ``--venv FOLDER``.

    """

    spec: str
    packages: tuple[str, ...] = ()
    alone: tuple[str, ...] = ()
    script: str = ""


ENVIRONMENTS: Final[Mapping[str, Environment]] = {
    "llama-cpp": Environment("llama-cpp", ("xllamacpp==2026.10.11549",)),
    "lmdeploy": Environment("lmdeploy", ("transformers",), ("lmdeploy==0.18.0",)),
    "mlx-lm": Environment("mlx-lm", ("mlx[cpu]==0.32.4",), ("mlx-lm==0.32.2",)),
    "onnxruntime-genai": Environment(
        "onnxruntime-genai", ("onnxruntime-genai==0.18.0", "onnx==1.22.0")
    ),
    "pytorch": Environment("pytorch"),
    "sglang": Environment("sglang", (), ("sglang==0.5.23",)),
    "transformers": Environment("transformers", ("transformers",)),
    "vllm": Environment("vllm", script="tests/vllm_parity/setup_env.py"),
}


def main(arguments: list[str] | None = None) -> None:
    """Build the environment of one engine, or say that it is there."""
    parser = argparse.ArgumentParser(description="Build the environment of one engine.")
    parser.add_argument("name", choices=sorted(ENVIRONMENTS))
    parser.add_argument("--into", type=Path, default=_REPOSITORY / _FOLDER)
    asked = parser.parse_args(arguments)
    where = (asked.into / asked.name).resolve()
    print(f"{where}: takes minutes if it is not there yet", flush=True)  # noqa: T201
    build(ENVIRONMENTS[asked.name], where)
    python = where / "bin" / "python"
    spec = ENVIRONMENTS[asked.name].spec
    own = _REPOSITORY / ".venv" / "bin" / "refsampler"
    command = own if own.exists() else "refsampler"
    print(f"{command} check 'stdio:{python} -m refsampler.backends.stdio.serve {spec}'")  # noqa: T201


def build(environment: Environment, where: Path) -> None:
    """Build it at `where`, unless what is there was built from the same pins.

    Raises:
        subprocess.CalledProcessError: pip failed.

    """
    if environment.script:
        script = _REPOSITORY / environment.script
        subprocess.run([sys.executable, str(script), "--venv", str(where)], check=True)
        return
    stamp = where / _STAMP
    if stamp.exists() and stamp.read_text() == _fingerprint(environment):
        return
    if not (where / "bin" / "python").exists():
        venv.create(where, with_pip=True)
    _pip(where, "--editable", str(_REPOSITORY), *environment.packages)
    if environment.alone:
        _pip(where, "--no-deps", *environment.alone)
    stamp.write_text(_fingerprint(environment))


def _pip(where: Path, *what: str) -> None:
    pip = [str(where / "bin" / "python"), "-m", "pip", "install", "--quiet"]
    constraints = ["--disable-pip-version-check", "-c", str(_REPOSITORY / "constraints.txt")]
    subprocess.run([*pip, *constraints, *what], check=True)


def _fingerprint(environment: Environment) -> str:
    """Change with any pin, so that an environment made with other pins is completed."""
    pins = (_REPOSITORY / "constraints.txt").read_bytes()
    return hashlib.sha256(repr(environment).encode() + pins).hexdigest()


if __name__ == "__main__":
    main()
