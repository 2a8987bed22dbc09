"""Stubs: lets the pure torch files of a heavy engine be imported where the rest of it cannot be.

Packages above the wanted modules become folders, whose own imports are not run; modules under the
names of stubs become stubs, and whatever is asked of one is another.  The adapter names what it needs
for real, and checks known answers.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import MagicMock

__all__ = ["hollow", "load_file", "package_folder", "stub"]


class _Stub(ModuleType):
    """A module that has everything."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__path__ = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        made = MagicMock(name=f"{self.__name__}.{name}")
        setattr(self, name, made)
        return made


class _Finder(MetaPathFinder, Loader):
    def __init__(self, names: Sequence[str], real: Sequence[str]) -> None:
        self._names, self._real = tuple(names), tuple(real)

    def find_spec(self, name: str, _path: Any = None, _target: Any = None) -> ModuleSpec | None:
        """Take modules under the names, but those that are wanted for real."""
        if not _under(name, self._names) or _under(name, self._real):
            return None
        return ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Return a stub."""
        return _Stub(spec.name)

    def exec_module(self, _module: ModuleType) -> None:
        """Do nothing."""


def _under(name: str, names: Sequence[str]) -> bool:
    return any(f"{name}.".startswith(f"{one}.") for one in names)


def stub(*names: str, real: Sequence[str] = ()) -> None:
    """Make stubs of all modules under these names but those under names wanted for real."""
    sys.meta_path.insert(0, _Finder(names, real))


def hollow(engine: str, *packages: str) -> None:
    """Make packages of one installed tree folders: their modules can be imported, they are not run.

    Args:
        engine: as `make engine` names it.
        packages: outermost first.

    Raises:
        ModuleNotFoundError: the outermost is not installed.

    """
    folder = package_folder(packages[0], engine)
    for name in packages:
        package = ModuleType(name)
        package.__path__ = [str(folder.joinpath(*name.split(".")[1:]))]
        sys.modules[name] = package


def package_folder(name: str, engine: str) -> Path:
    """Return where a package lies, without importing it.

    Raises:
        ModuleNotFoundError: it is not installed.

    """
    found = importlib.util.find_spec(name)
    if found is None or not found.submodule_search_locations:
        raise ModuleNotFoundError(f"{name} is not installed: make engine {engine}", name=name)
    return Path(found.submodule_search_locations[0])


def load_file(name: str, path: Path) -> ModuleType:
    """Import one file as the module of that name."""
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module
