"""What a tool wants: its arguments, the words that name and describe them, and the look of their examples."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from nexus_lab.arguments.codes import code_kind, codes_listed
from nexus_lab.arguments.hints import date_form, examples_in, key_of
from nexus_lab.arguments.lexicon import CALLED, PROSE, content_words, sense, stem
from nexus_lab.registry import RefFault, resolve_ref
from nexus_lab.routing import split_identifiers

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nexus_lab.registry import ToolSpec

__all__ = ["Argument", "arguments_of", "shape"]

_PLAIN = frozenset({"type", "description", "title", "default", "examples", "example", "$comment", "items"})
# What a model may add to a value by itself, by the shape of it.
_WAYS = {", W": "[A-Z]{2,3}", ", A": "[A-Z][a-z]+"}
_EXCEPTED = re.compile(r"\b(?:except|other than|not)\b")
# ``Use 'UTC' as local timezone if no timezone is provided by the user.``
_FALLBACK = re.compile(
    r"\b[Uu]se ['\"`]([^'\"`\n]{1,40})['\"`][^.'\"`\n]{0,40} if (?:no|none)\b[^.\n]{0,40} (?:is |was )?"
    r"(?:given|provided|said|specified)\b"
)
_EXAMPLE = re.compile(
    r"(?:e\.g\.?|for example|such as|like|format|example)[^'\"`A-Za-z0-9]{0,6}(?:of )?"
    r"['\"`]?([^'\"`;)]{2,40})",
    re.IGNORECASE,
)

# ``either 'summary' or 'full'``, ``remote ('remote') or all branches('all')``: a list that nothing follows.
_LISTED = re.compile(r"['\"`](\w[^'\"`\n]{0,30})['\"`]")
_PLAIN_VALUE = re.compile(r"(?![YMDHS:-]+$)\w[\w -]*")
_LEADS = re.compile(r"\b(?:one of|either|options|choices|values|can be|must be|whether)\b", re.IGNORECASE)
_NOT_ALL = re.compile(
    r"\b(?:e\.g|etc|for example|such as|like|includ\w+|examples?|formats?|default)\b", re.IGNORECASE
)
_BETWEEN, _MOST_LISTED = 45, 12


@dataclass(frozen=True, eq=False)
class Argument:
    """An argument of a tool, read.

    Attributes
    ----------
    schema
        Its schema, references followed and ``null`` branches left away.
    own, others
        Words of its name and description that no other argument's has, and those of the others.
    fragments
        For each listed value the words that explain it.
    asked_by
        For each listed value the arguments whose descriptions name it, and no other one.
    """

    name: str
    schema: Mapping[str, Any]
    required: bool
    own: frozenset[str] = frozenset()
    others: frozenset[str] = frozenset()
    fragments: Mapping[str, frozenset[str]] = field(default_factory=dict)
    asked_by: Mapping[str, frozenset[str]] = field(default_factory=dict)

    @cached_property
    def words(self) -> tuple[str, ...]:
        """Words of its name, without plurals."""
        return tuple(sense(stem(word)) for word in split_identifiers(self.name).split())

    @cached_property
    def last(self) -> str:
        """The last word of its name, which says most of what it is."""
        return stem((split_identifiers(self.name).split() or [""])[-1])

    @cached_property
    def all_words(self) -> frozenset[str]:
        """Words of its name, as they are and by their sense."""
        return frozenset(self.words) | frozenset(map(stem, split_identifiers(self.name).split()))

    @property
    def state(self) -> str:
        """``req`` or ``opt``."""
        return "req" if self.required else "opt"

    def fit(self, kind: str) -> str:
        """Return whether it is called as values of a kind are: by ``name``, as ``said`` of it, or ``no``."""
        called = CALLED.get(kind, frozenset())
        if called & self.all_words:
            return "name"
        return "said" if called & self.described else "no"

    @cached_property
    def described(self) -> frozenset[str]:
        """Words of its description."""
        return content_words(str(self.schema.get("description", "")))

    @cached_property
    def kind(self) -> str:
        """Its type, of an array with that of the items; ``option`` where the values are listed."""
        return _kind(self.schema)

    @cached_property
    def options(self) -> list[Any]:
        """The values to choose from, when they are listed."""
        schema = self.schema["items"] if self.kind == "options" else self.schema
        if self.kind == "boolean":
            return [True, False]
        return [schema["const"]] if "const" in schema else list(schema["enum"])

    @cached_property
    def shapes(self) -> frozenset[str]:
        """Shapes of the examples in its description."""
        return frozenset(
            shape(found[1]) for found in _EXAMPLE.finditer(str(self.schema.get("description", "")))
        )

    @cached_property
    def examples(self) -> dict[str, str]:
        """The examples of its description, by what they are compared by."""
        return {key_of(one): one for one in examples_in(str(self.schema.get("description", "")))}

    @cached_property
    def date_form(self) -> str:
        """The form of dates that its description asks for, as of ``strftime``; empty where it names none."""
        return date_form(str(self.schema.get("description", ""))) if self.kind == "string" else ""

    @cached_property
    def code_kind(self) -> str:
        """Which codes it takes, such as ``currency``; empty where it takes none."""
        words, told = split_identifiers(self.name).split(), str(self.schema.get("description", ""))
        if self.kind in ("option", "options"):
            return codes_listed(self.options, words, told)
        return code_kind(words, told) if self.kind in ("string", "strings") else ""

    @cached_property
    def is_statement(self) -> bool:
        """Whether it takes a statement in SQL."""
        asked = re.search(r"\bsql\b", f"{self.schema.get('description', '')} {self.name}", re.IGNORECASE)
        return bool(asked and self.kind == "string" and {"query", "sql", "statement"} & set(self.words))

    @cached_property
    def is_zone(self) -> bool:
        """Whether it takes a time zone by its name in the IANA database, and nothing else."""
        asked = re.search(r"\bIANA\b", str(self.schema.get("description", "")))
        return bool(asked and self.kind == "string" and self.fit("zone") == "name")

    @cached_property
    def usual(self) -> Any:
        """What is written where nothing was said: its default, or what its description names for that.

        ``None`` where there is neither.
        """
        if "default" in self.schema:
            return self.schema["default"]
        told = _FALLBACK.search(str(self.schema.get("description", "")))
        return told[1] if told and self.kind == "string" else None

    @property
    def must_be_given(self) -> bool:
        """Whether what fits best is better than nothing; a model left to itself copies what it read."""
        return self.required and "default" not in self.schema and not self.must_be_told

    @property
    def must_be_sure(self) -> bool:
        """Whether a value is better asked for than taken on weak evidence."""
        return self.required and "default" not in self.schema and self.kind not in ("boolean", "option")

    @property
    def may_be_written(self) -> bool:
        """Whether a model may write the value by itself: free text, or what no part of a request can be."""
        free = self.kind == "string" and self.is_plain and not self.is_statement
        return self.kind == "other" or (free and self.last in PROSE)

    def completion(self, value: Any) -> str:
        """Return a pattern of what begins with `value` and looks like the examples; empty where none is.

        ``Paris`` where the examples are such as ``Austin, TX`` gives ``^Paris, [A-Z]{2,3}$``.
        """
        if self.kind != "string" or not isinstance(value, str) or not self.is_plain:
            return ""
        begun = shape(value)
        if begun in self.shapes:
            return ""
        alike = [example for example in self.shapes if example.startswith(f"{begun}, ")]
        ends = {example.removeprefix(begun) for example in alike}
        ways = sorted(_WAYS[end] for end in ends if end in _WAYS)
        literal = re.sub(r"([^\w ,])", r"\\\1", value)
        return f"^{literal}, (?:{'|'.join(ways)})$" if ways else ""

    @property
    def must_be_told(self) -> bool:
        """Whether a value can come from nobody but the user."""
        return "default" not in self.schema and (self.kind in ("integer", "number") or self.is_statement)

    @cached_property
    def is_plain(self) -> bool:
        """Whether the type is all that the schema says of a value."""
        items = self.schema.get("items")
        return self.schema.keys() <= _PLAIN and (not isinstance(items, dict) or items.keys() <= _PLAIN)


def _kind(schema: Mapping[str, Any]) -> str:
    if "enum" in schema or "const" in schema:
        return "option" if isinstance(schema.get("enum", []), list) else "other"
    declared = schema.get("type")
    if isinstance(declared, list):
        declared = next((kind for kind in declared if kind != "null"), None)
    if declared == "array":
        items = schema.get("items")
        inner = _kind(items) if isinstance(items, dict) else "other"
        return {"string": "strings", "integer": "integers", "number": "numbers", "option": "options"}.get(
            inner, "other"
        )
    return declared if declared in ("string", "integer", "number", "boolean") else "other"


def shape(text: str) -> str:
    """Return what kinds of characters `text` runs through: ``Aa, AA`` of ``Paris, TX``."""
    text = re.sub(r"[A-Z]{2,}", "W", text.strip())
    text = re.sub(r"[A-Z][a-z]+(?: [A-Z][a-z]+)*", "A", text)
    text = re.sub(r"[a-z]+", "a", text)
    return re.sub(r"\d", "9", text)


def arguments_of(tool: ToolSpec) -> list[Argument]:
    """Return the arguments of `tool`."""
    schemas = {
        name: _with_listed(leaf)
        for name, schema in tool.properties.items()
        if isinstance(schema, dict) and (leaf := _leaf(schema, tool.input_schema))
    }
    described = {
        name: content_words(f"{name} {schema.get('description', '')}") for name, schema in schemas.items()
    }
    found = []
    for name, schema in schemas.items():
        others = frozenset[str]().union(*(words for other, words in described.items() if other != name))
        whole = f"{schema.get('description', '')}\n{tool.description}"
        found.append(
            Argument(
                name,
                schema,
                name in tool.required,
                described[name] - others,
                others,
                _fragments(schema, whole),
                _asked_by(name, schema, schemas),
            )
        )
    return found


def _leaf(schema: Mapping[str, Any], root: Mapping[str, Any]) -> dict[str, Any]:
    """Return a schema with its reference followed, and without a branch for null."""
    for _ in range(4):
        branches = schema.get("anyOf") or schema.get("oneOf")
        if isinstance(schema.get("$ref"), str):
            target = resolve_ref(root, schema["$ref"])
            inner = {} if isinstance(target, RefFault) else target
        elif isinstance(branches, list):
            real = [part for part in branches if isinstance(part, dict) and part.get("type") != "null"]
            if not real:
                break
            inner = real[0]
        else:
            break
        rest = {key: value for key, value in schema.items() if key not in ("$ref", "anyOf", "oneOf")}
        schema = {**inner, **rest} if isinstance(inner, dict) else rest
    return dict(schema)


def _with_listed(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema with the values that its description alone lists as all that there are."""
    text = str(schema.get("description", ""))
    found = list(_LISTED.finditer(text))
    if schema.get("type") != "string" or not schema.keys() <= _PLAIN or not 1 < len(found) <= _MOST_LISTED:
        return schema
    gaps = [text[one.end() : other.start()] for one, other in pairwise(found)]
    before, listed = text[: found[0].start()], text[: found[-1].end() + _BETWEEN]
    told = re.search(r"\bor\b", gaps[-1]) or _LEADS.search(before[-_BETWEEN:])
    plain = all(_PLAIN_VALUE.fullmatch(one[1]) for one in found)
    if (
        not (told and plain)
        or _NOT_ALL.search(listed)
        or any(len(gap) > _BETWEEN or ". " in gap for gap in gaps)
    ):
        return schema
    return {**schema, "enum": list(dict.fromkeys(one[1] for one in found))}


def _fragments(schema: Mapping[str, Any], text: str) -> dict[str, frozenset[str]]:
    """Return, for listed values, the words by which a description explains each and no other."""
    source = schema.get("items") if isinstance(schema.get("items"), dict) else schema
    values = source.get("enum") if isinstance(source, dict) else None
    if not isinstance(values, list):
        return {}
    parts = {}
    for value in values:
        match = re.search(
            rf"(?<![\w-]){re.escape(str(value))}['\"`*]*\s*(?:[-:–=(]|for|means|to|if|omits|includes)\s*([^\n;]*)",
            text,
        )
        parts[str(value)] = content_words(match[1].split(". ")[0]) if match else frozenset[str]()
    return {
        value: words - frozenset[str]().union(*(rest for other, rest in parts.items() if other != value))
        for value, words in parts.items()
    }


def _asked_by(
    name: str, schema: Mapping[str, Any], schemas: Mapping[str, Mapping[str, Any]]
) -> dict[str, frozenset[str]]:
    """Return, for listed values, the other arguments that are described as being for one of them alone."""
    values = [str(value) for value in schema.get("enum", ())] if isinstance(schema.get("enum"), list) else []
    asked: dict[str, set[str]] = {}
    for other, part in schemas.items():
        text = str(part.get("description", ""))
        named = [value for value in values if len(value) > 2 and re.search(rf"\b{re.escape(value)}\b", text)]  # noqa: PLR2004
        if other != name and len(named) == 1 and not _EXCEPTED.search(text):
            asked.setdefault(named[0], set()).add(other)
    return {value: frozenset(names) for value, names in asked.items()}
