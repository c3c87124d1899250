"""Engines, blocks and prompts for the splice tests."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from nexus_lab.bench.splice import trial_case
from nexus_lab.bench.splice_tools import SPLICE_CASES
from nexus_lab.engine import Engine
from nexus_lab.splice import BlockLibrary, TrialCase, prompt_tokens

TOOLS = {
    "book_table": "Book a table in a restaurant: place, day, hour, and how many guests will come",
    "translate": "Translate a text from one language into another, keeping names and numbers as they are",
    "read_log": "Read the last lines of a service's log, optionally only those above a severity",
}


@pytest.fixture(scope="session")
def flash_engine() -> Iterator[Engine]:
    """As `bundled_engine`, with flash attention: V lies in rows."""
    with Engine.load(n_ctx=1024, threads=1, flash_attention=True) as engine:
        yield engine


@pytest.fixture(params=["transposed", "rows"])
def engine(request: pytest.FixtureRequest) -> Engine:
    """Both layouts of V in turn."""
    name = {"transposed": "bundled_engine", "rows": "flash_engine"}[request.param]
    found: Engine = request.getfixturevalue(name)
    return found


@pytest.fixture
def library(bundled_engine: Engine, tmp_path: Path) -> BlockLibrary:
    return BlockLibrary(bundled_engine, tmp_path / "blocks")


@pytest.fixture(scope="session")
def cases(bundled_engine: Engine) -> tuple[TrialCase, ...]:
    """Three tools as a prompt shows them, each with a request and an answer."""
    return tuple(_case(bundled_engine, name, text) for name, text in TOOLS.items())


@pytest.fixture(scope="session")
def whole_cases(bundled_engine: Engine) -> tuple[TrialCase, ...]:
    """Two tools with their whole schemas: a fixed share of a short block repairs less than its sink."""
    found = (trial_case(bundled_engine, case) for case in SPLICE_CASES[:3:2])
    return tuple(replace(case, answer=case.answer[:16]) for case in found)


@pytest.fixture(scope="session")
def history(bundled_engine: Engine) -> tuple[int, ...]:
    """Tokens of a conversation, to put blocks behind."""
    return tuple(prompt_tokens(bundled_engine, 600, seed=7))


def _case(engine: Engine, name: str, text: str) -> TrialCase:
    block = f'<|im_start|>system\nYou can call this tool:\n{{"name": "{name}", "description": "{text}"}}'
    rest = "<|im_end|>\n<|im_start|>user\nPlease do it now.<|im_end|>\n<|im_start|>assistant\n"
    answer = f'{{"name": "{name}", "arguments": {{}}}}'
    return TrialCase(name, *(tuple(engine.tokenize(part)) for part in (block, rest, answer)))
