"""The compressed signature: what a model sees of a tool instead of its schema.

``create_repository(name: string, private?: boolean)``, after section 5.2 of the Nexus paper. Required
arguments come first. A signature that grows past its limit loses detail in steps: long unions, nested
fields, types of optional arguments, and last the optional arguments themselves, counted as ``+N more``.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from enum import StrEnum
from itertools import islice
from typing import TYPE_CHECKING, Any

from nexus_lab.registry.schema import RefFault, resolve_ref
from nexus_lab.registry.text import neutralise

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from nexus_lab.registry.base import ToolSpec

__all__ = ["SignatureDetail", "estimate_tokens", "first_sentence", "signature"]

_WORD = re.compile(r"[A-Za-z]+|[0-9]|[^\sA-Za-z0-9]+")
_IDENTIFIER = re.compile(r"[A-Za-z_$][A-Za-z0-9_$.\-]*")
_SENTENCE_END = re.compile(r"(?<=[.!?])(?<!e\.g\.)(?<!i\.e\.)\s|\n\s*\n|\n\s*[-*#]|(?<=[^.])\.$")
_TYPE_WORDS = frozenset(
    {"string", "number", "integer", "boolean", "object", "array", "null", "any", "never", "map"}
)
_CLAUSE_MARKS = (" (", ", ", "; ", ": ", " - ")
_PART_LIMIT = 400
_LITERAL_LIMIT = 32
_NAME_LIMIT = 64


class SignatureDetail(StrEnum):
    """How much a signature says.

    ``dense``: names and types, neighbours of one type share it (``f(a, b: string)``); ``line``: names and
    types; ``brief``: and the first sentence of the description; ``inline``: and short hints beside the
    arguments whose names do not say it.
    """

    DENSE = "dense"
    LINE = "line"
    BRIEF = "brief"
    INLINE = "inline"


@dataclass(frozen=True, slots=True)
class _Step:
    """How much detail is kept; `None` keeps all optional arguments."""

    union: int
    depth: int
    fields: int
    optional_types: bool = True
    optionals: int | None = None


_STEPS = (
    _Step(union=6, depth=2, fields=6),
    _Step(union=4, depth=1, fields=4),
    _Step(union=3, depth=0, fields=0),
    _Step(union=3, depth=0, fields=0, optional_types=False),
    _Step(union=2, depth=0, fields=0, optional_types=False, optionals=8),
    _Step(union=1, depth=0, fields=0, optional_types=False, optionals=0),
)


def estimate_tokens(text: str) -> int:
    """Return about how many tokens `text` has, without a tokenizer.

    Words count one token for each six letters begun, digits one each, runs of signs one for each two
    begun. Beside the vocabulary of SmolLM2 it reads 5 % high on signatures (median), at most a third off.
    """
    return sum(
        -(-len(word) // 6) if word[0].isascii() and word[0].isalpha() else -(-len(word) // 2)
        for word in _WORD.findall(text)
    )


def first_sentence(text: str, *, limit: int) -> str:
    """Return the first sentence of `text` on one line, cut at a word to at most `limit` characters."""
    head = neutralise(text.strip()[: 4 * limit + 400], keep_newlines=True)
    sentence = " ".join(_SENTENCE_END.split(head, maxsplit=1)[0].split()).rstrip(".")
    if len(sentence) <= limit:
        return sentence
    cut = sentence[:limit]
    clause = max(cut.rfind(mark) for mark in _CLAUSE_MARKS)
    if cut.count("(") > cut.count(")"):
        clause = cut.rfind(" (")
    if clause >= limit // 3:
        return cut[:clause]
    return (cut.rsplit(" ", 1)[0] if " " in cut[limit // 2 :] else cut[:-1]).rstrip(",;:-(") + "…"


def signature(
    tool: ToolSpec,
    *,
    detail: SignatureDetail | str = SignatureDetail.BRIEF,
    max_tokens: int = 96,
    description_limit: int = 72,
    hint_limit: int = 28,
    count: Callable[[str], int] = estimate_tokens,
) -> str:
    """Return the compressed signature of `tool`, one line of text.

    Parameters
    ----------
    tool
        The tool; its schema may be hostile, the work is bounded.
    detail
        ``dense``, ``line``, ``brief`` or ``inline``.
    max_tokens
        Bound of names and types, by `count` (half as much again with hints); detail is given up until they
        fit. A tool whose required arguments alone pass it is still written with all of them.
    description_limit, hint_limit
        Longest tool description and argument hint, in characters.
    count
        Tokens of a text; the default is an estimate, so that no model is needed.

    Returns
    -------
    For example ``create_repository(name: string, private?: boolean) - Create a repository``.

    Notes
    -----
    Names, enum members and descriptions are untrusted: control characters are shown as escapes.
    """
    detail = SignatureDetail(detail)
    hints = hint_limit if detail is SignatureDetail.INLINE else 0
    bound = max_tokens * 3 // 2 if hints else max_tokens
    line = ""
    for step in _STEPS:
        line = _Writer(tool.input_schema, step, hint_limit=hints).line(
            tool, dense=detail is SignatureDetail.DENSE
        )
        if count(line) <= bound:
            break
    if detail in (SignatureDetail.DENSE, SignatureDetail.LINE):
        return line
    said = first_sentence(tool.description, limit=description_limit)
    return f"{line} - {said}" if said else line


class _Writer:
    """Writes one signature; `parts` bounds how many schemas it looks at."""

    def __init__(self, root: Mapping[str, Any], step: _Step, *, hint_limit: int) -> None:
        self.root = root
        self.step = step
        self.hint_limit = hint_limit
        self.parts = _PART_LIMIT

    def line(self, tool: ToolSpec, *, dense: bool = False) -> str:
        properties, required = _members(self.root, self.root)
        optional = [name for name in properties if name not in set(required)]
        kept = optional if self.step.optionals is None else optional[: self.step.optionals]
        pairs = [self._argument(name, properties[name], optional=False) for name in required]
        pairs += [self._argument(name, properties[name], optional=True) for name in kept]
        arguments = _share_types(pairs) if dense else [name + kind for name, kind in pairs]
        if len(kept) < len(optional):
            arguments.append(f"+{len(optional) - len(kept)} more")
        return f"{neutralise(tool.name)}({', '.join(arguments)})"

    def _argument(self, name: str, schema: Any, *, optional: bool) -> tuple[str, str]:
        """Return the shown name and what stands behind it."""
        kind = ""
        if not optional or self.step.optional_types:
            kind = f": {self.type(schema, depth=0, nullable=not optional)}"
        hint = self._hint(name, schema) if self.hint_limit else ""
        if hint:
            kind += f" {json.dumps(hint, ensure_ascii=False)}"
        return _name(name) + ("?" if optional else ""), kind

    def _hint(self, name: str, schema: Any) -> str:
        if not isinstance(schema, dict):
            return ""
        description = schema.get("description")
        said = first_sentence(description, limit=self.hint_limit) if isinstance(description, str) else ""
        known = set(_words(name)) | {"the", "a", "an", "of", "to", "for", "id", "name"}
        return said if set(_words(said)) - known else ""

    def type(self, schema: Any, *, depth: int, nullable: bool = True, seen: tuple[str, ...] = ()) -> str:
        """Return the type that `schema` gives, as short text."""
        self.parts -= 1
        if not isinstance(schema, dict) or self.parts < 0:
            return "never" if schema is False else "any"
        if isinstance(schema.get("$ref"), str):
            return self._reference(schema["$ref"], depth, nullable, seen)
        if "const" in schema:
            return _literal(schema["const"])
        if isinstance(schema.get("enum"), list) and schema["enum"]:
            return self._enumeration(schema["enum"], nullable=nullable)
        parts = schema.get("anyOf") or schema.get("oneOf")
        if isinstance(parts, list) and parts:
            return self._union(parts, depth, nullable, seen)
        return self._plain(schema, depth, nullable, seen)

    def _reference(self, ref: str, depth: int, nullable: bool, seen: tuple[str, ...]) -> str:  # noqa: FBT001
        if ref in seen:
            return neutralise(ref.rsplit("/", 1)[-1], limit=_LITERAL_LIMIT) or "object"
        target = resolve_ref(self.root, ref)
        if isinstance(target, RefFault):
            return "any"
        return self.type(target, depth=depth, nullable=nullable, seen=(*seen, ref))

    def _enumeration(self, members: list[Any], *, nullable: bool) -> str:
        kept = [member for member in members if nullable or member is not None]
        shown = [_literal(member) for member in kept[: self.step.union]]
        return "|".join([*shown, "…"] if len(kept) > len(shown) else shown)

    def _union(self, parts: list[Any], depth: int, nullable: bool, seen: tuple[str, ...]) -> str:  # noqa: FBT001
        types: dict[str, None] = {}
        for part in islice(parts, self.step.union + 2):
            types[self.type(part, depth=depth, nullable=nullable, seen=seen)] = None
        if not nullable and len(types) > 1:
            types.pop("null", None)
        shown = list(types)[: self.step.union]
        return "|".join([*shown, "…"] if len(types) > len(shown) else shown)

    def _plain(self, schema: dict[str, Any], depth: int, nullable: bool, seen: tuple[str, ...]) -> str:  # noqa: FBT001
        kind = schema.get("type")
        if isinstance(kind, list):
            kinds = [name for name in kind if isinstance(name, str) and (nullable or name != "null")]
            shown = [self._plain({**schema, "type": name}, depth, nullable, seen) for name in kinds[:4]]
            return "|".join(dict.fromkeys(shown)) or "any"
        if kind == "array" or (kind is None and "items" in schema):
            return self._array(schema, depth, seen)
        if kind == "object" or (kind is None and ("properties" in schema or "allOf" in schema)):
            return self._object(schema, depth, seen)
        return kind if isinstance(kind, str) and kind in _TYPE_WORDS else "any"

    def _array(self, schema: dict[str, Any], depth: int, seen: tuple[str, ...]) -> str:
        items = schema.get("items")
        if not isinstance(items, dict):
            return "any[]"
        inner = self.type(items, depth=depth, seen=seen)
        return f"({inner})[]" if "|" in inner and not inner.startswith("{") else f"{inner}[]"

    def _object(self, schema: dict[str, Any], depth: int, seen: tuple[str, ...]) -> str:
        properties, required = _members(schema, self.root)
        if not properties or depth >= self.step.depth:
            return "object"
        ordered = [*required, *(name for name in properties if name not in set(required))]
        shown = []
        for name in ordered[: self.step.fields]:
            mark = "" if name in required else "?"
            inner = self.type(properties[name], depth=depth + 1, nullable=not mark, seen=seen)
            shown.append(f"{_name(name)}{mark}: {inner}")
        more = ["…"] if len(ordered) > len(shown) else []
        return "{" + ", ".join(shown + more) + "}"


def _share_types(pairs: list[tuple[str, str]]) -> list[str]:
    """Write neighbours of one type as ``a, b: string``."""
    following = [*(kind for _, kind in pairs[1:]), ""]
    return [
        name if kind and kind == then else name + kind
        for (name, kind), then in zip(pairs, following[: len(pairs)], strict=True)
    ]


def _members(schema: Mapping[str, Any], root: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return the properties of an object schema, ``allOf`` parts included, and the required names."""
    properties: dict[str, Any] = {}
    required: dict[str, None] = {}
    parts: list[Any] = [schema]
    if isinstance(schema.get("allOf"), list):
        parts += schema["allOf"][:16]
    for entry in parts:
        part = entry
        if isinstance(part, dict) and isinstance(part.get("$ref"), str):
            part = resolve_ref(root, part["$ref"])
        if not isinstance(part, dict):
            continue
        if isinstance(part.get("properties"), dict):
            properties.update(part["properties"])
        if isinstance(part.get("required"), list):
            required.update(dict.fromkeys(name for name in part["required"] if isinstance(name, str)))
    return properties, [name for name in required if name in properties]


def _words(text: str) -> list[str]:
    spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", text)
    return [word.lower() for word in re.findall(r"[A-Za-z]+", spaced)]


def _name(name: str) -> str:
    shown = neutralise(name, limit=_NAME_LIMIT)
    return shown if _IDENTIFIER.fullmatch(shown) else json.dumps(shown, ensure_ascii=False)


def _literal(value: Any) -> str:
    if isinstance(value, str):
        shown = neutralise(value, limit=_LITERAL_LIMIT)
        plain = _IDENTIFIER.fullmatch(shown) and shown not in _TYPE_WORDS
        return shown if plain else json.dumps(shown, ensure_ascii=False)
    if isinstance(value, dict | list):
        return "object" if isinstance(value, dict) else "any[]"
    return json.dumps(value)[:_LITERAL_LIMIT]
