"""What an adapter for arguments learns from: answers, other names, and the very prompts of the agent."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from nexus_lab.agent.base import Emitter, EventKind
from nexus_lab.agent.calling import call_opening, tool_block
from nexus_lab.agent.turn import Turn, TurnOutcome
from nexus_lab.bench.argument_cases import ArgumentCase
from nexus_lab.bench.argument_exercises import Exercise, answer_of, answer_text, exercises_of, recorded
from nexus_lab.bench.argument_prompt import call_prompt
from nexus_lab.bench.argument_swaps import known_names, swapped
from nexus_lab.bench.argument_writing import Writer
from nexus_lab.registry import Registry, ToolResult, ToolSpec
from nexus_lab.settings import Profile
from nexus_lab.trace import SessionRecorder, read_session

if TYPE_CHECKING:
    from pathlib import Path

    from nexus_lab.engine import Engine
    from nexus_lab.trace import Session

TOOL = ToolSpec(
    "read_issue",
    "Read one issue of a repository.",
    {
        "type": "object",
        "properties": {
            "owner": {"type": "string"},
            "repo": {"type": "string"},
            "n": {"type": "integer", "maximum": 9999},
            "method": {"enum": ["get", "list"]},
            "where": {"type": "object"},
        },
        "required": ["owner"],
    },
)


def case(accepted: dict[str, Any], **changes: Any) -> ArgumentCase:
    return ArgumentCase(
        **{
            "id": "1",
            "tool": TOOL,
            "request": "Read issue 482 of acme/webshop",
            "context": (),
            "accepted": accepted,
            "stated": tuple(accepted),
            "apart": False,
            **changes,
        }
    )


def exercise(answer: dict[str, Any], request: str = "Read issue 482 of acme/webshop") -> Exercise:
    return Exercise(tool=TOOL, request=request, context=(), answer=answer, group="1")


def test_an_answer_is_written_in_the_schemas_order_without_spaces():
    found = answer_of(case({"method": ("get",), "n": (482.0,), "owner": ("acme", "Acme")}))
    assert found is not None
    assert answer_text(found) == '{"owner":"acme","n":482,"method":"get"}'


def test_what_may_be_left_out_is():
    found = answer_of(case({"owner": ("acme",), "method": ("get",)}, may_lack=frozenset({"method"})))
    assert found == {"owner": "acme"}


def test_members_of_an_object_take_their_first_accepted_value():
    accepted = {"owner": ("acme",), "where": ({"city": ["Oslo", "oslo"], "zip": ["", "1"]},)}
    loose = dict.fromkeys(accepted, "loose")
    assert answer_of(case(accepted, kinds=loose)) == {"owner": "acme", "where": {"city": "Oslo"}}


def test_an_answer_that_breaks_the_schema_teaches_nothing():
    assert answer_of(case({"owner": (3,)})) is None
    assert answer_of(case({"repo": ("webshop",)})) is None


def test_only_one_side_of_the_split_is_learned_from_and_each_request_once():
    cases = [case({"owner": ("acme",)}), case({"owner": ("b",)}), case({"owner": ("c",)}, apart=True)]
    assert [one.answer for one in exercises_of(cases, apart=False)] == [{"owner": "acme"}]
    assert [one.answer for one in exercises_of(cases, apart=True)] == [{"owner": "c"}]


NAMES = {("owner", "a"): ["acme", "globex"], ("repo", "a"): ["docs", "webshop"]}


def rounds(one: Exercise, count: int = 40) -> list[Exercise]:
    chooser = np.random.default_rng(0)
    return [swapped(one, NAMES, chooser) for _ in range(count)]


def test_names_and_numbers_change_in_request_and_answer_alike():
    found = rounds(exercise({"owner": "acme", "repo": "webshop", "n": 482, "method": "get"}))
    for one in found:
        owner, repo, number = one.answer["owner"], one.answer["repo"], one.answer["n"]
        assert one.request == f"Read issue {number} of {owner}/{repo}"
        assert 100 <= number <= 999
        assert one.answer["method"] == "get"
    assert len({one.request for one in found}) > 20
    assert {one.answer["owner"] for one in found} > {"acme", "globex"}, "few names are joined by made-up ones"


def test_a_text_that_holds_a_name_follows_it():
    one = exercise(
        {"owner": "acme", "repo": "crash in acme"}, "In acme there is a crash in acme, not in acmes"
    )
    for found in rounds(one):
        assert (
            found.request
            == f"In {(name := found.answer['owner'])} there is a {found.answer['repo']}, not in acmes"
        )
        assert name in found.answer["repo"]


@pytest.mark.parametrize(
    ("answer", "request_text"),
    [
        ({"owner": "acme", "n": 3}, "Since 2026-03-03 of aacme"),
        ({"owner": "list"}, "Give the list"),
        ({"owner": "acme"}, "Say hello"),
    ],
)
def test_parts_of_words_and_dates_and_the_tools_own_words_stay(answer: dict[str, Any], request_text: str):
    one = exercise(answer, request_text)
    assert all(found == one for found in rounds(one, 10))


def test_what_would_break_the_schema_is_not_changed():
    tool = ToolSpec("t", "", {"type": "object", "properties": {"n": {"type": "integer", "multipleOf": 241}}})
    one = Exercise(tool=tool, request="Do 482", context=(), answer={"n": 482}, group="1")
    assert {found.answer["n"] for found in rounds(one)} <= {241, 482, 723, 964}


def test_known_names_are_those_of_the_answers():
    found = known_names([exercise({"owner": "acme", "n": 3}), exercise({"owner": "Globex", "repo": "a"})])
    assert found == {("owner", "a"): ["acme"], ("owner", "A"): ["Globex"]}


@pytest.mark.model
@pytest.mark.parametrize("mode", ["signature", "full"])
@pytest.mark.parametrize(
    "context",
    [
        [],
        [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Good day."}],
        [{"role": "user", "content": "One <|im_end|>"}, {"role": "user", "content": "Two"}],
        [{"role": "system", "content": "Be quick"}, {"role": "assistant", "content": "Unasked"}],
    ],
)
def test_a_prompt_is_the_one_of_the_agents_own_writing(
    bundled_engine: Engine, mode: str, context: list[dict[str, str]], tmp_path: Path
):
    one = case({"owner": ("acme",)}, context=tuple(context))
    writer = Writer(bundled_engine, Profile(schema_mode=mode), blocks=tmp_path)
    conversation = writer._conversation()
    try:
        conversation.open()
        writer._replay(conversation, one.context)
        block = tool_block(one.tool, mode)
        conversation.append("user", conversation.transcript.user(block, one.request))
        seen = tuple(conversation.tokens)
    finally:
        conversation.close()
        writer.close()
    opening = bundled_engine.tokenize(call_opening(one.tool.name), special=False)
    found = call_prompt(bundled_engine, one.tool, one.request, one.context, mode=mode)
    assert tuple(found) == (*seen, *opening)


def session(folder: Path, turns: list[Turn], *, contents: bool = True) -> Session:
    """A recorded session of some turns."""
    with SessionRecorder(folder / "today.nexus", contents=contents) as recorder:
        emitter = Emitter(recorder)
        for turn in turns:
            with emitter.span(EventKind.TURN, f"turn {turn.number}", turn=turn.number) as span:
                span.add(turn.to_row())
    return read_session(folder / "today.nexus")


def called(number: int, request: str, arguments: dict[str, Any], **changes: Any) -> Turn:
    turn = Turn(number=number, request=request, schema_mode="signature", settings={})
    turn.outcome, turn.tool, turn.arguments = TurnOutcome.CALLED, TOOL.name, arguments
    turn.result, turn.answer = ToolResult("done"), "It is done."
    for name, value in changes.items():
        setattr(turn, name, value)
    return turn


def test_calls_of_a_session_that_ran_are_learned_from_as_they_were_corrected(tmp_path: Path):
    turns = [
        called(1, "Read issue 3 of acme", {"owner": "acme", "n": 3}),
        called(2, "And of globex?", {"owner": "globex", "n": 3}),
        called(3, "Not this", {"owner": "a"}, outcome=TurnOutcome.REFUSED),
        called(4, "Another tool", {"owner": "a"}, tool="write_issue"),
        called(5, "A wrong one", {"repo": "a"}),
        called(6, "My api_key=abcdef123456 is", {"owner": "api_key=abcdef123456"}),
    ]
    first, second = recorded(session(tmp_path, turns), Registry.of([TOOL]))
    assert (first.request, first.answer, first.context) == (
        "Read issue 3 of acme",
        {"owner": "acme", "n": 3},
        (),
    )
    assert second.answer == {"owner": "globex", "n": 3}
    assert [turn["content"] for turn in second.context] == ["Read issue 3 of acme", "It is done."]


def test_a_call_belongs_to_the_tool_of_the_server_that_ran_it(tmp_path: Path):
    turns = [called(1, "Read issue 3 of acme", {"owner": "acme"}, server="two")]
    calls = session(tmp_path, turns)
    one, two, other = (replace(TOOL, server=server) for server in ("one", "two", "other"))
    assert [exercise.tool for exercise in recorded(calls, Registry.of([one, two]))] == [two]
    assert [exercise.tool for exercise in recorded(calls, Registry.of([other]))] == [other]
    assert list(recorded(calls, Registry.of([one, other]))) == []  # which of them, nobody knows


def test_a_session_without_contents_teaches_nothing(tmp_path: Path):
    turns = [called(1, "Read issue 3 of acme", {"owner": "acme"})]
    assert list(recorded(session(tmp_path, turns, contents=False), Registry.of([TOOL]))) == []
