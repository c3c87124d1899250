"""The arguments room: how is the call filled in?

llguidance and jsonschema load when a grammar is built or a call is checked.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from nexus_lab.arguments.base import (
    ArgumentsError,
    ArgumentsRejected,
    DuplicateArgument,
    GrammarPlan,
    NotAnObject,
    NotJson,
    Projection,
    ProjectionKind,
    SchemaUnusable,
    TokenMask,
    Violation,
)
from nexus_lab.arguments.check import parse_arguments, require_valid, validate
from nexus_lab.arguments.grammar import build_grammar
from nexus_lab.arguments.grounding import mentioned, plan_call, spoken_values
from nexus_lab.arguments.prompt import repair_message, tool_text

if TYPE_CHECKING:
    from nexus_lab.arguments.trie import ToolNameTrie, TrieMask

__all__ = [
    "ArgumentsError",
    "ArgumentsRejected",
    "DuplicateArgument",
    "GrammarPlan",
    "NotAnObject",
    "NotJson",
    "Projection",
    "ProjectionKind",
    "SchemaUnusable",
    "TokenMask",
    "ToolNameTrie",
    "TrieMask",
    "Violation",
    "build_grammar",
    "mentioned",
    "parse_arguments",
    "plan_call",
    "repair_message",
    "require_valid",
    "spoken_values",
    "tool_text",
    "validate",
]

_NUMERIC = ("ToolNameTrie", "TrieMask")  # they bring numpy


def __getattr__(name: str) -> Any:
    if name not in _NUMERIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.trie"), name)
    globals()[name] = value
    return value
