"""Conversations of the user's own that blocks are compiled behind: chosen, and kept for every later use."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, TypeVar

from nexus_lab.errors import NexusError
from nexus_lab.json_lines import json_lines
from nexus_lab.paths import atomic_write, home

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from nexus_lab.splice.samples import Message

__all__ = [
    "ConversationsError",
    "for_compiling",
    "forget_conversations",
    "keep_conversations",
    "kept_conversations",
    "kept_path",
]

_MOST = 9
_Kind = TypeVar("_Kind")


class ConversationsError(NexusError):
    """The kept conversations cannot be read."""


def for_compiling(conversations: Sequence[_Kind]) -> list[_Kind]:
    """Return those to compile behind: every other one, at most nine.

    The others stay unseen by the blocks, so that a calibration or a measurement has something to judge
    them by.
    """
    return list(conversations[::2][:_MOST])


def kept_path() -> Path:
    """File of the kept conversations, in the package's data folder: a line of messages for each."""
    return home() / "conversations.jsonl"


def keep_conversations(conversations: Sequence[Sequence[Message]]) -> Path:
    """Keep conversations as those that typical blocks are compiled behind, in place of any before.

    Parameters
    ----------
    conversations
        For each its messages, role and content, without those of the system.

    Raises
    ------
    NotWritten
        When the file cannot be written; what was kept before stays.
    """
    lines = [json.dumps(list(messages)) for messages in conversations if messages]
    path = kept_path()
    atomic_write(path, "".join(f"{line}\n" for line in lines).encode())
    return path


def forget_conversations() -> None:
    """Go back to the sample conversations."""
    kept_path().unlink(missing_ok=True)


def kept_conversations() -> tuple[tuple[Message, ...], ...]:
    """Return the kept conversations; none when nobody kept any.

    Raises
    ------
    ConversationsError
        When the file is damaged.
    """
    path = kept_path()
    try:
        lines = json_lines(path.read_text(encoding="utf-8"))
        return tuple(tuple(_message(entry) for entry in json.loads(line)) for _, line in lines)
    except FileNotFoundError:
        return ()
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise ConversationsError(
            f"the conversations kept in {path} cannot be read: {error}",
            next_step="build the blocks again with --conversations FILE, or remove that file",
        ) from error


def _message(entry: dict[str, str]) -> Message:
    role, content = entry["role"], entry["content"]
    if not isinstance(role, str) or not isinstance(content, str):
        raise TypeError("a message without the texts role and content")
    return {"role": role, "content": content}
