"""Tools to measure splices with when no registry is given: several servers' worth, written for this file."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from nexus_lab.registry import ToolSpec, first_sentence, schema_text

__all__ = ["SPLICE_CASES", "SpliceCase", "case_of"]

_MOST_ARGUMENTS = 3


@dataclass(frozen=True, slots=True)
class SpliceCase:
    """One tool, a request that it fits, and the call that answers it.

    Attributes
    ----------
    tool
        The tool.
    request
        The user's words after the block.
    answer
        The right call, forced token by token while the distributions are compared.
    """

    tool: ToolSpec
    request: str
    answer: str

    @property
    def schema_text(self) -> str:
        """What the model sees of the tool."""
        return schema_text(self.tool)


def case_of(tool: ToolSpec) -> SpliceCase:
    """Return a case for a tool of which nothing but its schema is known."""
    names = [*tool.required, *(name for name in tool.properties if name not in tool.required)]
    arguments = {name: _plausible(name, tool.properties.get(name)) for name in names[:_MOST_ARGUMENTS]}
    answer = json.dumps({"name": tool.name, "arguments": arguments})
    return SpliceCase(tool, first_sentence(tool.description, limit=200) or f"Please run {tool.name}.", answer)


def _plausible(name: str, schema: Any) -> Any:
    """Return a value that a schema offers by itself, or one of its type."""
    schema = schema if isinstance(schema, dict) else {}
    for key in ("const", "default"):
        if key in schema:
            return schema[key]
    for key in ("enum", "examples"):
        if isinstance(schema.get(key), list) and schema[key]:
            return schema[key][0]
    kind = schema.get("type")
    kind = next(iter(kind), None) if isinstance(kind, list) else kind
    if kind == "array":
        return [_plausible(name, schema.get("items"))]
    typed = {"boolean": True, "integer": schema.get("minimum", 1), "number": schema.get("minimum", 1)}
    return typed.get(str(kind), {} if kind == "object" else f"the {name.replace('_', ' ')}")


def _text(description: str, **options: Any) -> dict[str, Any]:
    return {"type": "string", "description": description, **options}


def _number(description: str, **options: Any) -> dict[str, Any]:
    return {"type": "integer", "description": description, **options}


def _case(
    name: str,
    description: str,
    properties: dict[str, Any],
    required: list[str],
    *,
    request: str,
    arguments: dict[str, Any],
) -> SpliceCase:
    schema = {"type": "object", "properties": properties, "required": required}
    answer = json.dumps({"name": name, "arguments": arguments})
    return SpliceCase(ToolSpec(name, description, schema), request, answer)


SPLICE_CASES: tuple[SpliceCase, ...] = (
    _case(
        "open_issue",
        "Open a new issue in a repository of the team and return its number.",
        {
            "repository": _text("Short name of the repository, without the organisation"),
            "title": _text("One line that says what is wrong"),
            "body": _text("What happened, what was expected, and how to see it again"),
            "labels": {
                "type": "array",
                "items": {"type": "string", "enum": ["bug", "question", "idea", "security"]},
                "description": "Labels to put on the issue",
            },
        },
        ["repository", "title"],
        request="The importer of orchard loses the last line of every file. Please file that as a bug.",
        arguments={
            "repository": "orchard",
            "title": "The importer loses the last line of every file",
            "labels": ["bug"],
        },
    ),
    _case(
        "convert_time",
        "Convert a clock time from one time zone to another, for a given day.",
        {
            "time": _text("Clock time in 24-hour form, HH:MM", pattern="^[0-9]{2}:[0-9]{2}$"),
            "source_zone": _text("IANA name of the zone the time is given in, such as Europe/Oslo"),
            "target_zone": _text("IANA name of the zone wanted"),
            "day": _text("Day of the conversion, YYYY-MM-DD; today when absent", format="date"),
        },
        ["time", "source_zone", "target_zone"],
        request="Our call is at 16:30 in Oslo. What time is that in Tokyo?",
        arguments={"time": "16:30", "source_zone": "Europe/Oslo", "target_zone": "Asia/Tokyo"},
    ),
    _case(
        "search_files",
        "Search the text files below a folder for a pattern and return the matching lines.",
        {
            "folder": _text("Folder to start from; its subfolders are searched as well"),
            "pattern": _text("Regular expression to look for"),
            "glob": _text("Only files whose name matches, for example *.py"),
            "ignore_case": {"type": "boolean", "description": "Treat upper and lower case alike"},
            "limit": _number("Most lines to return", minimum=1, maximum=500, default=50),
        },
        ["folder", "pattern"],
        request="Find where the retry limit is set in the Python files under services/mailer.",
        arguments={"folder": "services/mailer", "pattern": "retry_limit", "glob": "*.py"},
    ),
    _case(
        "plan_route",
        "Plan a journey between two places and return its legs with times and prices.",
        {
            "origin": _text("Place to start from: a city, a station or an address"),
            "destination": _text("Place to reach"),
            "depart_after": _text("Earliest departure, ISO 8601", format="date-time"),
            "modes": {
                "type": "array",
                "items": {"type": "string", "enum": ["train", "bus", "ferry", "plane", "car"]},
                "description": "Means of transport that may be used",
            },
            "travellers": _number("How many people travel together", minimum=1, default=1),
            "max_changes": _number("Most changes accepted on the way", minimum=0),
        },
        ["origin", "destination"],
        request="I want to take the train from Turin to Gdansk with at most two changes.",
        arguments={"origin": "Turin", "destination": "Gdansk", "modes": ["train"], "max_changes": 2},
    ),
)
