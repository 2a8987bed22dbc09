"""Pack FlashInfer's samplers for a GPU machine without a network, or without a compiler.

``python -m refsampler.backends.flashinfer_bundle 0.6.13 fi.zip`` downloads the wheels, compiles the
sampling module for one architecture (nvcc is needed, a GPU is not) and zips what
``import flashinfer.sampling`` reaches, some 3 MB of 14 to 101.  There::

    unzip -q fi.zip -d fi && export PYTHONPATH=fi FLASHINFER_WORKSPACE_BASE=fi
    python -c "import flashinfer.sampling"

FlashInfer looks for a compiled module inside its own folder first, and builds nothing then.  Two
`__init__` files that import the whole library are replaced by short ones.
"""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import click

__all__ = ["bundle", "main", "reached"]

_ROOTS: Final = tuple(
    f"flashinfer/{one}.py"
    for one in ("_build_meta", "fi_trace", "jit/sampling", "jit/topk", "sampling", "topk")
)
"""Some of these are imported by functions and decorators only, which `reached` does not follow."""
_SHORT_INIT: Final = {
    "flashinfer/__init__.py": "from .version import __version__ as __version__\n",
    "flashinfer/jit/__init__.py": (
        "from . import env as env\n"
        "from .core import *\n"
        "from .core import JitSpec, build_jit_specs, current_compilation_context, gen_jit_spec\n"
    ),
    "flashinfer/trace/templates/__init__.py": "",
    "flashinfer/experimental/__init__.py": "",
}
"""Contents of the files whose own ones import what is left behind."""
_SOURCES: Final = ("sampling", "renorm", "flashinfer_sampling_binding")
_FLAGS: Final = (
    *("-std=c++17", "-O3", "-DNDEBUG", "-use_fast_math", "--threads=1", "-Xfatbin=-compress-all"),
    *("--compiler-options=-fPIC", "--expt-relaxed-constexpr", "-static-global-template-stub=false"),
    *("-DPy_LIMITED_API=0x03090000", "-D_GLIBCXX_USE_CXX11_ABI=1"),
    *(f"-DFLASHINFER_ENABLE_{one}" for one in ("F16", "BF16", "FP8_E4M3", "FP8_E5M2")),
    *("-DFLASHINFER_ENABLE_FP8_E8M0", "-DFLASHINFER_ENABLE_FP4_E2M1"),
)
"""What FlashInfer's own build gives to nvcc."""


def _modules(tree: ast.Module, package: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Yield what a file imports when it is imported: functions import when they are called."""
    left: list[ast.AST] = list(tree.body)
    while left:
        node = left.pop()
        if isinstance(node, ast.Import):
            yield from (tuple(one.name.split(".")) for one in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) + 1 - node.level] if node.level else ()
            base = above + tuple((node.module or "").split(".") if node.module else ())
            yield base
            yield from ((*base, one.name) for one in node.names)
        elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            left += ast.iter_child_nodes(node)


def reached(folder: Path) -> AbstractSet[str]:
    """Return the Python files below `folder` that the samplers import, packages included."""
    found: set[str] = set()
    left = [one for one in (*_ROOTS, *_SHORT_INIT) if (folder / one).exists()]
    while left:
        name = left.pop()
        if name in found or not (folder / name).is_file():
            continue
        found.add(name)
        package = Path(name).parent.parts
        left += [
            "/".join((*package[:depth], "__init__.py")) for depth in range(1, len(package) + 1)
        ]
        text = _SHORT_INIT.get(name) or (folder / name).read_text("utf-8")
        if name in _SHORT_INIT and not _SHORT_INIT[name]:
            continue
        for parts in _modules(ast.parse(text), package):
            if parts[:1] == ("flashinfer",):
                left += ["/".join(parts) + ".py", "/".join((*parts, "__init__.py"))]
    return found


def _pip(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "pip", *arguments, "--quiet", "--no-deps"], check=True)


def _download(version: str, python: str, folder: Path) -> None:
    """Unpack FlashInfer, tvm-ffi for the other machine's Python, and curand's headers."""
    elsewhere = ["--only-binary=:all:", f"--python-version={python}", "--implementation=cp"]
    elsewhere += [f"--platform=manylinux_2_{minor}_x86_64" for minor in (28, 24, 17)]
    wheels = folder / "wheels"
    _pip("download", f"flashinfer-python=={version}", f"--dest={wheels}")
    _pip("download", "apache-tvm-ffi>=0.1.11,<0.2", f"--dest={wheels}", *elsewhere)
    _pip("install", "nvidia-curand", f"--target={folder / 'curand'}")
    for wheel in sorted(wheels.glob("*.whl")):
        name = "flashinfer" if wheel.name.startswith("flashinfer") else "ffi"
        with zipfile.ZipFile(wheel) as packed:
            packed.extractall(folder / name)


def _compile(folder: Path, arch: str, cuda: Path, jobs: int) -> Path:
    """Return the compiled sampling module."""
    data = folder / "flashinfer/flashinfer/data"
    headers = [cuda / "include", cuda / "include/cccl", folder / "ffi/tvm_ffi/include"]
    headers += [data / one for one in ("include", "csrc", "cutlass/include", "spdlog/include")]
    headers += sorted(folder.glob("curand/nvidia/*/include"))
    own = [data / "cccl" / one for one in ("cub", "libcudacxx/include", "thrust")]
    include = [f"-I{one}" for one in own if one.is_dir()]
    include += [word for one in headers for word in ("-isystem", str(one))]
    target = f"-gencode=arch=compute_{arch},code=sm_{arch}"

    def made(source: str) -> str:
        built = folder / f"{source}.o"
        nvcc = [str(cuda / "bin/nvcc"), *include, *_FLAGS, target]
        subprocess.run([*nvcc, "-c", str(data / f"csrc/{source}.cu"), "-o", str(built)], check=True)
        return str(built)

    with ThreadPoolExecutor(jobs) as pool:
        objects = list(pool.map(made, _SOURCES))
    library = folder / "sampling.so"
    runtime = next(one for name in ("lib64", "lib") for one in (cuda / name).glob("libcudart.so"))
    # What libcuda offers stays open here: torch has loaded it by the time this is opened.
    compiler = shutil.which("g++") or "g++"
    subprocess.run([compiler, "-shared", "-o", str(library), *objects, str(runtime)], check=True)
    return library


def bundle(folder: Path, library: Path, out: Path) -> None:
    """Zip the Python files that are reached, tvm-ffi, the licences and the compiled module."""
    package, ffi = folder / "flashinfer", folder / "ffi"
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as packed:
        for name in sorted(reached(package)):
            text = _SHORT_INIT.get(name)
            packed.writestr(name, (package / name).read_text("utf-8") if text is None else text)
        for one in sorted(package.glob("*.dist-info/**/*")):
            if one.name == "METADATA" or "LICENSE" in one.name:
                packed.write(one, str(one.relative_to(package)))
        for one in sorted(ffi.rglob("*")):
            parts = one.relative_to(ffi).parts
            if one.is_file() and "include" not in parts:
                packed.write(one, "/".join(parts))
        packed.write(library, "flashinfer/data/aot/sampling/sampling.so")


@click.command()
@click.argument("version")
@click.argument("out", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--arch", default="90a", show_default=True, help="Compute capability of the GPU.")
@click.option("--python", default="3.12", show_default=True, help="Python of the GPU machine.")
@click.option(
    "--cuda",
    default="/usr/local/cuda",
    show_default=True,
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="The CUDA toolkit here, as old as the other machine's driver or older.",
)
@click.option("--jobs", default=2, show_default=True, help="Files compiled side by side.")
def main(version: str, out: Path, arch: str, python: str, cuda: Path, jobs: int) -> None:
    """Write OUT, a zip with the samplers of FlashInfer VERSION compiled for one GPU."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _download(version, python, folder)
        bundle(folder, _compile(folder, arch, cuda, jobs), out)
    click.echo(f"{out}: {out.stat().st_size / 2**20:.1f} MiB")


if __name__ == "__main__":
    main()
