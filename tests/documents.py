"""Runs the code blocks of a page, one after the other, in the current folder."""

import re
import shlex
import subprocess
import sys
import textwrap
import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner

from refsampler.conformance.cli import main

ISOLATING = ("check", "plan", "replay", "smoke")
"""Commands that open a process of their own, which takes seconds and is tested elsewhere."""


def blocks(text):
    """The fenced blocks of a page, as (language, body)."""
    found = re.findall(r"^( *)```(\w*)\n(.*?)^ *```", text, re.DOTALL | re.MULTILINE)
    return [(language, textwrap.dedent(body)) for _, language, body in found]


def run_page(text):
    """Run every block of a page and return what its commands printed."""
    said = []
    for language, body in blocks(text):
        assert language in ("console", "python", "toml"), f"a block in {language!r} is not run"
        if language == "console":
            said += [run_line(line[2:]) for line in body.splitlines() if line.startswith("$ ")]
        elif language == "toml":
            tomllib.loads(body)
        else:
            exec(compile(body, "page", "exec"), {"__name__": "page"})  # noqa: S102 - our own page
    return said


def run_line(line):
    """Run one command, whose comment may state another exit status than 0."""
    command, _, comment = line.partition("  #")
    words = shlex.split(command)
    stated = re.search(r"exit (\d)", comment)
    if words[:2] == ["pip", "install"]:
        return ""  # what is tested here is what is installed
    if words[0] == "refsampler":
        for name in [one for one in sys.modules if one.endswith("_refsampler")]:
            del sys.modules[name]  # it may have been edited
        here = ["--in-process"] if words[1] in ISOLATING else []
        ran = CliRunner().invoke(main, [*words[1:], *here])
        code, said = ran.exit_code, ran.output
    else:
        assert words[0] == "sed", f"{words[0]} is not run"
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        code, said = done.returncode, done.stdout + done.stderr
    assert code == (int(stated[1]) if stated else 0), f"{line}: exit {code}\n{said}"
    assert "Traceback" not in said
    return said


@pytest.fixture
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to work in, whose modules can be edited twice in a second."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    return tmp_path
