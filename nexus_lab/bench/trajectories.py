"""Real conversations of an agent to measure with: read, checked, and cut into stretches."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from nexus_lab.errors import NexusError
from nexus_lab.json_lines import json_lines, parse_line, why_unreadable
from nexus_lab.registry import neutralise
from nexus_lab.splice import SYSTEM_PROMPT

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from nexus_lab.engine import Engine
    from nexus_lab.splice.samples import Message

__all__ = ["Trajectory", "TrajectoryError", "read_trajectories", "stretch", "trajectory_messages"]

_SHOWN = 60
_FORM = 'write a line for each conversation: {"id": ..., "messages": [{"role": ..., "content": ...}, ...]}'
_SAID_BY = {"tool": "user", "function": "user", "developer": "system"}


class TrajectoryError(NexusError):
    """A file of conversations that cannot be read, or is too short for what is asked."""


@dataclass(frozen=True, slots=True)
class Trajectory:
    """One conversation of an agent with its user and its tools.

    Attributes
    ----------
    name
        Its id in the file, and the place among those of that id from the second one on.
    messages
        Its messages as the file has them: role, content, and where there are any ``tool_calls`` of name
        and arguments.
    """

    name: str
    messages: tuple[Mapping[str, Any], ...]


def read_trajectories(path: Path) -> list[Trajectory]:
    """Read conversations in the form of tau-bench, one JSON object a line.

    Tool calls may also have the form of OpenAI's API, name and arguments under ``function``.

    Where an id comes again, as of several trials of one task, its place is added: names tell cells apart.

    Raises
    ------
    TrajectoryError
        With the line that is wrong, and what is wrong with it.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise TrajectoryError(f"{path} cannot be read: {why_unreadable(error)}", next_step=_FORM) from error
    found = [
        _trajectory(line, f"line {number} of {path}", f"conversation {number}")
        for number, line in json_lines(text)
    ]
    if not found:
        raise TrajectoryError(f"{path} holds no conversation", next_step=_FORM)
    taken: set[str] = set()
    return [_named_apart(trajectory, taken) for trajectory in found]


def _named_apart(trajectory: Trajectory, taken: set[str]) -> Trajectory:
    name, number = trajectory.name, 1
    while name in taken:
        number += 1
        name = f"{trajectory.name} ({number})"
    taken.add(name)
    return replace(trajectory, name=name)


def _trajectory(line: str, where: str, name: str) -> Trajectory:
    try:
        row = parse_line(line)
    except ValueError as error:
        raise TrajectoryError(f"{where} is not JSON: {error}", next_step=_FORM) from error
    messages = row.get("messages") if isinstance(row, dict) else None
    if not isinstance(messages, list) or not messages:
        raise TrajectoryError(
            f"{where} has no list under 'messages': {neutralise(line, limit=_SHOWN)}", next_step=_FORM
        )
    for number, message in enumerate(messages, start=1):
        fault = _fault(message)
        if fault:
            raise TrajectoryError(f"{where}, message {number}: {fault}", next_step=_FORM)
    return Trajectory(str(row.get("id") or name), tuple(_plain(message) for message in messages))


def _plain(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a message whose calls have their name and arguments at the top."""
    calls = message.get("tool_calls")
    return {**message, "tool_calls": [_call(call) for call in calls]} if calls else message


def _call(call: Mapping[str, Any]) -> Mapping[str, Any]:
    inner = call.get("function")
    if "name" in call or not isinstance(inner, dict):
        return call
    return {"name": inner["name"], "arguments": _arguments(inner.get("arguments"))}


def _arguments(value: Any) -> Any:
    """Return arguments that are JSON in a text as what they say; others as the model wrote them."""
    try:
        return json.loads(value) if isinstance(value, str) else value
    except (ValueError, RecursionError):
        return value


def _is_named(call: Any) -> bool:
    inner = call.get("function") if isinstance(call, dict) else None
    return isinstance(call, dict) and ("name" in call or (isinstance(inner, dict) and "name" in inner))


def _fault(message: Any) -> str:
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        return "it has no text under 'role'"
    content, calls = message.get("content"), message.get("tool_calls")
    if content is not None and not isinstance(content, str):
        return "its 'content' is neither a text nor null"
    if calls is not None and not (isinstance(calls, list) and all(map(_is_named, calls))):
        return "its 'tool_calls' is no list of objects with a 'name'"
    if content is None and not calls:
        return "it has neither content nor tool calls"
    return ""


def trajectory_messages(trajectory: Trajectory) -> Iterator[Message]:
    """Yield the messages as any chat template takes them, without those of the system.

    A tool call becomes the assistant's JSON text, a tool's response a text of the user, as in the sample
    conversations. The system's message goes, since it is the same in all conversations of a domain and
    would fill the shallow depths with one text.
    """
    for message in trajectory.messages:
        role = _SAID_BY.get(message["role"], message["role"])
        if role == "system":
            continue
        content = message.get("content") or ""
        calls = [
            {"name": call["name"], "arguments": call.get("arguments")}
            for call in message.get("tool_calls") or ()
        ]
        if message["role"] in {"tool", "function"}:
            content = f"Tool result: {content}"
        if calls:
            content = f"{content}\n" * bool(content) + json.dumps(calls if len(calls) > 1 else calls[0])
        if content:
            yield {"role": role, "content": content}


def stretch(
    engine: Engine,
    trajectories: Sequence[Trajectory],
    number: int,
    n_tokens: int,
    *,
    system: str = SYSTEM_PROMPT,
) -> tuple[str, tuple[int, ...]]:
    """Return a stretch of real conversation, another one for each number until all are used.

    Stretches begin at a user's turn: number 0 to n - 1 at the first one of each conversation, the next n at
    the second one, and so on. A stretch that comes to the end of its conversation goes on with the next.

    Returns
    -------
    name
        Conversation and turn where it begins.
    tokens
        Exactly `n_tokens` tokens, the system prompt first.

    Raises
    ------
    TrajectoryError
        When all conversations together are too short.
    """
    rendered = [list(trajectory_messages(trajectory)) for trajectory in trajectories]
    first, turn = number % len(rendered), number // len(rendered)
    starts = [
        place
        for place, message in enumerate(rendered[first])
        if message["role"] == "user" and not message["content"].startswith("Tool result: ")
    ] or [0]
    start = starts[turn % len(starts)]
    messages: list[Message] = [{"role": "system", "content": system}, *rendered[first][start:]]
    tokens: list[int] = []
    for following in range(1, len(rendered) + 1):
        tokens = engine.tokenize(engine.render_chat(messages, add_generation_prompt=False))
        if len(tokens) >= n_tokens:
            return f"{trajectories[first].name}@{start}", tuple(tokens[:n_tokens])
        messages += rendered[(first + following) % len(rendered)]
    raise TrajectoryError(
        f"all conversations together have {len(tokens)} tokens, and {n_tokens} are wanted",
        next_step="give longer ones, or smaller --depths",
    )
