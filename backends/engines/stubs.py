"""Stubs: lets one pure torch file of a heavy engine be imported where the rest of it cannot be.

Only modules under the given names become stubs, and whatever is asked of one is another: the adapter
names what it needs for real, and checks known answers.
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

__all__ = ["load_file", "package_folder", "stub"]


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
        under = any(f"{name}.".startswith(f"{one}.") for one in self._names)
        if not under or name in self._real:
            return None
        return ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Return a stub."""
        return _Stub(spec.name)

    def exec_module(self, _module: ModuleType) -> None:
        """Do nothing."""


def stub(*names: str, real: Sequence[str] = ()) -> None:
    """Make stubs of all modules under these names that are not wanted for real."""
    sys.meta_path.insert(0, _Finder(names, real))


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
