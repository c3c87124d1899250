"""JSON values of unknown origin: copied within bounds, parsed with typed errors, written canonically."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nexus_lab.registry.errors import RegistryFormatError, SchemaRefused
from nexus_lab.registry.text import neutralise, repair_text

__all__ = ["MAX_DEPTH", "MAX_NODES", "MAX_TEXT", "canonical_json", "compact_json", "copy_json", "parse_json"]

MAX_DEPTH = 64  # the deepest schema of 44 public servers has 21 levels
MAX_NODES = 50_000
MAX_TEXT = 1_000_000


@dataclass(slots=True)
class _Budget:
    nodes: int
    text: int

    def spend(self, characters: int) -> None:
        self.nodes -= 1
        self.text -= characters
        if self.nodes < 0:
            raise SchemaRefused("the value has too many parts", next_step="split it, or leave it out")
        if self.text < 0:
            raise SchemaRefused("the value holds too much text", next_step="shorten it, or leave it out")


def copy_json(
    value: Any, *, max_depth: int = MAX_DEPTH, max_nodes: int = MAX_NODES, max_text: int = MAX_TEXT
) -> Any:
    """Return a plain, independent copy of a JSON value; the work is bounded whatever comes in.

    Parameters
    ----------
    value
        Mappings with text keys, sequences, text, numbers, booleans and ``None``.
    max_depth, max_nodes, max_text
        Levels of nesting, parts, and characters of text that are accepted.

    Raises
    ------
    SchemaRefused
        When a bound is passed (a cyclic value passes the depth) or a part is no JSON.
    """
    return _copy(value, max_depth, _Budget(max_nodes, max_text))


def _copy(value: Any, levels: int, budget: _Budget) -> Any:
    if isinstance(value, str):
        budget.spend(len(value))
        return repair_text(str(value))
    budget.spend(0)
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int | float):
        return _number(value)
    if levels <= 0:
        raise SchemaRefused("the value is nested too deeply", next_step=f"stay within {MAX_DEPTH} levels")
    if isinstance(value, Mapping):
        return {_key(key, budget): _copy(part, levels - 1, budget) for key, part in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray):
        return [_copy(part, levels - 1, budget) for part in value]
    raise SchemaRefused(f"a {type(value).__name__} is no JSON value", next_step="use JSON values only")


def kind_of(value: Any) -> str:
    """Return in words what a JSON value is, as who wrote it would say: ``a text``, ``null``."""
    if isinstance(value, bool) or value is None:
        return json.dumps(value)
    words = {str: "a text", int: "a number", float: "a number", list: "a list", dict: "an object"}
    return words.get(type(value), f"a {type(value).__name__}")


def _key(key: Any, budget: _Budget) -> str:
    if not isinstance(key, str):
        raise SchemaRefused(f"the key {key!r} is no text", next_step="use text keys")
    budget.spend(len(key))
    return repair_text(key)


def _number(value: float) -> float:
    if isinstance(value, float) and not math.isfinite(value):
        raise SchemaRefused(f"{value} is no JSON number", next_step="use finite numbers")
    return value


def parse_json(text: str, *, origin: str) -> Any:
    """Parse JSON text.

    Parameters
    ----------
    text
        The text.
    origin
        What it is called in an error, for example the path.

    Raises
    ------
    RegistryFormatError
        With line and column, or the reason, when it is no JSON.
    """
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        raise RegistryFormatError(
            f"{origin} is not JSON: {error.msg} at line {error.lineno}, column {error.colno}",
            found=neutralise(text[:40]),
            next_step="mend the file at that place, or export it again",
        ) from error
    except RecursionError:
        raise RegistryFormatError(
            f"{origin} is nested too deeply to be a registry", next_step="export it again"
        ) from None
    except ValueError as error:
        raise RegistryFormatError(f"{origin} is not JSON: {error}", next_step="export it again") from error


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is no JSON number")


def compact_json(value: Any) -> str:
    """Return `value` as JSON text without spaces, keys in their own order."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def canonical_json(value: Any) -> str:
    """Return `value` as JSON text that depends on the content alone: keys sorted, no spaces."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), sort_keys=True)
