"""Grounding: values of a call come from what was said, optional arguments where something speaks for them.

A 135M model that writes freely copies the hints of a signature, or loops. Here every part of the conversation
that could be a value is weighed against every argument, and all arguments are assigned at once. What remains
to the model is free text that nothing was said for; any other needed value is asked for.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from nexus_lab.arguments.base import Ground, GroundKind
from nexus_lab.arguments.evidence import NOTHING, candidates
from nexus_lab.arguments.grammar import build_grammar
from nexus_lab.arguments.lexicon import CALLED
from nexus_lab.arguments.minimum import signs
from nexus_lab.arguments.spans import hear
from nexus_lab.arguments.surroundings import Said
from nexus_lab.arguments.wants import arguments_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from nexus_lab.arguments.assign import Choices, Costs
    from nexus_lab.arguments.base import GrammarPlan
    from nexus_lab.arguments.demonstrations import Demonstration
    from nexus_lab.arguments.minimum import Minimum
    from nexus_lab.arguments.scoring import Scorer, Scoring, Weighed
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
        Required arguments that are left to the model: free text, and what is built of parts.
    missing
        Required arguments that have to be asked for: nothing was said that is likely enough their value.
    completed
        Patterns of the values that the model completes to what the schema shows as example, by name.
    weighed
        What the model was asked, where the evidence left several calls close.
    """

    values: Mapping[str, Any]
    spans: Mapping[str, tuple[Span, ...]]
    open: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    completed: Mapping[str, str] = field(default_factory=dict)
    weighed: Weighed | None = None


def choices_of(
    tool: ToolSpec,
    request: str,
    context: Sequence[Mapping[str, Any]] = (),
    *,
    weights: Mapping[str, float] | None = None,
    demonstrations: Sequence[Demonstration] = (),
) -> tuple[list[Choices], list[Span]]:
    """Return what each argument of `tool` could be, and what was said.

    Parameters
    ----------
    weights
        Of the evidence; by default those that come with the package.
    demonstrations
        Requests for the same tool with the arguments that were right.
    """
    from nexus_lab.arguments.assign import Choices
    from nexus_lab.arguments.demonstrations import Shown
    from nexus_lab.arguments.ranking import scores

    turns, spans = hear([*context, {"role": "user", "content": request}])
    said, places, found = Said(turns, spans, tool), Counter[str](), []
    shown = Shown(tool, request, demonstrations)
    for argument in arguments_of(tool):
        options = shown.beside(argument, candidates(argument, said, places=places), said)
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
    costs: Costs | None = None,
    minimum: Minimum | None = None,
    demonstrations: Sequence[Demonstration] = (),
    scorer: Scorer | None = None,
    scoring: Scoring | None = None,
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
    costs
        How choices stand to each other; ``None`` for the defaults.
    minimum
        The least evidence for a required value; by default the one that comes with the package.
    demonstrations
        Requests for the same tool with the arguments that were right.
    scorer
        Weighs the best whole calls where the evidence leaves them close; ``None`` takes the best.
    scoring
        How much its word counts; by default as the package says.
    """
    from nexus_lab.arguments.assign import assignments, plain_units
    from nexus_lab.arguments.ranking import load_minimum, load_scoring
    from nexus_lab.arguments.scoring import best_calls, weigh

    weighed = None
    choices, spans = choices_of(tool, request, context, weights=weights, demonstrations=demonstrations)
    if jointly:
        found = assignments(choices, plain_units(spans), costs=costs)
        picks = list(found[0].picks)
        if scorer is not None:
            scoring = scoring or load_scoring()
            calls = best_calls(choices, found, most=scoring.most)
            weighed = weigh(tool, request, context, calls, scorer=scorer, scoring=scoring)
            picks = list(calls[0 if weighed is None else weighed.chosen].assignment.picks)
    else:
        picks = [int(one.scores.argmax()) for one in choices]
    said = _grounding(choices, picks, load_minimum() if minimum is None else minimum)
    return said if weighed is None else replace(said, weighed=weighed)


def _grounding(choices: Sequence[Choices], picks: Sequence[int], minimum: Minimum) -> Grounding:
    """Return what is settled when each argument has its pick, where the evidence for it is enough."""
    chosen = {one.argument: one.candidates[pick] for one, pick in zip(choices, picks, strict=True)}
    unsure = {
        one.argument
        for place, one in enumerate(choices)
        if one.argument.must_be_sure and chosen[one.argument].value is not NOTHING
        if not minimum.allows(signs(choices, picks, place))
    }
    given = {
        argument.name: one
        for argument, one in chosen.items()
        if one.value is not NOTHING and argument not in unsure
    }
    left = [one.argument for one in choices if one.argument.required and one.argument.name not in given]
    usual = {one.name: one.usual for one in left if "default" in one.schema or one.usual is not None}
    free = {one.name for one in left if one.may_be_written}
    return Grounding(
        {name: one.value for name, one in given.items()} | usual,
        {name: one.spans for name, one in given.items()},
        tuple(one.name for one in left if one.name not in usual and one.name in free),
        tuple(one.name for one in left if one.name not in usual and one.name not in free),
        {
            argument.name: pattern
            for argument, one in chosen.items()
            if argument.name in given and one.spans and (pattern := argument.completion(one.value))
        },
    )


def plan_call(
    tool: ToolSpec,
    request: str,
    context: Sequence[Mapping[str, Any]] = (),
    *,
    demonstrations: Sequence[Demonstration] = (),
    scorer: Scorer | None = None,
    scoring: Scoring | None = None,
) -> GrammarPlan:
    """Return the grammar for a call of `tool` that answers `request`.

    Arguments that the conversation settles have one value; optional ones are given only where it speaks for
    them. The others follow the schema alone.

    Parameters
    ----------
    context
        The turns before the request, oldest first.
    demonstrations
        Requests for the same tool with the arguments that were right, such as approved or corrected calls.
    scorer, scoring
        As in `ground`.
    """
    said = ground(tool, request, context, demonstrations=demonstrations, scorer=scorer, scoring=scoring)
    return plan_grounded(tool, said)


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
    return replace(
        plan,
        settled=_only_text(plan, said),
        missing=said.missing,
        free=said.open,
        weighed=said.weighed,
        grounds=tuple(_grounds(said)),
    )


def _grounds(said: Grounding) -> Iterator[Ground]:
    """Yield where each argument comes from; one that was said in several places has as many."""
    for name in said.values:
        spans = said.spans.get(name)
        if spans is None:
            yield Ground(name, GroundKind.USUAL)
        elif not spans:
            yield Ground(name, GroundKind.LISTED)
        for span in spans or ():
            told = name in said.completed
            yield Ground(name, GroundKind.SAID, span.turn, span.start, span.stop, completed=told)
    yield from (Ground(name, GroundKind.MODEL) for name in said.open)


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
