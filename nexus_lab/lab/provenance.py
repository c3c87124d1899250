"""Where the value of an argument comes from: said in one short sentence, or not at all."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from nexus_lab.registry import ToolSpec

__all__ = ["Said", "sources_of"]

_SHORT = 3


@dataclass(frozen=True, slots=True)
class Said:
    """What was said in one turn of the conversation."""

    turn: int
    request: str
    answer: str = ""
    result: str = ""


def sources_of(arguments: Mapping[str, Any], tool: ToolSpec, said: Sequence[Said]) -> dict[str, str]:
    """Say where each value comes from; what was not found is left out.

    Parameters
    ----------
    said
        Turns of the conversation, oldest first, the running one last.
    """
    found = {}
    for name, value in arguments.items():
        sentence = _source(value, tool.properties.get(name), said)
        if sentence is not None:
            found[name] = sentence
    return found


def _source(value: Any, schema: Any, said: Sequence[Said]) -> str | None:
    leaves = list(_leaves(value))
    sentences = [_copied(leaf, said) for leaf in leaves]
    if leaves and None not in sentences:
        return "; ".join(dict.fromkeys(str(sentence) for sentence in sentences))
    if not isinstance(schema, dict):
        return None
    if "const" in schema and schema["const"] == value:
        return "constant of the schema"
    if isinstance(schema.get("enum"), list) and value in schema["enum"]:
        return "enum of the schema"
    if "default" in schema and schema["default"] == value:
        return "default of the schema"
    return None


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        for item in value.values():
            yield from _leaves(item)
    elif isinstance(value, list):
        for item in value:
            yield from _leaves(item)
    else:
        yield value


def _copied(value: Any, said: Sequence[Said]) -> str | None:
    pattern = _pattern(value)
    if pattern is None:
        return None
    for turn in reversed(said):
        if pattern.search(turn.request):
            return f"copied from turn {turn.turn}"
        if pattern.search(turn.result):
            return f"copied from the result of turn {turn.turn}"
        if pattern.search(turn.answer):
            return f"copied from the answer of turn {turn.turn}"
    return None


def _pattern(value: Any) -> re.Pattern[str] | None:
    """Return what finds a value in a text; a short word or a number only where it stands by itself."""
    if isinstance(value, bool) or value is None:
        return None
    whole = isinstance(value, float) and value.is_integer()
    text = str(int(value) if whole else value).strip()
    if not text:
        return None
    words = r"\s+".join(re.escape(word) for word in text.split())
    alone = not isinstance(value, str) or len(text) <= _SHORT
    return re.compile(rf"(?<![\w.-]){words}(?![\w-])(?!\.\d)" if alone else words, re.IGNORECASE)
