"""Make `.venv-vllm`: the real vLLM 0.25.1 Sampler on a machine without a GPU.

Nothing is compiled and no CUDA package is installed. The sampler is plain Python on torch, so the
wheel's Python files and the packages on the sampler's import chain are enough (about 1.3 GB, nearly
all of it torch). vLLM takes itself for a CPU build only if its installed version contains "cpu",
hence the stub `dist-info`. Running this again is cheap: what is there and right is kept.

    python tests/vllm_parity/setup_env.py [--venv DIR]

pip is used as configured. Where that would fetch a CUDA build of torch, point pip at CPU wheels
first (`PIP_INDEX_URL` or pip.conf). A C++ compiler must exist: vLLM compiles its CPU draw with
torch.compile on the first call.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import venv
import zipfile
from pathlib import Path

__all__ = ["DEFAULT_VENV", "REPO", "main", "python_of"]

REPO = Path(__file__).resolve().parents[2]
DEFAULT_VENV = REPO / ".venv-vllm"
PYTHON = (3, 11)
"""Below 3.11 the project does not import; other versions were not tried with these pins."""

VLLM = "0.25.1"
TORCH = "torch==2.13.0"

IMPORT_CHAIN = (
    "aiohttp==3.14.5",
    "cachetools==8.0.2",
    "cbor2==6.3.0",
    "cloudpickle==3.1.3",
    "msgspec==0.23.0",
    "numpy==2.4.6",
    "openai==3.57.0",
    "openai-harmony==0.0.8",
    "packaging==26.4",
    "pillow==13.0.0",
    "psutil==7.2.2",
    "py-cpuinfo==9.0.0",
    "pybase64==1.5.1",
    "pydantic==2.14.4",
    "pyzmq==27.3.0",
    "regex==2026.11.19",
    "requests==2.34.2",
    "transformers==5.24.0",
    "urllib3==2.8.0",
    "uvloop==0.23.0",
)
"""What importing `vllm.v1.sample.sampler` asks for, found by following ModuleNotFoundError."""

PROJECT = ("hypothesis==6.170.17", "jaxtyping==0.3.11", "scipy==1.17.1", "tomlkit==0.15.2")
"""What refsampler, its strategies and its commands need beyond the import chain."""

TRITON = "triton==3.7.1"
"""For its interpreter, in which the kernels of the rejection sampler run; vLLM does not use it."""

STAMP = "refsampler-parity.sha256"

METADATA = f"Metadata-Version: 2.4\nName: vllm\nVersion: {VLLM}+cpu\n"

VERIFY = """
import torch
from vllm.platforms import current_platform
from vllm.v1.sample.sampler import Sampler
import refsampler
platform = type(current_platform).__name__
assert platform == "CpuPlatform", f"vLLM detected {platform}, not CpuPlatform"
forward = Sampler().topk_topp_sampler.forward.__name__
assert forward == "forward_cpu", f"the sampler is bound to {forward}, not forward_cpu"
print(f"vllm {platform}, {forward}, torch {torch.__version__}")
"""


def main(argv: list[str] | None = None) -> None:
    """Make or complete the environment, then import the real Sampler in it."""
    parser = argparse.ArgumentParser(description="Set up the real vLLM sampler on a CPU.")
    parser.add_argument("--venv", type=Path, default=DEFAULT_VENV, help="default: %(default)s")
    where: Path = parser.parse_args(argv).venv.resolve()
    if sys.version_info < PYTHON:
        raise SystemExit(f"Python {PYTHON[0]}.{PYTHON[1]} or newer is needed")
    if shutil.which("g++") is None and shutil.which("clang++") is None:
        raise SystemExit("a C++ compiler is needed: vLLM compiles its CPU draw")
    try:
        if not is_current(where):
            build(where)
        verify(where)
    except subprocess.CalledProcessError as failure:
        raise SystemExit(f"{failure}") from failure


def python_of(where: Path) -> Path:
    """The interpreter of a virtual environment."""
    return where / "bin" / "python"


def fingerprint() -> str:
    """Changes with any pin, so that an environment made with other pins is completed."""
    text = "\n".join((VLLM, TORCH, TRITON, *IMPORT_CHAIN, *PROJECT, METADATA))
    return hashlib.sha256(text.encode()).hexdigest()


def is_current(where: Path) -> bool:
    stamp = where / STAMP
    return python_of(where).exists() and stamp.exists() and stamp.read_text() == fingerprint()


def build(where: Path) -> None:
    if not python_of(where).exists():
        venv.create(where, with_pip=True)
        (where / ".gitignore").write_text("*\n")  # git and the linters then pass it by
    pip(where, "install", TORCH, TRITON, *IMPORT_CHAIN, *PROJECT)
    unpack_vllm(where)
    (where / STAMP).write_text(fingerprint())


def unpack_vllm(where: Path) -> None:
    """Put vLLM's Python files, and a stub that calls them a CPU build, into site-packages."""
    site = site_packages(where)
    shutil.rmtree(site / "vllm", ignore_errors=True)
    # A temporary folder inside the environment: same file system, removed with the 250 MB wheel.
    with tempfile.TemporaryDirectory(dir=where) as folder:
        options = ("--no-deps", "--only-binary=:all:", "--dest", folder)
        pip(where, "download", *options, f"vllm=={VLLM}")
        (wheel,) = Path(folder).glob(f"vllm-{VLLM}-*.whl")
        with zipfile.ZipFile(wheel) as archive:
            names = [name for name in archive.namelist() if name.startswith("vllm/")]
            archive.extractall(site, [name for name in names if name.endswith(".py")])
    stub = site / f"vllm-{VLLM}.dist-info"
    stub.mkdir(exist_ok=True)
    (stub / "METADATA").write_text(METADATA)


def site_packages(where: Path) -> Path:
    ask = "import sysconfig; print(sysconfig.get_path('purelib'))"
    command = [str(python_of(where)), "-c", ask]
    return Path(subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip())


def pip(where: Path, *arguments: str) -> None:
    subprocess.run([str(python_of(where)), "-m", "pip", *arguments], check=True)


def verify(where: Path) -> None:
    """Import the real Sampler and the project in a fresh process of that environment."""
    environment = os.environ | {"PYTHONPATH": str(REPO)}
    command = [str(python_of(where)), "-c", VERIFY]
    subprocess.run(command, check=True, env=environment)


if __name__ == "__main__":
    main()
