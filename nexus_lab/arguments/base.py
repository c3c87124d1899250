"""The contracts of the arguments room: what a grammar left out, and what is wrong with a call."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Protocol

from nexus_lab.errors import NexusError
from nexus_lab.registry import neutralise

if TYPE_CHECKING:
    from nexus_lab.arguments.scoring import Weighed

__all__ = [
    "ArgumentsError",
    "ArgumentsRejected",
    "CutOff",
    "DuplicateArgument",
    "GrammarPlan",
    "Ground",
    "GroundKind",
    "MissingValues",
    "NotAnObject",
    "NotJson",
    "Projection",
    "ProjectionKind",
    "SchemaUnusable",
    "TokenMask",
    "Violation",
]

_SHOWN = 120


class ArgumentsError(NexusError):
    """The arguments of a call could not be made or read."""


class SchemaUnusable(ArgumentsError):
    """No arguments at all can satisfy the schema, or it is no JSON Schema."""


class NotJson(ArgumentsError):
    """The text is not JSON, or stops before its end."""


class CutOff(NotJson):
    """The text stops before its end."""


class NotAnObject(ArgumentsError):
    """The text is JSON, but not an object."""


class DuplicateArgument(ArgumentsError):
    """The text gives one argument twice."""


class ArgumentsRejected(ArgumentsError):
    """The arguments do not satisfy the schema.

    Attributes
    ----------
    violations
        All that is wrong with them.
    """

    def __init__(self, violations: tuple[Violation, ...], *, tool: str = "") -> None:
        whom = f" of {neutralise(tool, limit=80)}" if tool else ""
        super().__init__(
            f"the arguments{whom} do not satisfy the schema: " + "; ".join(map(str, violations[:3])),
            next_step="correct them and call again",
        )
        self.violations = violations


class MissingValues(ArgumentsError):
    """The conversation does not give what the call needs, and nobody but the user can.

    Attributes
    ----------
    names
        The arguments that have to be told.
    """

    def __init__(self, names: tuple[str, ...], *, tool: str = "") -> None:
        shown = ", ".join(neutralise(name, limit=80) for name in names)
        super().__init__(
            f"nothing was said for {shown}" + (f" of {neutralise(tool, limit=80)}" if tool else ""),
            next_step=f"say the value of {shown}",
        )
        self.names = names


class ProjectionKind(StrEnum):
    """How a grammar departs from its schema.

    ``dropped``: the grammar does not hold the keyword; ``shape_only``: it holds a part of it; both are
    checked after the call is written. ``narrowed``: it allows less than the schema, so that a small model
    comes to an end; what it allows is still valid.
    """

    DROPPED = "dropped"
    SHAPE_ONLY = "shape_only"
    NARROWED = "narrowed"


@dataclass(frozen=True, slots=True)
class Projection:
    """One departure of a grammar from its schema.

    Attributes
    ----------
    path
        JSON pointer of the schema that holds the keyword; empty for the root.
    keyword
        The keyword; ``*`` where a whole subschema gave way to its bare type.
    """

    path: str
    keyword: str
    kind: ProjectionKind
    reason: str

    def __str__(self) -> str:
        return f"{neutralise(self.path, limit=_SHOWN) or '/'} {self.keyword} {self.kind}: {self.reason}"


class GroundKind(StrEnum):
    """Where the value of an argument comes from.

    =========  ========================================================================
    ``said``   a part of the conversation
    ``listed`` a value that the schema lists; what was said speaks for it
    ``usual``  what the schema names for the case that nothing was said
    ``model``  the model, which writes it: free text that nothing was said for
    =========  ========================================================================
    """

    SAID = "said"
    LISTED = "listed"
    USUAL = "usual"
    MODEL = "model"


@dataclass(frozen=True, slots=True)
class Ground:
    """Where an argument of a call comes from.

    Attributes
    ----------
    turn, start, stop
        What was said: how many messages ago, 0 for the request, and the characters there.
    completed
        Whether the model completes it to the form that the schema shows.
    """

    argument: str
    kind: GroundKind
    turn: int | None = None
    start: int | None = None
    stop: int | None = None
    completed: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON, without what it has not."""
        return {
            name: value for name, value in asdict(self).items() if value is not None and value is not False
        }


@dataclass(frozen=True, slots=True)
class GrammarPlan:
    """A grammar for the arguments of a tool.

    Attributes
    ----------
    grammar
        What llguidance compiles, a JSON text.
    projected
        Every departure from the schema; nothing is left out silently.
    schema_used
        The schema that the grammar holds exactly.
    tool
        Whose arguments.
    settled
        The only text that the grammar allows, where the conversation gives every argument.
    missing
        Required arguments that only the user can give, and did not.
    free
        Required arguments that nothing was said for and that the model writes by itself, since their schema
        takes free text: what stands there is the model's, not the user's.
    weighed
        What the model was asked of whole calls, where the evidence left several close.
    grounds
        Where the arguments come from that the conversation, the schema or the model's own words give.
    """

    grammar: str
    projected: tuple[Projection, ...]
    schema_used: dict[str, Any]
    tool: str = ""
    settled: str | None = None
    missing: tuple[str, ...] = ()
    free: tuple[str, ...] = ()
    weighed: Weighed | None = None
    grounds: tuple[Ground, ...] = ()

    @property
    def unchecked(self) -> tuple[Projection, ...]:
        """The departures that can let an invalid value through, so that a check must follow."""
        return tuple(part for part in self.projected if part.kind is not ProjectionKind.NARROWED)

    def report(self) -> tuple[str, ...]:
        """Return one line for each departure, naming tool, path and keyword."""
        name = neutralise(self.tool, limit=80) or "schema"
        return tuple(f"{name} {part}" for part in self.projected)


@dataclass(frozen=True, slots=True)
class Violation:
    """One thing that is wrong with arguments.

    Attributes
    ----------
    path
        JSON pointer of the value; empty for the arguments as a whole.
    keyword
        Keyword of the schema that it breaks.
    message
        One sentence for the reader; values of unknown origin in it are made harmless.
    expected, found
        What the keyword asks for, and the value.
    schema_path
        JSON pointer of the schema that holds the keyword, where no reference leads.
    """

    path: str
    keyword: str
    message: str
    expected: Any = None
    found: Any = None
    schema_path: str = ""

    def __str__(self) -> str:
        return f"{neutralise(self.path, limit=_SHOWN) or 'arguments'}: {self.message}"


class TokenMask(Protocol):
    """What decides which tokens may come next; the engine's `generate` asks it before each token."""

    @property
    def stopped(self) -> bool:
        """Whether nothing more may come."""

    def mask(self, logits: Any) -> None:
        """Set the logits (float32 [n_vocab]) of forbidden tokens to minus infinity, in place."""

    def accept(self, token: int) -> None:
        """Take note of the token that was chosen."""
