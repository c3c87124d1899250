"""The arguments room: how is the call filled in?

llguidance and jsonschema load when a grammar is built or a call is checked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nexus_lab._lazy import lazy_names
from nexus_lab.arguments.base import (
    ArgumentsError,
    ArgumentsRejected,
    CutOff,
    DuplicateArgument,
    GrammarPlan,
    MissingValues,
    NotAnObject,
    NotJson,
    Projection,
    ProjectionKind,
    SchemaUnusable,
    TokenMask,
    Violation,
)
from nexus_lab.arguments.check import breaks_off, parse_arguments, require_valid, validate
from nexus_lab.arguments.compiler import grammar_text
from nexus_lab.arguments.grammar import build_grammar
from nexus_lab.arguments.grounding import Grounding, ground, plan_call
from nexus_lab.arguments.prompt import repair_message, tool_text

if TYPE_CHECKING:
    from nexus_lab.arguments.trie import ToolNameTrie, TrieMask

__all__ = [
    "ArgumentsError",
    "ArgumentsRejected",
    "CutOff",
    "DuplicateArgument",
    "GrammarPlan",
    "Grounding",
    "MissingValues",
    "NotAnObject",
    "NotJson",
    "Projection",
    "ProjectionKind",
    "SchemaUnusable",
    "TokenMask",
    "ToolNameTrie",
    "TrieMask",
    "Violation",
    "breaks_off",
    "build_grammar",
    "grammar_text",
    "ground",
    "parse_arguments",
    "plan_call",
    "repair_message",
    "require_valid",
    "tool_text",
    "validate",
]

_NUMERIC = ("ToolNameTrie", "TrieMask")  # they bring numpy

__getattr__, __dir__ = lazy_names(__name__, dict.fromkeys(_NUMERIC, "trie"))
