"""What `refsampler new-backend` writes: an adapter, its test and a CI workflow."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

__all__ = ["LEVELS", "NewFile", "new_files"]

LEVELS: Final = {1: "kernel", 2: "sampler", 3: "engine"}
"""Adapter level -> template of its adapter."""

_GRAMMAR: Final = re.compile(r"[a-z][a-z0-9]*([-_][a-z0-9]+)*")


@dataclass(frozen=True, slots=True)
class NewFile:
    """One file.

    Attributes:
        path: relative to the folder in which the command runs.
        text: of the file.

    """

    path: Path
    text: str


def new_files(name: str, level: int, requirement: str) -> tuple[NewFile, ...]:
    """Return the files of a new backend.

    Args:
        name: of the backend, lower case, with hyphens or underscores.
        level: of the adapter, 1 to 3.
        requirement: what pip installs as refsampler in the workflow.

    Raises:
        ValueError: a name that makes no module.

    """
    from jinja2 import Environment, PackageLoader, StrictUndefined

    if not _GRAMMAR.fullmatch(name):
        raise ValueError(
            f"name = {name!r} is refused: allowed are lower-case words, as my-kernel or my_kernel"
        )
    environment = Environment(
        loader=PackageLoader("refsampler.conformance.scaffold"),
        autoescape=False,  # noqa: S701 - Python and YAML, and a name of plain words
        undefined=StrictUndefined,
        keep_trailing_newline=True,
    )
    module = f"{name.replace('-', '_')}_refsampler"
    words = {
        "name": name.replace("_", "-"),
        "module": module,
        "class_name": "".join(word.capitalize() for word in re.split("[-_]", name)),
        "requirement": requirement,
    }
    templates = {
        f"{module}.py": f"{LEVELS[level]}.py.j2",
        f"test_{module}.py": "test.py.j2",
        f".github/workflows/{name.replace('_', '-')}-conformance.yml": "workflow.yml.j2",
    }
    return tuple(
        NewFile(Path(path), environment.get_template(template).render(words))
        for path, template in templates.items()
    )
