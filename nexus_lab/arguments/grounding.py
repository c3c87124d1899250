"""Grounding: values of a call come from what was said, optional arguments where something speaks for them.

A 135M model that writes freely copies the hints of a signature, or loops. Here every part of the conversation
that could be a value is weighed against every argument, and all arguments are assigned at once. What remains
to the model is what nothing was said for.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from nexus_lab.arguments.evidence import NOTHING, candidates
from nexus_lab.arguments.grammar import build_grammar
from nexus_lab.arguments.lexicon import CALLED
from nexus_lab.arguments.spans import hear
from nexus_lab.arguments.surroundings import Said
from nexus_lab.arguments.wants import arguments_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from nexus_lab.arguments.assign import Choices
    from nexus_lab.arguments.base import GrammarPlan
    from nexus_lab.arguments.spans import Span
    from nexus_lab.registry import ToolSpec

__all__ = ["Grounding", "choices_of", "ground", "plan_call", "plan_grounded"]

# Keywords of the root that leave no choice beside the arguments.
_SETTLING = frozenset({"type", "properties", "required", "additionalProperties", "$defs"})


@dataclass(frozen=True, slots=True)
class Grounding:
    """What the conversation says about the arguments of a call.

    Attributes
    ----------
    values
        The value of each argument that it settles, in the schema's order.
    spans
        Where the value was said, for arguments by name; an option of the schema has none.
    open
        Required arguments that are left to the model.
    missing
        Required arguments that nobody can know without being told: a number, a query in SQL.
    completed
        Patterns of the values that the model completes to what the schema shows as example, by name.
    """

    values: Mapping[str, Any]
    spans: Mapping[str, tuple[Span, ...]]
    open: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    completed: Mapping[str, str] = field(default_factory=dict)


def choices_of(
    tool: ToolSpec,
    request: str,
    context: Sequence[Mapping[str, Any]] = (),
    *,
    weights: Mapping[str, float] | None = None,
) -> tuple[list[Choices], list[Span]]:
    """Return what each argument of `tool` could be, and what was said.

    Parameters
    ----------
    weights
        Of the evidence; by default those that come with the package.
    """
    from nexus_lab.arguments.assign import Choices
    from nexus_lab.arguments.ranking import scores

    turns, spans = hear([*context, {"role": "user", "content": request}])
    said, places, found = Said(turns, spans, tool), Counter[str](), []
    for argument in arguments_of(tool):
        options = candidates(argument, said, places=places)
        places.update([argument.kind, *(kind for kind in CALLED if argument.fit(kind) == "name")])
        worth = scores(options, weights)
        if argument.must_be_given and len(options) > 1:
            worth[0] = -np.inf
        found.append(Choices(argument, options, worth))
    return found, spans


def ground(
    tool: ToolSpec,
    request: str,
    context: Sequence[Mapping[str, Any]] = (),
    *,
    jointly: bool = True,
    weights: Mapping[str, float] | None = None,
) -> Grounding:
    """Return what `request` and the turns before it say about the arguments of `tool`.

    Parameters
    ----------
    context
        The turns before the request, oldest first.
    jointly
        Whether arguments are assigned all at once; else each takes what fits it best.
    weights
        Of the evidence; by default those that come with the package.
    """
    from nexus_lab.arguments.assign import assign, plain_units

    choices, spans = choices_of(tool, request, context, weights=weights)
    picks = assign(choices, plain_units(spans)) if jointly else [int(one.scores.argmax()) for one in choices]
    chosen = {one.argument: one.candidates[pick] for one, pick in zip(choices, picks, strict=True)}
    left = [
        one.argument for one in choices if one.argument.required and chosen[one.argument].value is NOTHING
    ]
    given = {argument.name: one for argument, one in chosen.items() if one.value is not NOTHING}
    usual = {one.name: one.schema["default"] for one in left if "default" in one.schema}
    return Grounding(
        {name: one.value for name, one in given.items()} | usual,
        {name: one.spans for name, one in given.items()},
        tuple(one.name for one in left if one.name not in usual and not one.must_be_told),
        tuple(one.name for one in left if one.must_be_told),
        {
            argument.name: pattern
            for argument, one in chosen.items()
            if one.spans and (pattern := argument.completion(one.value))
        },
    )


def plan_call(tool: ToolSpec, request: str, context: Sequence[Mapping[str, Any]] = ()) -> GrammarPlan:
    """Return the grammar for a call of `tool` that answers `request`.

    Arguments that the conversation settles have one value; optional ones are given only where it speaks for
    them. The others follow the schema alone.

    Parameters
    ----------
    context
        The turns before the request, oldest first.
    """
    return plan_grounded(tool, ground(tool, request, context))


def plan_grounded(tool: ToolSpec, said: Grounding) -> GrammarPlan:
    """Return the grammar for a call of `tool` with what the conversation was found to say about it."""
    properties = {
        name: {**schema, "pattern": said.completed[name]} if name in said.completed else schema
        for name, schema in tool.properties.items()
    }
    plan = build_grammar(
        {**tool.input_schema, "properties": properties} if said.completed else tool.input_schema,
        tool=tool.name,
        optional=frozenset(said.values),
        values={name: (value,) for name, value in said.values.items() if name not in said.completed},
    )
    return replace(plan, settled=_only_text(plan, said), missing=said.missing)


def _only_text(plan: GrammarPlan, said: Grounding) -> str | None:
    """Return the text of the call, where the grammar leaves nothing to choose."""
    properties = plan.schema_used.get("properties", {})
    asked = {name for name, schema in properties.items() if schema is not False}
    wanted = set(plan.schema_used.get("required", ())) | set(said.values)
    fixed = all(properties.get(name, {}) == {"enum": [said.values.get(name)]} for name in wanted)
    if not fixed or asked != set(said.values) or not plan.schema_used.keys() <= _SETTLING:
        return None
    ordered = {name: said.values[name] for name in properties if name in said.values}
    return json.dumps(ordered, ensure_ascii=False, separators=(",", ":"))
