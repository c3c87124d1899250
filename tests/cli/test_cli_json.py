"""``--json FILE`` means the same wherever it stands; ``-`` is standard output, which is then JSON alone."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import typer
from typer.testing import CliRunner

from nexus_lab.bench.base import ResultFile
from nexus_lab.cli._app import app
from nexus_lab.cli._output import console

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

TALK = [
    {"role": "user", "content": "What time is it?"},
    {"role": "assistant", "content": "Just past noon."},
]


def commands(group: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, (*path, name))
        else:
            yield (*path, name), command


def test_wherever_there_is_one_it_takes_a_file_or_standard_output():
    found = {
        words: option
        for words, command in commands(typer.main.get_command(app))
        for option in command.params
        if "--json" in option.opts
    }
    assert {("route", "request"), ("eval", "routing"), ("bench", "slb")} <= set(found)
    for words, option in found.items():
        assert (option.metavar, option.is_flag) == ("FILE", False), words
        assert "- prints them" in option.help, words


@pytest.fixture
def counted(tmp_path: Path) -> list[str]:
    talks = tmp_path / "talks.jsonl"
    talks.write_text(json.dumps({"id": "one", "messages": TALK}) + "\n")
    return ["eval", "cache", "--dry", "--trajectories", str(talks), "--policies", "full", "--json"]


def test_standard_output_is_the_json_alone_and_the_table_stands_beside(counted: list[str], tmp_path: Path):
    run = CliRunner().invoke(app, [*counted, "-"])
    assert run.exit_code == 0, run.output
    told, out = json.loads(run.stdout), tmp_path / "results.json"
    assert "eval cache" in run.stderr
    assert not console.stderr
    written = CliRunner().invoke(app, [*counted, str(out)])
    assert f"wrote {out}" in " ".join(written.stdout.split())
    assert ResultFile.read(out).to_dict()["results"] == told["results"]


def test_a_folder_is_refused_before_anything_is_measured(counted: list[str], tmp_path: Path):
    run = CliRunner().invoke(app, [*counted, str(tmp_path)])
    assert run.exit_code == 2
    assert "is a directory" in " ".join(run.output.split())
