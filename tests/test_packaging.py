import importlib.metadata
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

import refsampler

ROOT = Path(__file__).parents[1]
TOPS = ("refsampler", "backends", "conformance")
SUITE = ROOT / "conformance" / "reporting" / "suite"
DATA = {".py", ".toml", ".j2", ".json", ".typed"}


def expected_files() -> set[str]:
    """Every source and data file, at its place below refsampler/."""
    found = set()
    for top in TOPS:
        for path in (ROOT / top).rglob("*"):
            if path.is_file() and path.suffix in DATA:
                inside = path.relative_to(ROOT).as_posix()
                found.add(inside if top == "refsampler" else f"refsampler/{inside}")
    for linked in SUITE.iterdir():  # links, which rglob does not follow
        inside = f"refsampler/{linked.relative_to(ROOT).as_posix()}"
        found |= {f"{inside}/{path.name}" for path in linked.glob("*.json")}
    return found | {"refsampler/py.typed"}


def build(*options: str, source: Path, target: Path) -> Path:
    command = [sys.executable, "-m", "build", "--no-isolation", *options, "--outdir", str(target)]
    subprocess.run([*command, str(source)], check=True, capture_output=True)
    return target


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what a checkout holds, with its links, so that no build folder lands in ours."""
    copy = tmp_path_factory.mktemp("checkout")
    for top in TOPS:
        ignore = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / top, copy / top, symlinks=True, ignore=ignore)
    for linked in SUITE.iterdir():
        shutil.copytree(linked, copy / "reports" / linked.name)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy / name)
    return copy


@pytest.fixture(scope="module")
def through_sdist(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an sdist and the wheel that was built from it."""
    return build(source=checkout, target=tmp_path_factory.mktemp("sdist"))


@pytest.fixture(scope="module")
def direct(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel that was built from the checkout."""
    return build("--wheel", source=checkout, target=tmp_path_factory.mktemp("wheel"))


def wheel_in(folder: Path) -> Path:
    return next(folder.glob("*.whl"))


def test_the_links_are_relative():
    for name in ("backends", "conformance"):
        assert (ROOT / "refsampler" / name).readlink() == Path("..") / name


@pytest.mark.slow
def test_an_sdist_holds_ordinary_packages(through_sdist):
    with tarfile.open(next(through_sdist.glob("*.tar.gz"))) as sdist:
        members = {m.name.partition("/")[2]: m for m in sdist.getmembers()}
    assert expected_files() <= {name for name, member in members.items() if member.isfile()}
    assert not [name for name, member in members.items() if member.issym() or member.islnk()]
    assert "backends" not in members


@pytest.mark.slow
@pytest.mark.parametrize("origin", ["direct", "through_sdist"])
def test_a_wheel_holds_everything_below_one_name(origin, request):
    with zipfile.ZipFile(wheel_in(request.getfixturevalue(origin))) as wheel:
        names = set(wheel.namelist())
    installed = {name for name in names if ".dist-info/" not in name}
    assert installed == expected_files()
    assert f"refsampler-{refsampler.__version__}.dist-info/licenses/LICENSE" in names


@pytest.mark.slow
def test_an_installed_wheel_resolves_and_leaves_generic_names_alone(direct, tmp_path):
    site = tmp_path / "site"
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]
    install += ["--disable-pip-version-check", "--target", str(site), str(wheel_in(direct))]
    subprocess.run(install, check=True, capture_output=True)
    assert {p.name for p in site.iterdir() if not p.name.endswith(".dist-info")} == {
        "bin",
        "refsampler",
    }
    program = (
        "import importlib.util as u, refsampler.backends as b, refsampler.conformance as c\n"
        "from refsampler.clauses import load\n"
        "assert not u.find_spec('backends') and not u.find_spec('conformance')\n"
        "from refsampler.conformance.reporting.health import committed, read_health\n"
        "found = read_health(committed())\n"
        "assert found.calibration and found.power and found.faults\n"
        "print(b.__file__, c.__file__, len(load().clauses), sep='\\n')\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env={"PYTHONPATH": str(site)},
        check=True,
        capture_output=True,
        text=True,
    )
    backends, conformance, clauses = run.stdout.split()
    assert Path(backends) == site / "refsampler" / "backends" / "__init__.py"
    assert Path(conformance) == site / "refsampler" / "conformance" / "__init__.py"
    assert int(clauses) > 0


def test_entry_points_name_modules_below_refsampler():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    groups = project["entry-points"]
    assert set(groups) == {"pytest11", "refsampler.backends"}
    points = project["scripts"] | groups["refsampler.backends"] | groups["pytest11"]
    assert set(points) >= {"refsampler", "native", "transformers"}
    for target in points.values():
        module = target.partition(":")[0].replace(".", "/")
        assert module.startswith("refsampler/")
        places = (ROOT / f"{module}.py", ROOT / module / "__init__.py")
        assert any(place.is_file() for place in places), target


def test_every_package_of_this_environment_is_pinned_as_installed():
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = dict(line.split("==") for line in lines if line and not line.startswith("#"))
    for name, version in pins.items():
        try:
            installed = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue  # an extra that this environment leaves out
        assert installed.partition("+")[0] == version, name
