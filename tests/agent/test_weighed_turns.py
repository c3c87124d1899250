"""Turns of a model whose adapter weighs calls: chosen and recorded, stopped, without room, left be."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import numpy as np
import pytest
from echo_tool import RAW_SERVER, echo_spec
from tiny_adapters import write_lora
from tiny_models import write_kind
from told_router import ToldRouter

from nexus_lab.agent import Agent, EventKind, TurnOutcome
from nexus_lab.agent.base import Emitter, Status
from nexus_lab.agent.call_word import Weigher
from nexus_lab.agent.calling import tool_block
from nexus_lab.arguments.assign import assignments, plain_units
from nexus_lab.arguments.grounding import choices_of
from nexus_lab.arguments.scoring import Scoring, best_calls, weigh
from nexus_lab.bench.argument_prompt import call_prompt
from nexus_lab.bench.argument_scoring import CallScorer
from nexus_lab.engine import Engine
from nexus_lab.registry import McpServer, Registry, ServerConfig, Toolbox
from nexus_lab.settings import Profile
from nexus_lab.splice import BlockLibrary

if TYPE_CHECKING:
    from pathlib import Path

REQUEST = "echo 'red' or 'blue'"
TOOL = echo_spec({"type": "string"})
# What the model holds of a call decides, the evidence, or the opposite of the evidence.
WORDS = {
    "model": Scoring(evidence=0.0, likelihood=1.0, length=0.0, lead=3.0, most=6),
    "evidence": Scoring(evidence=1.0, likelihood=1e-9, length=0.0, lead=3.0, most=6),
    "opposite": Scoring(evidence=-1.0, likelihood=1e-9, length=0.0, lead=3.0, most=6),
}


class Heard:
    def __init__(self) -> None:
        self.events: list = []
        self.on_weighing = lambda: None

    def on_event(self, event) -> None:
        self.events.append(event)
        if event.kind is EventKind.RERANK and event.duration_ns is None:
            self.on_weighing()

    def ended(self, kind):
        return [event for event in self.events if event.kind is kind and event.duration_ns is not None]


@pytest.fixture(scope="module")
def server():
    started = McpServer(ServerConfig("raw", sys.executable, (str(RAW_SERVER),)))
    started.start()
    yield started
    started.close()


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    return write_kind(tmp_path_factory.mktemp("weighed") / "model.gguf", "plain")


@pytest.fixture
def make(server, model, tmp_path):
    """Make an agent and its ears over the tiny model, with an adapter whose word counts so, or without."""
    made: list = []
    tools = Toolbox([server], Registry.of([TOOL], name="test"))

    def one(word: str | None, *, plain_adapter: bool = False, **given):
        header = {} if word is None else WORDS[word].to_facts()
        adapter = (
            write_lora(
                tmp_path / f"{len(made)}.gguf",
                header={f"nexus_lab.{name}": float(value) for name, value in header.items()},
            )
            if word or plain_adapter
            else None
        )
        engine = Engine.load(model, n_ctx=2048, threads=1, adapter=adapter)
        heard = Heard()
        agent = Agent(
            engine,
            tools,
            router=ToldRouter(),
            profile=Profile(max_tokens=24, answer_tokens=4).changed(**given),
            observers=[heard],
            library=BlockLibrary(engine, tmp_path / "blocks"),
        )
        made.append((agent, engine))
        return agent, heard

    yield one
    for agent, engine in made:
        agent.close()
        engine.close()


def _calls() -> list[str]:
    choices, spans = choices_of(TOOL, REQUEST)
    found = best_calls(choices, assignments(choices, plain_units(spans)), most=6)
    return [one.text for one in found if found[0].assignment.score - one.assignment.score < 3.0]


def test_the_word_of_the_model_chooses_the_call_and_is_recorded(make):
    agent, heard = make("model")
    turn = agent.ask(REQUEST)
    assert turn.outcome is TurnOutcome.CALLED, turn.problem
    calls = _calls()
    assert len(calls) == 4
    assert list(turn.weighed.calls) == calls
    alone = CallScorer(agent.engine)(TOOL, REQUEST, [], calls)
    np.testing.assert_allclose(turn.weighed.likelihoods, alone, atol=0.05)
    best = int(np.argmax(turn.weighed.likelihoods))
    assert turn.weighed.chosen == best
    assert json.dumps(turn.arguments, separators=(",", ":")) == calls[best]
    (span,) = heard.ended(EventKind.RERANK)
    assert (span.name, span.status) == ("calls", Status.OK)
    assert span.attributes == {"candidates": len(calls), "preferred": f"call {best + 1} of {len(calls)}"}
    assert span.contents["calls"] == calls
    assert 0 < span.duration_ns / 1e6 <= turn.times_ms["weighing"] <= turn.times_ms["arguments"]
    (written,) = [one for one in heard.ended(EventKind.ARGUMENTS) if "attempt" in one.attributes]
    assert written.attributes["weighed"] == len(calls)
    assert written.attributes["overruled"] is (best > 0)
    assert dict(turn.to_row().times_ms)["weighing"] == turn.times_ms["weighing"]


@pytest.mark.parametrize(("word", "place"), [("evidence", 0), ("opposite", -1)])
def test_evidence_counts_as_much_as_the_adapter_says(make, word, place):
    agent, heard = make(word)
    turn = agent.ask(REQUEST)
    calls = _calls()
    assert json.dumps(turn.arguments, separators=(",", ":")) == calls[place]
    (written,) = [one for one in heard.ended(EventKind.ARGUMENTS) if "attempt" in one.attributes]
    assert written.attributes["overruled"] is (place != 0)


@pytest.mark.parametrize("mode", ["signature", "splice(exact)"])
def test_nothing_of_it_stays_in_the_conversation(make, mode):
    weighed, _ = make("evidence", schema_mode=mode)
    left_be, _ = make("evidence", schema_mode=mode)
    left_be._calls._weigher = None
    one, other = weighed.ask(REQUEST), left_be.ask(REQUEST)
    assert (one.weighed is None, other.weighed is None) == (False, True)
    assert one.arguments == other.arguments
    assert weighed.conversation.tokens == left_be.conversation.tokens
    assert weighed.conversation.runner.program == left_be.conversation.runner.program
    assert weighed.engine.used_cells() == left_be.engine.used_cells()


@pytest.mark.parametrize("plain_adapter", [False, True])
def test_without_an_adapter_that_says_how_it_counts_nothing_is_weighed(make, plain_adapter):
    agent, heard = make(None, plain_adapter=plain_adapter)
    bare, _ = make(None, plain_adapter=plain_adapter)
    bare._calls._weigher = None
    turn, other = agent.ask(REQUEST), bare.ask(REQUEST)
    assert turn.outcome is TurnOutcome.CALLED
    assert turn.weighed is None
    assert "weighing" not in turn.times_ms
    assert heard.ended(EventKind.RERANK) == []
    assert all("weighed" not in event.attributes for event in heard.events)
    assert agent.conversation.tokens == bare.conversation.tokens
    assert (turn.arguments, turn.answer) == (other.arguments, other.answer)


def test_a_request_that_leaves_nothing_close_asks_the_model_nothing(make, server):
    agent, heard = make("model")
    agent.tools = Toolbox([server], Registry.of([echo_spec({"const": "hello"})], name="test"))
    turn = agent.ask("echo hello")
    assert turn.arguments == {"text": "hello"}
    assert turn.weighed is None
    assert "weighing" not in turn.times_ms
    assert heard.ended(EventKind.RERANK) == []


def test_stop_ends_the_weighing_and_leaves_no_trace(make):
    agent, heard = make("model")
    first = agent.ask(REQUEST)
    before = agent.conversation.tokens, agent.engine.used_cells(), len(agent.history)
    heard.on_weighing = agent.stop
    turn = agent.ask(REQUEST)
    assert turn.outcome is TurnOutcome.CANCELLED
    assert heard.ended(EventKind.RERANK)[-1].status is Status.CANCELLED
    assert len(heard.ended(EventKind.TOOL)) == 1
    assert (agent.conversation.tokens, agent.engine.used_cells(), len(agent.history)) == before
    heard.on_weighing = lambda: None
    assert agent.ask(REQUEST).arguments == first.arguments


def test_the_bundled_model_weighs_with_a_tiny_adapter(server, tmp_path):
    random = np.random.default_rng(7)
    pair = {
        f"blk.{layer}.attn_output.weight.lora_{side}": random.normal(0, 0.05, shape).astype(np.float32)
        for layer in (3, 20)
        for side, shape in (("a", (3, 576)), ("b", (576, 3)))
    }
    header = {f"nexus_lab.{name}": value for name, value in WORDS["model"].to_facts().items()}
    adapter = write_lora(tmp_path / "tiny.gguf", pair, header=header)
    tools = Toolbox([server], Registry.of([TOOL], name="test"))
    with Engine.load(n_ctx=1024, threads=1, adapter=adapter) as engine:
        profile = Profile(max_tokens=24, answer_tokens=4)
        agent = Agent(
            engine, tools, router=ToldRouter(), profile=profile, library=BlockLibrary(engine, tmp_path)
        )
        turn = agent.ask(REQUEST)
        assert turn.outcome is TurnOutcome.CALLED, turn.problem
        assert list(turn.weighed.calls) == _calls()
        prompt = call_prompt(engine, TOOL, REQUEST)[:-1]  # a settled call has its own token there
        assert list(agent.conversation.tokens[: len(prompt)]) == prompt
        # The rows stand in other cells there, which moves the last bits of every token's.
        alone = CallScorer(engine)(TOOL, REQUEST, [], _calls())
        np.testing.assert_allclose(turn.weighed.likelihoods, alone, atol=1.5)
        best = int(np.argmax(turn.weighed.likelihoods))
        assert json.dumps(turn.arguments, separators=(",", ":")) == _calls()[best]
        assert turn.times_ms["weighing"] > 0
        agent.close()


def test_without_room_the_evidence_alone_decides_and_says_so(make):
    agent, _ = make("model")
    heard = Heard()
    conversation = agent.conversation
    conversation.append("user", conversation.transcript.user(tool_block(TOOL, "signature"), REQUEST))
    engine, emitter = agent.engine, Emitter(heard)
    weigher = Weigher.at(engine, emitter, conversation)
    choices, spans = choices_of(TOOL, REQUEST)
    calls = best_calls(choices, assignments(choices, plain_units(spans)), most=6)
    with engine.scratch_sequence() as other:
        free = engine.n_ctx - engine.used_cells()
        engine.prefill(other, [5] * (free - 3), logits="none")
        found = weigh(TOOL, REQUEST, [], calls, scorer=weigher, scoring=weigher.scoring)
    assert found is None
    (span,) = heard.ended(EventKind.RERANK)
    assert (span.status, span.attributes["code"]) == (Status.DECLINED, "calls_no_room")
    assert span.attributes["reason"].endswith(" cells beside the conversation, and 3 are free")
    assert weigher.ms > 0
    assert weigh(TOOL, REQUEST, [], calls, scorer=weigher, scoring=weigher.scoring) is not None
