"""A cache policy of the user's that is edited in the same process: what stands on disk runs."""

from __future__ import annotations

import importlib
import os
import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from nexus_lab.cache import Append, CacheProgram, Drop, FunctionPolicy, MessageSpan, Moment, make_policy
from nexus_lab.cache.ops import ProgramError

if TYPE_CHECKING:
    from pathlib import Path

MODULE = "policies_for_tests"
NOON = 1_700_000_000


def dropping(stop: int) -> str:
    return f"KEEP = {stop}\n\n\ndef decide(moment):\n    return [(0, KEEP)]\n"


def write(path: Path, text: str) -> None:
    """Write a file as an edit within the same second does: the time that Python looks at stays."""
    path.write_text(text)
    os.utime(path, (NOON, NOON))


def dropped(where: str) -> int:
    policy = make_policy(f"python(function={where})")
    moment = Moment(
        messages=(MessageSpan("user", 0, 9, "Hello"),), program=CacheProgram((Append(tuple(range(9))),))
    )
    (op,) = policy.decide(moment).ops
    assert isinstance(op, Drop)
    ((start, stop),) = op.ranges
    assert start == 0
    return stop


@pytest.fixture(params=["file", "module"])
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    path = tmp_path / f"{MODULE}.py"
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    write(path, dropping(3))
    yield SimpleNamespace(path=path, where=f"{path if request.param == 'file' else MODULE}:decide")
    sys.modules.pop(MODULE, None)


def test_an_edit_counts_also_within_a_second_and_of_the_same_length(place: SimpleNamespace):
    assert dropped(place.where) == 3
    write(place.path, dropping(4))
    assert dropped(place.where) == 4
    write(place.path, dropping(3))
    assert dropped(place.where) == 3


def test_an_edit_that_is_no_python_is_told_and_the_old_code_does_not_run(place: SimpleNamespace):
    assert dropped(place.where) == 3
    write(place.path, "def decide(moment)\n")
    for _ in range(2):
        with pytest.raises(ProgramError, match="SyntaxError"):
            dropped(place.where)
    write(place.path, dropping(5))
    assert dropped(place.where) == 5


def test_who_ran_the_older_one_can_tell(place: SimpleNamespace):
    text = f"python(function={place.where})"
    first, same = make_policy(text), make_policy(text)
    write(place.path, dropping(4))
    later = make_policy(text)
    assert isinstance(first, FunctionPolicy)
    assert isinstance(same, FunctionPolicy)
    assert isinstance(later, FunctionPolicy)
    assert not same.edited_since(first)
    assert not same.edited_since(None)
    assert later.edited_since(first)
    assert not later.edited_since(make_policy("full"))


def test_a_module_that_was_imported_before_runs_as_it_is_now(place: SimpleNamespace):
    mine = importlib.import_module(MODULE)
    mine.KEEP = 7  # from a cell of a notebook
    module = f"{MODULE}:decide"
    assert dropped(module) == 7  # the file is as it was
    sys.modules.pop(MODULE)
    mine = importlib.import_module(MODULE)
    place.path.write_text(dropping(6))  # edited before anybody named it here
    assert dropped(module) == 6
    assert mine.KEEP == 6
    mine.KEEP = 8
    assert dropped(module) == 8


def test_a_function_of_the_notebook_is_the_one_defined_last(monkeypatch: pytest.MonkeyPatch):
    for stop in (1, 2):
        monkeypatch.setattr(
            sys.modules["__main__"], "mine", lambda _moment, stop=stop: [(0, stop)], raising=False
        )
        assert dropped("__main__:mine") == stop


def test_modules_without_source_are_taken_as_they_are():
    assert make_policy("python(function=math:floor)").digest == ""
