"""Conversations are checked line by line, and cut into stretches that differ."""

from __future__ import annotations

import json

import pytest

from nexus_lab.bench.splice_inputs import own_context
from nexus_lab.bench.trajectories import TrajectoryError, read_trajectories, stretch, trajectory_messages


class Words:
    """An engine whose tokens are words."""

    def __init__(self):
        self.words = []

    def render_chat(self, messages, *, add_generation_prompt):
        assert not add_generation_prompt
        return " ".join(f"<{message['role']}> {message['content']}" for message in messages)

    def tokenize(self, text):
        return text.split()


def conversation(name, n_turns):
    messages = [{"role": "system", "content": "policy"}]
    for turn in range(n_turns):
        messages += [
            {"role": "user", "content": f"{name} asks {turn}"},
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"id": "c", "name": "look", "arguments": {"n": turn}}],
            },
            {"role": "tool", "content": "", "tool_call_id": "c"},
            {"role": "assistant", "content": "done"},
        ]
    return {"id": name, "messages": messages}


@pytest.fixture
def path(tmp_path):
    file = tmp_path / "talks.jsonl"
    file.write_text("\n".join(json.dumps(conversation(name, 3)) for name in ("a", "b")))
    return file


def test_every_message_becomes_one_that_any_template_takes(path):
    first = list(trajectory_messages(read_trajectories(path)[0]))
    assert [message["role"] for message in first[:4]] == ["user", "assistant", "user", "assistant"]
    assert json.loads(first[1]["content"]) == {"name": "look", "arguments": {"n": 0}}
    assert first[2]["content"] == "Tool result: "


def test_an_id_that_comes_again_is_another_conversation(path):
    rows = [conversation("a", turns) for turns in (1, 1, 2, 3)] + [conversation("a (2)", 1)]
    path.write_text("\n".join(map(json.dumps, rows)))
    talks = read_trajectories(path)
    assert [talk.name for talk in talks] == ["a", "a (2)", "a (3)", "a (4)", "a (2) (2)"]
    names = [stretch(Words(), talks, number, 12)[0] for number in range(5)]
    assert len(set(names)) == 5
    # Blocks are compiled behind the first and the third; the second is the first again, and takes no part.
    _, unseen = own_context(Words(), talks[:4])
    assert [talk.name for talk in unseen] == ["a (4)"]


@pytest.mark.parametrize(
    ("arguments", "read"),
    [('{"to": "Milan"}', {"to": "Milan"}), ({"to": "Milan"}, {"to": "Milan"}), ('{"to": ', '{"to": ')],
)
def test_calls_in_the_form_of_openai_are_read(tmp_path, arguments, read):
    call = {"id": "c", "type": "function", "function": {"name": "find", "arguments": arguments}}
    row = {"messages": [{"role": "assistant", "content": None, "tool_calls": [call]}]}
    (tmp_path / "x.jsonl").write_text(json.dumps(row))
    (talk,) = read_trajectories(tmp_path / "x.jsonl")
    (said,) = trajectory_messages(talk)
    assert json.loads(said["content"]) == {"name": "find", "arguments": read}


def test_stretches_are_exact_and_differ(path):
    talks = read_trajectories(path)
    found = [stretch(Words(), talks, number, 60) for number in range(6)]
    assert [name for name, _ in found] == ["a@0", "b@0", "a@4", "b@4", "a@8", "b@8"]
    assert len({tokens for _, tokens in found}) == 6
    assert all(len(tokens) == 60 for _, tokens in found)
    with pytest.raises(TrajectoryError, match="10000 are wanted"):
        stretch(Words(), talks, 0, 10_000)


def test_what_blocks_are_compiled_behind_and_what_they_are_measured_behind_have_nothing_in_common(path):
    with path.open("a") as file:
        file.writelines(f"\n{json.dumps(conversation(name, 3))}" for name in ("c", "a"))
    talks = read_trajectories(path)
    context, unseen = own_context(Words(), talks)
    # The fourth is the first once more.
    assert [talk.name for talk in unseen] == ["b"]
    text = " ".join(map(str, context.tokens + sum(context.probes, ())))
    assert "a asks" in text
    assert "c asks" in text
    assert "b asks" not in text
    with pytest.raises(TrajectoryError, match="1 conversations"):
        own_context(Words(), talks[:1])


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("", "no conversation"),
        ("{", "line 1"),
        ('{"id": 1}', "'messages'"),
        ('{"messages": []}', "'messages'"),
        ('{"messages": [{"content": "x"}]}', "message 1: .*'role'"),
        ('{"messages": [{"role": "user", "content": 4}]}', "'content'"),
        ('{"messages": [{"role": "user", "content": null}]}', "neither"),
        ('{"messages": [{"role": "assistant", "content": null, "tool_calls": [{}]}]}', "'tool_calls'"),
        (
            '{"messages": [{"role": "assistant", "content": null, "tool_calls": [{"function": {}}]}]}',
            "'tool_calls'",
        ),
    ],
)
def test_another_form_is_refused_with_its_line(tmp_path, text, wrong):
    (tmp_path / "x.jsonl").write_text(text)
    with pytest.raises(TrajectoryError, match=wrong) as error:
        read_trajectories(tmp_path / "x.jsonl")
    assert error.value.next_step
