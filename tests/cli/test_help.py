"""What the commands say of themselves: each option is explained, and nothing is cut in a narrow terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import typer
from typer.testing import CliRunner

from nexus_lab import __version__
from nexus_lab.cache.costs import Prices
from nexus_lab.cli._app import app

if TYPE_CHECKING:
    from collections.abc import Iterator


def walk(command: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    yield words, command
    for name, inner in getattr(command, "commands", {}).items():
        yield from walk(inner, (*words, name))


TREE = dict(walk(typer.main.get_command(app)))
GROUPS = [words for words, command in TREE.items() if hasattr(command, "commands")]


def said(words: tuple[str, ...], columns: int) -> str:
    done = CliRunner().invoke(app, [*words, "--help"], env={"COLUMNS": str(columns)})
    assert done.exit_code == 0
    return done.output


@pytest.mark.parametrize("words", TREE, ids=" ".join)
def test_every_option_is_explained(words):
    for param in TREE[words].params:
        assert param.help, f"{' '.join(words)} {param.name} is not explained"


@pytest.mark.parametrize("words", TREE, ids=" ".join)
def test_no_name_of_an_option_is_cut_where_there_is_little_room(words):
    shown = said(words, 60)
    assert "…" not in shown
    for param in TREE[words].params:
        for name in (*param.opts, *param.secondary_opts):
            assert name in shown


@pytest.mark.parametrize("words", GROUPS, ids=" ".join)
def test_what_a_command_does_is_said_whole_in_the_list_of_its_group(words):
    shown = said(words, 80)
    for name, command in TREE[words].commands.items():
        first = command.help.partition("\n\n")[0].replace("\n", " ")
        assert any(name in line and first in line for line in shown.splitlines()), f"{name}: {first}"


def test_the_prices_that_are_told_are_those_that_count():
    told = next(param.help for param in TREE["eval", "cache"].params if param.name == "prices")
    text = told.partition("by default ")[2].rstrip(".")
    assert Prices.parse(text) == Prices()
    assert [part.partition("=")[0] for part in text.split(",")] == list(Prices().to_dict())


def test_the_version_can_be_asked():
    assert CliRunner().invoke(app, ["--version"]).output == f"nexus-lab {__version__}\n"
