"""How much an adapter's word counts: fitted where it helps, told in its header, and used from there."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from tiny_adapters import write_lora
from tiny_models import write_kind

from nexus_lab.arguments import ground, plan_call
from nexus_lab.arguments.scoring import Scoring
from nexus_lab.bench.argument_cases import ArgumentCase
from nexus_lab.bench.argument_exercises import Exercise
from nexus_lab.bench.argument_word import fit_word
from nexus_lab.bench.arguments import _Planners
from nexus_lab.engine import Engine
from nexus_lab.engine.adapter import read_adapter
from nexus_lab.engine.gguf_file import read_gguf
from nexus_lab.registry import ToolSpec

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

TOOL = ToolSpec(
    "move",
    "Move a thing.",
    {
        "type": "object",
        "properties": {"thing": {"type": "string"}, "onto": {"type": "string"}},
        "required": ["thing", "onto"],
    },
)
PAIRS = [("lamp", "desk"), ("cup", "shelf"), ("book", "chair"), ("vase", "piano"), ("coat", "hook")]
EXERCISES = [
    Exercise(
        tool=TOOL,
        request=f"Beside {onto} and {thing}, {thing} {onto}",
        context=(),
        answer={"thing": thing, "onto": onto},
        group=thing,
    )
    for thing, onto in PAIRS
]
ANSWERS = {f"{one.request}": json.dumps(dict(one.answer), separators=(",", ":")) for one in EXERCISES}


def knows(_tool: ToolSpec, request: str, _context: Any, texts: Sequence[str]) -> list[float]:
    return [0.0 if text == ANSWERS[request] else -9.0 for text in texts]


def says_nothing(_tool: ToolSpec, _request: str, _context: Any, texts: Sequence[str]) -> list[float]:
    return [0.0] * len(texts)


def test_a_word_that_is_right_counts_and_decides():
    scoring = fit_word(EXERCISES, knows)
    assert scoring.likelihood > 0.1
    request = EXERCISES[0].request
    assert ground(TOOL, request, scorer=knows, scoring=scoring).values == {"thing": "lamp", "onto": "desk"}
    plan = plan_call(TOOL, request, scorer=knows, scoring=scoring)
    assert plan.settled == ANSWERS[request]


def test_a_word_that_says_nothing_does_not():
    scoring = fit_word(EXERCISES, says_nothing)
    assert scoring.likelihood == pytest.approx(0.0, abs=1e-3)
    assert Scoring.of(Scoring().to_facts()) is None


@pytest.mark.parametrize("lacking", ["evidence", "likelihood", "length", "lead", "most"])
def test_a_header_that_lacks_a_part_counts_for_nothing(lacking: str):
    scoring = Scoring(evidence=0.75, likelihood=0.5, length=0.125, lead=3.0, most=6)
    facts = scoring.to_facts()
    assert Scoring.of(facts) == scoring
    del facts[f"scoring.{lacking}"]
    assert Scoring.of(facts) is None


def test_it_is_read_from_the_adapter_that_runs(tmp_path: Path):
    scoring = Scoring(evidence=0.75, likelihood=0.5, length=0.125, lead=3.0, most=6)
    header = {f"nexus_lab.{name}": value for name, value in scoring.to_facts().items()}
    path = write_lora(tmp_path / "a.gguf", header={**header, "nexus_lab.scoring.other": float("nan")})
    model = write_kind(tmp_path / "model.gguf", "plain")
    facts = read_adapter(path, read_gguf(model)).facts
    assert facts == scoring.to_facts()
    case = ArgumentCase(id="1", tool=TOOL, request="Move", context=(), accepted={}, stated=(), apart=False)
    with Engine.load(model, n_ctx=128, threads=1, adapter=path) as engine:
        assert _Planners([case], engine)._scoring == scoring
    with Engine.load(model, n_ctx=128, threads=1) as engine:
        assert _Planners([case], engine)._scoring is None
