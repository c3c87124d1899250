"""References within a JSON schema, followed within bounds and never over the network."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["RefFault", "RefReport", "inspect_refs", "resolve_pointer", "resolve_ref", "walk"]

_CHAIN_LIMIT = 32
_REF_LIMIT = 256
_STEP_LIMIT = 500_000
_MISSING = object()
# Keywords whose keys are names of the author's choice, and keywords whose values are data.
_NAME_MAPS = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})
_DATA = frozenset({"default", "enum", "const", "example", "examples"})


class RefFault(StrEnum):
    """Why a reference leads nowhere."""

    REMOTE = "remote"
    MISSING = "missing"
    ENDLESS = "endless"


@dataclass(slots=True)
class RefReport:
    """The references of a schema.

    Attributes
    ----------
    remote, missing, endless, recursive
        References that lead outside, lead nowhere, only lead to references, and lead back to themselves.
    tangled
        Whether there were too many to look at.
    """

    remote: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    endless: list[str] = field(default_factory=list)
    recursive: list[str] = field(default_factory=list)
    tangled: bool = False


def walk(value: Any) -> Iterator[dict[str, Any]]:
    """Yield every object within a JSON schema that may be a schema, outermost first, without recursion.

    Values that are data (``default``, ``enum``, ``const``, ``examples``) are passed over.
    """
    stack = [(value, False)]
    while stack:
        part, keys_are_names = stack.pop()
        if isinstance(part, list):
            stack.extend((item, False) for item in reversed(part))
        elif isinstance(part, dict):
            if not keys_are_names:
                yield part
            stack.extend(
                (inner, not keys_are_names and key in _NAME_MAPS)
                for key, inner in reversed(part.items())
                if keys_are_names or key not in _DATA
            )


def resolve_pointer(root: Any, pointer: str) -> Any:
    """Return the part of `root` that a JSON pointer (RFC 6901, with or without ``#``) names.

    Raises
    ------
    KeyError
        When there is no such part.
    """
    part = root
    for token in pointer.removeprefix("#").split("/")[1:]:
        key = unquote(token).replace("~1", "/").replace("~0", "~")
        if isinstance(part, dict) and key in part:
            part = part[key]
        elif isinstance(part, list) and key.isascii() and key.isdigit() and int(key) < len(part):
            part = part[int(key)]
        else:
            raise KeyError(pointer)
    return part


def resolve_ref(root: Mapping[str, Any], ref: str) -> Any | RefFault:
    """Follow `ref`, and references that it leads to, within `root`.

    Returns
    -------
    The schema it stands for (an object or a boolean), or the reason why there is none.
    """
    for _ in range(_CHAIN_LIMIT):
        if not ref.startswith("#"):
            return RefFault.REMOTE
        target = _find(root, ref)
        if target is _MISSING or not isinstance(target, dict | bool):
            return RefFault.MISSING
        following = target.get("$ref") if isinstance(target, dict) else None
        if not isinstance(following, str):
            return target
        ref = following
    return RefFault.ENDLESS


def _find(root: Mapping[str, Any], ref: str) -> Any:
    if ref == "#" or ref.startswith("#/"):
        try:
            return resolve_pointer(root, ref)
        except KeyError:
            return _MISSING
    anchor = unquote(ref[1:])
    return next((part for part in walk(root) if anchor in (part.get("$anchor"), part.get("$id"))), _MISSING)


def inspect_refs(root: Mapping[str, Any]) -> RefReport:
    """Look at every reference of a schema; the work is bounded whatever the schema.

    A reference is recursive when following references from its target leads to it again.
    """
    report = RefReport()
    refs = list(dict.fromkeys(_refs_in(root)))
    if len(refs) > _REF_LIMIT:
        report.tangled = True
        return report
    edges: dict[str, list[str]] = {}
    steps = 0
    for ref in refs:
        target = resolve_ref(root, ref)
        if isinstance(target, RefFault):
            getattr(report, target.value).append(ref)
            continue
        inner = []
        for part in walk(target):
            steps += 1
            if steps > _STEP_LIMIT:
                report.tangled = True
                return report
            if isinstance(part.get("$ref"), str):
                inner.append(part["$ref"])
        edges[ref] = inner
    report.recursive = [ref for ref in edges if _leads_back(ref, edges)]
    return report


def _refs_in(value: Any) -> Iterator[str]:
    return (part["$ref"] for part in walk(value) if isinstance(part.get("$ref"), str))


def _leads_back(start: str, edges: Mapping[str, list[str]]) -> bool:
    seen: set[str] = set()
    stack = list(edges[start])
    while stack:
        ref = stack.pop()
        if ref == start:
            return True
        if ref not in seen:
            seen.add(ref)
            stack.extend(edges.get(ref, ()))
    return False
