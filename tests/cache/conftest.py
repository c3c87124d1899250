"""Fixtures of the cache room's tests: the shared engine, checked for leaks, and real text as tokens."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from nexus_lab.cache import ProgramRunner
    from nexus_lab.engine import Engine

    RunnerFactory = Callable[..., ProgramRunner]

TEXT = (
    "<|im_start|>user\nWhich train leaves Zurich for Milan after nine, and what does it cost? I would like a "
    "window seat, and I have two suitcases and a folding bicycle with me.<|im_end|>\n<|im_start|>tool\n"
    '{"trains": [{"id": "EC 317", "leaves": "09:33", "arrives": "12:50", "price": 67.5, "seats": 41}, '
    '{"id": "EC 319", "leaves": "11:33", "arrives": "14:50", "price": 49.0, "seats": 3}]}<|im_end|>\n'
    "<|im_start|>assistant\nThe EC 317 leaves at 09:33 and costs 67.50; a bicycle needs its own ticket."
)


@pytest.fixture
def engine(bundled_engine: Engine) -> Iterator[Engine]:
    """The shared engine, empty before and after the test."""
    assert bundled_engine.used_cells() == 0
    yield bundled_engine
    gc.collect()
    used = bundled_engine.used_cells()
    assert used == 0, f"the test left {used} cells behind"


@pytest.fixture(scope="session")
def words(bundled_engine: Engine) -> tuple[int, ...]:
    """At least 150 tokens of a conversation."""
    tokens = tuple(bundled_engine.tokenize(TEXT))
    assert len(tokens) >= 150
    return tokens


@pytest.fixture
def make_runner(engine: Engine) -> Iterator[RunnerFactory]:
    """Make runners that are checked and closed after the test, whatever becomes of it."""
    from nexus_lab.cache import ProgramRunner

    made: list[ProgramRunner] = []

    def make(**options: object) -> ProgramRunner:
        made.append(ProgramRunner(engine, **options))
        return made[-1]

    yield make
    for runner in made:
        runner.pool.check_integrity()
        runner.store.check_integrity()
        runner.close()
    for runner in made:
        runner.pool.close()


@pytest.fixture
def runner(make_runner: RunnerFactory) -> ProgramRunner:
    """A runner with a pool and a store of its own."""
    return make_runner()
