"""What policies do to a conversation: its cache, its text, and words with the model that leave nothing."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from nexus_lab.agent.base import Emitter, EventKind
from nexus_lab.agent.conversation import Conversation
from nexus_lab.cache import (
    Append,
    CacheProgram,
    Drop,
    Edit,
    FullPolicy,
    FunctionPolicy,
    Moment,
    ProgramError,
    TextMessage,
    make_policy,
)
from nexus_lab.engine import ContextFull
from nexus_lab.errors import Cancelled

pytestmark = pytest.mark.model

CALL = '{"name": "find_flight", "arguments": {"to": "Milan"}}'


@pytest.fixture
def talk(bundled_engine):
    """A conversation with a call, two responses and a reply, under a policy to be set."""
    bundled_engine.clear()
    conversation = Conversation(
        bundled_engine, system="You book flights.", emitter=Emitter(), policy=FullPolicy()
    )
    conversation.open()
    for said, text in (
        ("user", "To Milan, please."),
        ("call", CALL),
        ("tool", '{"flights": [{"id": "AZ 569", "price": 120}]}'),
        ("call", CALL),
        ("tool", '{"flights": [{"id": "LX 1612", "price": 99}]}'),
    ):
        if said == "call":
            conversation.open_reply()
            conversation.force(f"Let me look.\n{text}", thought="Let me look.\n", calls=True)
        else:
            pieces = getattr(conversation.transcript, said)(text)
            conversation.append(said, pieces, reply=False)
    yield conversation
    conversation.close()
    assert bundled_engine.used_cells() == 0


def test_forced_messages_are_spans_of_the_same_tokens(talk, bundled_engine):
    assert [span.role for span in talk.messages] == [
        "system", "user", "assistant", "tool", "assistant", "tool",
    ]  # fmt: skip
    assert [span.stop for span in talk.messages[:-1]] == [span.start for span in talk.messages[1:]]
    assert talk.messages[-1].stop == talk.n_tokens
    call = talk.messages[2]
    assert call.calls
    assert bundled_engine.detokenize(talk.tokens[slice(*call.thought)]) == "Let me look.\n"
    assert CALL in bundled_engine.detokenize(talk.tokens[call.start : call.stop])
    assert talk.is_plain


def test_a_trim_prefills_from_the_first_stub_on(talk, bundled_engine):
    calls, before = [], talk.messages
    talk.policy = make_policy("trim(keep_last=1)")
    with bundled_engine.metered(calls.append):
        talk.apply_policy()
    tokens = talk.tokens
    assert sum(call.tokens for call in calls) == len(tokens) - _common(before, talk)
    assert talk.messages[3].text == "[trimmed]"
    assert "AZ 569" not in bundled_engine.detokenize(tokens)
    assert talk.runner.program == CacheProgram((Append(tokens),))
    assert talk.transcript.text(3) == "[trimmed]"
    again = []
    with bundled_engine.metered(again.append):
        talk.apply_policy()
    assert not again


def _common(before, talk):
    """Tokens up to the text of the first response, whose header both versions share."""
    start = before[3].start
    return start + len(talk._engine.tokenize("<|im_start|>tool\n"))


def test_an_aside_leaves_neither_cells_nor_words(talk, bundled_engine):
    program, text, used = talk.runner.program, talk.transcript.mark(), bundled_engine.used_cells()
    logits = talk.runner.snapshot.logits.copy()
    with talk.aside() as aside:
        aside.say("Which flight is cheapest?")
        assert aside.answer(max_tokens=24, schema={"enum": ["LX 1612", "AZ 569"]}).strip('"')[:2] in {
            "LX", "AZ",
        }  # fmt: skip
        assert talk.runner.program != program
    assert talk.runner.program == program
    assert talk.transcript.mark() == text
    assert bundled_engine.used_cells() == used
    assert np.array_equal(talk.runner.snapshot.logits, logits)


def test_a_summary_is_written_by_the_model(talk, bundled_engine):
    told = []
    talk.policy = make_policy("summarise(above=64,keep_last=1,max_tokens=16)")
    with bundled_engine.metered(told.append):
        talk.apply_policy()
    assert 0 < sum(call.tokens for call in told if call.generated) <= 16
    assert [span.role for span in talk.messages] == ["system", "user", "assistant", "tool"]
    assert talk.messages[1].text.startswith("Summary of the conversation so far:\n")
    assert talk.messages[2].calls
    assert talk.is_plain
    talk.open_reply()
    talk.force("It is LX 1612.")
    assert talk.messages[-1].stop == talk.n_tokens


def test_the_model_is_offered_its_cache_as_a_tool(talk):
    talk.policy = make_policy("agent(every=1,max_calls=2)")
    before = talk.n_tokens
    talk.apply_policy()
    state = talk.runner.snapshot.state
    assert talk.n_tokens == before
    assert state.next_position == state.n_active
    assert state.active[: talk.messages[0].stop].all()
    assert state.active[talk.messages[-1].start :].all()


def test_a_rewrite_forgets_what_was_dropped(talk):
    first = talk.messages[3]
    talk.policy = FunctionPolicy(lambda _moment: [(first.start, first.stop)])
    talk.apply_policy()
    assert any(isinstance(op, Drop) for op in talk.runner.program.ops)
    kept = [i for i in range(len(talk.messages)) if i != 3]
    talk.rewrite([TextMessage(talk.messages[i].role, talk.messages[i].text, source=i) for i in kept])
    assert talk.is_plain
    assert [span.role for span in talk.messages] == ["system", "user", "assistant", "assistant", "tool"]


def test_a_rewritten_conversation_can_be_rewound(talk):
    mark, spans, program = talk.mark(), list(talk.messages), talk.runner.program
    talk.policy = make_policy("trim(keep_last=1)")
    talk.apply_policy()
    talk.rewind(mark)
    assert talk.messages == spans
    assert talk.runner.program == program
    assert "AZ 569" in talk.transcript.text(3)


def test_thinking_is_found_in_what_was_generated(talk, bundled_engine):
    talk.open_reply()
    talk.step(Append(tuple(bundled_engine.tokenize("<think>Cheap.</think>LX", special=False))), note="said")
    talk.close_reply("<think>Cheap.</think>LX")
    start, stop = talk.messages[-1].thought
    assert start == talk.messages[-2].stop
    assert bundled_engine.detokenize(talk.tokens[start:stop]).endswith("Cheap.</think>")


def test_the_holes_of_a_drop_are_filled_where_it_pays(talk, bundled_engine):
    long = " ".join(f"{number} flights" for number in range(300))
    talk.append("tool", talk.transcript.tool(long), reply=False)
    talk.append("tool", talk.transcript.tool("none"), reply=False)
    scanned, drop = bundled_engine.scanned_cells(), talk.messages[-2]
    talk.policy = FunctionPolicy(lambda _moment: [(drop.start, drop.stop)])
    before = talk.runner.snapshot.state
    talk.apply_policy()
    assert bundled_engine.scanned_cells() < scanned
    state = talk.runner.snapshot.state
    assert state.next_position == before.next_position
    assert bundled_engine.used_cells() == state.n_active
    talk.open_reply()
    assert talk.force("None.").shape[0] > 1


def test_a_policy_that_fails_leaves_the_conversation_and_the_record_says_so(talk, caplog):
    heard = []
    talk._emitter = Emitter(SimpleNamespace(on_event=heard.append))

    def fails(moment):
        with moment.host.aside() as aside:
            aside.say("Are you there?")
            raise KeyError("Zurich")

    def half_done(moment):
        drop = Drop(((moment.messages[1].start, moment.messages[1].stop),))
        return Edit(ops=(drop, Append((2**30,))))

    program, spans, text = talk.runner.program, list(talk.messages), talk.transcript.mark()
    for function in (fails, half_done):
        talk.policy = FunctionPolicy(function)
        assert talk.tidy().code == "policy_failed"
        assert talk.runner.program == program
        assert (talk.messages, talk.transcript.mark()) == (spans, text)
    told = [event for event in heard if event.kind is EventKind.DECLINE]
    assert "KeyError: 'Zurich'" in told[0].contents["error"]
    assert not any("Zurich" in str(event.attributes) for event in told)
    assert len(told) == len(caplog.records) == 2


def test_a_word_with_the_model_needs_room_for_the_whole_answer(talk, bundled_engine):
    decoded = []
    with talk.aside() as aside:
        aside.say("Sum it up.")
        with bundled_engine.metered(decoded.append), pytest.raises(ContextFull):
            aside.answer(max_tokens=bundled_engine.n_ctx - talk.n_tokens + 1)
    assert not decoded


def test_a_stop_within_a_function_of_the_user_is_no_failure_of_it(talk):
    def stopped(_moment):
        raise Cancelled("the turn was stopped")

    talk.policy = FunctionPolicy(stopped)
    with pytest.raises(Cancelled):
        talk.tidy()


@pytest.mark.parametrize("source", [6, -1, "first"])
def test_a_text_of_no_message_is_refused_before_anything_changes(talk, source):
    program, spans, text = talk.runner.program, list(talk.messages), talk.transcript.mark()
    with pytest.raises(ProgramError, match="there are 6 messages"):
        talk.rewrite([TextMessage("user", "Hello.", source=source)])
    assert (talk.runner.program, talk.messages, talk.transcript.mark()) == (program, spans, text)


def test_a_rewrite_brings_nothing_back_and_keeps_what_is_known_of_thinking(talk, bundled_engine):
    first, call, last = talk.messages[3], talk.messages[4], talk.messages[5]
    ranges = [(first.start + 4, first.stop), (call.start, call.thought[0] + 1)]
    talk.policy = FunctionPolicy(lambda _moment: ranges)
    talk.apply_policy()
    before = talk.runner.snapshot.state.n_active - (last.stop - last.start)
    texts = [TextMessage(span.role, span.text, source=i) for i, span in enumerate(talk.messages)]
    talk.rewrite([*texts[:-1], TextMessage("tool", "None left.", source=5)])
    assert talk.messages[5].start == before
    assert talk.messages[3].stop - talk.messages[3].start == 4
    assert "AZ 569" not in bundled_engine.detokenize(talk.tokens)
    assert talk.is_plain
    again = talk.messages[4]
    assert again.start == again.thought[0]
    assert bundled_engine.detokenize(talk.tokens[slice(*again.thought)]) == " me look.\n"
    drops = make_policy("drop_reasoning(keep_reasoning=0,scope=thoughts)").decide(
        Moment(messages=tuple(talk.messages), program=talk.runner.program)
    )
    assert drops.ops[0].ranges == (talk.messages[2].thought,)
