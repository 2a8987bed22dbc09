"""The pages of docs/: generated ones are up to date, code blocks run, links lead somewhere."""

import re
from pathlib import Path
from typing import Any

import pytest

from refsampler.clauses import load
from refsampler.conformance.reporting.contract_page import contract_page
from refsampler.conformance.scaffold import new_files
from tests.documents import empty_folder, run_page

ROOT = Path(__file__).parents[1]
PAGES = sorted((ROOT / "docs").glob("*.md"))

__all__ = ["empty_folder"]


def test_five_minutes_from_an_empty_folder(empty_folder):
    said = run_page((ROOT / "docs" / "five-minutes.md").read_text("utf-8"))
    assert sum("smoke passed" in one for one in said) == 1
    (failure,) = (one for one in said if "FAIL top-k.keep" in one)
    words = [line.split()[0] for line in failure.partition("FAIL top-k.keep\n")[2].splitlines()]
    assert words[:5] == ["expected", "seen", "sure", "smallest", "replay"]
    assert (empty_folder / "reports/runs/my-kernel/report.html").is_file()
    commands = [one for one in said if one]
    assert len(commands) <= 12
    workflow = (empty_folder / ".github/workflows/my-kernel-conformance.yml").read_text("utf-8")
    assert "refsampler check my_kernel_refsampler:backend" in workflow


def test_what_new_backend_writes_is_never_written_over(empty_folder):
    from tests.documents import run_line

    run_line("refsampler new-backend my-kernel")
    (empty_folder / "my_kernel_refsampler.py").write_text("mine")
    assert "nothing is overwritten" in run_line("refsampler new-backend my_kernel  # exit 2")
    assert (empty_folder / "my_kernel_refsampler.py").read_text() == "mine"
    assert "allowed are lower-case words" in run_line("refsampler new-backend '../x'  # exit 2")


@pytest.mark.parametrize("level", [1, 2, 3])
def test_adapters_declare_their_level(level, empty_folder):
    adapter, test, workflow = new_files("one-two", level, "refsampler==1")
    namespace: dict[str, Any] = {"__name__": "one_two_refsampler"}
    exec(compile(adapter.text, "adapter", "exec"), namespace)  # noqa: S102 - our own template
    capabilities = namespace["backend"].capabilities
    assert (capabilities.name, capabilities.level) == ("one-two", level)
    compile(test.text, "test", "exec")
    assert 'pip install "refsampler==1"' in workflow.text


@pytest.mark.parametrize("page", ["statistics.md", "extending.md"])
def test_code_blocks_run(page, empty_folder):
    run_page((ROOT / "docs" / page).read_text("utf-8"))


def test_the_page_of_the_contract_is_generated():
    written = (ROOT / "docs" / "contract.md").read_text("utf-8")
    assert written == contract_page(), "docs/contract.md is out of date: run `make docs`"
    assert all(f"### `{clause.id}`" in written for clause in load().clauses)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for link in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text("utf-8")):
        assert link.startswith("https://") or (page.parent / link).exists(), link
