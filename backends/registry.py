"""From a word on the command line to a subject: names, entry points and ``module:attribute``."""

from __future__ import annotations

import difflib
import importlib
import sys
from collections.abc import Mapping
from importlib.metadata import entry_points
from operator import attrgetter
from pathlib import Path
from typing import Any, Final, cast

import torch

from refsampler.backends.protocol import Capabilities, Feature, Subject

__all__ = [
    "BUILT_IN",
    "EXTRAS",
    "GROUP",
    "PROGRAM",
    "BackendBroken",
    "BackendNotFound",
    "names",
    "resolve",
]

GROUP: Final = "refsampler.backends"
"""Entry point group in which an installed package announces its backends."""

PROGRAM: Final = "stdio:"
"""Before a program and its arguments, which then speaks on standard input and output."""

BUILT_IN: Final[Mapping[str, str]] = {
    "aiter": "refsampler.backends.aiter:AiterKernel",
    "cpu": "refsampler.backends.cpu:backend",
    "flashinfer": "refsampler.backends.flashinfer:backend",
    "flashinfer-verifier": "refsampler.backends.flashinfer_verifier:backend",
    "llama-cpp": "refsampler.backends.engines.llama_cpp:backend",
    "lmdeploy": "refsampler.backends.engines.lmdeploy:backend",
    "mlx-lm": "refsampler.backends.engines.mlx_lm:backend",
    "native": "refsampler.backends.native:backend",
    "native-verifier": "refsampler.backends.native_verifier:backend",
    "onnxruntime-genai": "refsampler.backends.engines.onnxruntime_genai:backend",
    "pytorch": "refsampler.backends.engines.pytorch:backend",
    "reference": "refsampler.backends.reference:sampler",
    "reference-engine": "refsampler.backends.reference:engine",
    "sglang": "refsampler.backends.engines.sglang:backend",
    "transformers": "refsampler.backends.engines.transformers:backend",
    "transformers-verifier": "refsampler.backends.engines.transformers_verifier:backend",
    "triton": "refsampler.backends.triton.kernel:TritonKernel",
    "triton-verifier": "refsampler.backends.triton.verifier:TritonVerifier",
    "vllm": "refsampler.backends.engines.vllm:backend",
    "vllm-triton": "refsampler.backends.engines.vllm_triton:backend",
}
"""What ships here; known without installed metadata, and no entry point takes its names."""

EXTRAS: Final[Mapping[str, str]] = {
    "flashinfer": "flashinfer",
    "llvmlite": "cpu",
    "numba": "cpu",
    "ray": "ray",
    "transformers": "transformers",
    "triton": "triton",
}
"""Import name of a heavy package -> the extra of refsampler that installs it."""

_METHODS: Final = {1: "draw", 2: "sample", 3: "open"}
_FEATURE_METHODS: Final = {Feature.SPECULATIVE: "verify", Feature.DRAFT: "draft"}
"""What a sampler has beside; an engine's sessions have it, which are not open yet."""


class BackendNotFound(LookupError):  # noqa: N818 - reads as what happened
    """No backend goes by that name."""


class BackendBroken(RuntimeError):  # noqa: N818 - reads as what happened
    """The backend exists but cannot be opened, or does not follow the protocol."""


def names() -> tuple[str, ...]:
    """Return the names that `resolve` knows: the built-in ones, then those of other packages."""
    return tuple(_table())


def resolve(spec: str) -> Subject:
    """Return the subject that a spec names.

    Args:
        spec: a name, or `module:attribute` with the module importable from the current folder.
            The attribute is a subject, or a callable without arguments that returns one.  Or
            `stdio:` before a program and its arguments (see `refsampler.backends.stdio`).

    Raises:
        BackendNotFound: no such name, module or attribute; the message says what there is.
        BackendBroken: the import failed, or the object is not a subject; the message says why.

    """
    if spec.startswith(PROGRAM):
        return _checked(spec, _started(spec))
    known = _table()
    where = known.get(spec, spec)
    if ":" not in where:
        close = difflib.get_close_matches(spec, known) or sorted(known)
        raise BackendNotFound(
            f"backend {spec!r} is not known: allowed are {', '.join(close)}, or module:attribute"
        )
    return _checked(spec, _made(spec, _loaded(spec, where)))


def _started(spec: str) -> object:
    """Start a program."""
    from refsampler.backends.stdio.engine import StdioEngine

    try:
        return StdioEngine(spec.removeprefix(PROGRAM))
    except Exception as error:
        raise _broken(spec, error) from error


def _table() -> Mapping[str, str]:
    """Return name -> `module:attribute`."""
    found = {point.name: point.value for point in entry_points(group=GROUP)}
    return {**BUILT_IN, **{name: found[name] for name in sorted(found) if name not in BUILT_IN}}


def _loaded(spec: str, where: str) -> object:
    """Import the attribute that `module:attribute` names."""
    module_name, _, attribute = where.partition(":")
    here = str(Path.cwd())
    if ":" in spec and here not in sys.path:
        # As `python -m` does; the path of a console script lacks the current folder.
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name and f"{module_name}.".startswith(f"{error.name}."):
            raise BackendNotFound(f"backend {spec!r}: no module {error.name!r}") from error
        raise _broken(spec, error) from error
    except Exception as error:
        raise _broken(spec, error) from error
    try:
        return cast("object", attrgetter(attribute)(module))
    except AttributeError as error:
        raise BackendNotFound(
            f"backend {spec!r}: module {module_name!r} has no attribute {attribute!r}"
        ) from error


def _made(spec: str, loaded: object) -> object:
    """Call a factory; a subject is returned as it is."""
    is_factory = isinstance(loaded, type) or not hasattr(loaded, "capabilities")
    if not (is_factory and callable(loaded)):
        return loaded
    try:
        return cast("object", loaded())
    except Exception as error:
        raise _broken(spec, error) from error


def _broken(spec: str, error: Exception) -> BackendBroken:
    """Say why a backend could not be opened, and what to install if a heavy package is missing."""
    message = f"backend {spec!r} cannot be opened: {type(error).__name__}: {error}"
    if isinstance(error, ModuleNotFoundError) and error.name:
        extra = EXTRAS.get(error.name.partition(".")[0])
        message += f"; pip install 'refsampler[{extra}]'" if extra else ""
    return BackendBroken(message)


def _checked(spec: str, made: object) -> Subject:
    """Return the object as a subject, or say what it lacks."""
    missing = _missing(made)
    if missing:
        raise BackendBroken(f"backend {spec!r} is no subject: {type(made).__name__} {missing}")
    return cast("Subject", made)


def _missing(made: Any) -> str:
    """Return what an object lacks to be a subject; empty if nothing."""
    capabilities = getattr(made, "capabilities", None)
    if not isinstance(capabilities, Capabilities):
        kind = type(capabilities).__name__
        return f"has capabilities of type {kind}: allowed is refsampler's Capabilities"
    method = _METHODS[capabilities.level]
    if not callable(getattr(made, method, None)):
        return f"declares level {capabilities.level} and has no method {method!r}"
    for feature, extra in _FEATURE_METHODS.items():
        declared = capabilities.level == 2 and feature in capabilities.features
        if declared and not callable(getattr(made, extra, None)):
            return f"declares {feature} and has no method {extra!r}"
    try:
        torch.device(capabilities.device)
    except RuntimeError:
        return f"declares device = {capabilities.device!r}: allowed is a torch device string"
    return ""
