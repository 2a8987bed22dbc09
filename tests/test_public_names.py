import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MODULES = sorted(
    str(path.relative_to(ROOT))
    for top in ("refsampler", "backends", "conformance")
    for path in (ROOT / top).rglob("*.py")
)


def names_bound_at_top(tree: ast.Module) -> Iterator[str]:
    """What the statements of a module define; imports and nested scopes do not count."""
    for node in tree.body:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield node.name
            case ast.Assign(targets=targets):
                nodes = [node for target in targets for node in ast.walk(target)]
                yield from (node.id for node in nodes if isinstance(node, ast.Name))
            case ast.AnnAssign(target=ast.Name(id=name)):
                yield name


def declared(tree: ast.Module) -> set[str] | None:
    for node in tree.body:
        match node:
            case (
                ast.Assign(targets=[ast.Name(id="__all__")], value=ast.List() as names)
                | ast.AnnAssign(target=ast.Name(id="__all__"), value=ast.List() as names)
            ):
                return set(ast.literal_eval(names))
    return None


def imported(tree: ast.Module) -> set[str]:
    imports = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    return {alias.asname or alias.name for node in imports for alias in node.names}


def complaints(source: str) -> list[str]:
    tree = ast.parse(source)
    public = declared(tree)
    if public is None:
        return ["no __all__"]
    bound = set(names_bound_at_top(tree))
    unlisted = {name for name in bound if not name.startswith("_")} - public
    missing = public - bound - imported(tree)
    return [f"{name} is not in __all__" for name in sorted(unlisted)] + [
        f"{name} is in __all__ but nowhere defined" for name in sorted(missing)
    ]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("x = 1", ["no __all__"]),
        ("__all__ = ['f']\ndef f(): y = 1\n_x = 2", []),
        ("__all__: list[str] = []\nimport math", []),
        ("__all__ = ['g']\nfrom m import f as g", []),
        ("__all__ = ['f']", ["f is in __all__ but nowhere defined"]),
        ("__all__ = []\nclass C: pass", ["C is not in __all__"]),
        ("__all__ = []\nA, (B, _C) = 1, (2, 3)", ["A is not in __all__", "B is not in __all__"]),
        ("__all__ = []\nT: int = 1", ["T is not in __all__"]),
    ],
)
def test_complaints(source, expected):
    assert complaints(source) == expected


@pytest.mark.parametrize("module", MODULES)
def test_public_names_are_exactly_all(module):
    assert not complaints((ROOT / module).read_text(encoding="utf-8"))


def test_both_linked_packages_are_looked_at():
    assert {"backends/__init__.py", "conformance/cli.py", "refsampler/clauses.py"} <= set(MODULES)
