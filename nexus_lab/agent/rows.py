"""The typed rows that events carry: one dataclass per table of a session bundle.

A field whose metadata says ``content`` holds what a user, a model or a tool wrote (or token ids, which
decode to it). Recorders drop such fields unless the user asked for contents.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nexus_lab.errors import Decline

__all__ = [
    "Candidate",
    "DriftFrame",
    "FidelityRow",
    "Json",
    "MessageRow",
    "OpKind",
    "OpRow",
    "Range",
    "RoutingRow",
    "Row",
    "TurnRow",
    "content_fields",
]

Json: TypeAlias = Any
"""A JSON value; numpy scalars and arrays are accepted and converted when written."""

Range: TypeAlias = tuple[int, int]
"""Half open: start, stop."""

_CONTENT = {"content": True}


class OpKind(StrEnum):
    """Operations of a cache program."""

    APPEND = "append"
    SPLICE = "splice"
    REPAIR = "repair"
    DROP = "drop"
    REPOS = "repos"


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One tool that routing looked at; scores are cosine, BM25 share and probability, or None.

    ``sidecar`` is what the model made of it where it was tried: nats a token of its name, at most 0.
    """

    tool: str
    score: float
    dense: float | None = None
    lexical: float | None = None
    cross_encoder: float | None = None
    view: str | None = None
    sidecar: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutingRow:
    """One routing decision.

    Attributes
    ----------
    query
        The request as it was embedded (content).
    candidates
        Best first.
    margin, tau
        Distance of the two best scores, and what it was held against.
    decision
        ``auto``, ``escalated``, ``escalation_unavailable`` or ``no_tool``.
    tool
        The tool chosen; ``None`` when none fits.
    reason
        One sentence of ours, without the request's text.
    times_ms
        Milliseconds by stage, in the order they ran.
    settings
        The knobs the decision ran with (`top_k`, `tau`, ...).
    """

    table: ClassVar[str] = "routing"

    candidates: tuple[Candidate, ...]
    margin: float | None
    tau: float | None
    decision: str
    tool: str | None
    reason: str = ""
    query: str | None = field(default=None, metadata=_CONTENT)
    times_ms: Mapping[str, float] = field(default_factory=dict)
    settings: Mapping[str, Json] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class OpRow:
    """One operation of a cache program, and the state after it.

    Attributes
    ----------
    state_id, parent_state_id
        Identifiers of the state after and before; ``None`` is the empty state.
    tokens
        How many logical tokens the op touched (appended, spliced, recomputed, dropped, moved).
    ranges
        Their logical indices.
    positions
        The cache positions they have afterwards; empty for a drop.
    active_tokens, logical_tokens, next_position
        Totals of the state after the op.
    block, anchored
        Of a splice: the block's name, and whether its context hash matched.
    note
        A few words of ours, for example ``turn 4 user`` or ``leading 25 %``.
    token_ids
        The token ids that were appended or spliced (content).
    """

    table: ClassVar[str] = "ops"

    op: OpKind
    state_id: str
    parent_state_id: str | None
    tokens: int
    ranges: tuple[Range, ...] = ()
    positions: tuple[Range, ...] = ()
    active_tokens: int
    logical_tokens: int
    next_position: int
    block: str | None = None
    anchored: bool | None = None
    note: str = ""
    token_ids: tuple[int, ...] | None = field(default=None, metadata=_CONTENT)


@dataclass(frozen=True, slots=True, kw_only=True)
class FidelityRow:
    """What a splice cost and what it kept, or why it was declined.

    Attributes
    ----------
    path
        How the block got into the cache: ``anchored``, ``repaired``, ``unrepaired`` or ``prefill``.
    dkl, noise_floor
        Mean D_KL(prefill || splice) in nats over `n_positions` positions, and the same figure between two
        schedules of the plain prefill; ``None`` where it was not measured.
    top1, top5_overlap
        Share of positions whose best token agrees, and mean overlap of the best five, in [0, 1].
    ttft_s, prefill_s
        Seconds to the first token by the path taken, and by the shadow prefill.
    decline
        Set when the splice was not done.
    """

    table: ClassVar[str] = "fidelity"

    path: str
    block: str | None = None
    tool: str | None = None
    n_past: int | None = None
    n_tokens: int | None = None
    repaired: int | None = None
    strategy: str | None = None
    budget: float | None = None
    contract: str | None = None
    dkl: float | None = None
    noise_floor: float | None = None
    top1: float | None = None
    top5_overlap: float | None = None
    n_positions: int | None = None
    ttft_s: float | None = None
    prefill_s: float | None = None
    decline: Decline | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DriftFrame:
    """Drift of one step, layers x KV heads; becomes one table row per cell.

    Attributes
    ----------
    step, label
        Number and name of the step, for example ``2`` and ``rotate``.
    tensor
        ``k`` or ``v``.
    measure
        ``relative`` or ``absolute`` (L2 distance of rows), or ``signed``.
    values
        ``float[n_layer][n_head_kv]``, nested sequences or an array; NaN is "no value".
    """

    table: ClassVar[str] = "drift"

    step: int
    tensor: str
    measure: str
    values: Any
    label: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageRow:
    """One message of the conversation; recorded only when the user asked for contents."""

    table: ClassVar[str] = "messages"

    role: str
    text: str | None = field(default=None, metadata=_CONTENT)
    tool: str | None = None
    call_id: str | None = None
    arguments: Json = field(default=None, metadata=_CONTENT)
    n_tokens: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnRow:
    """One turn, as a reader wants it in one line.

    Attributes
    ----------
    turn
        Number from 1, within the run.
    outcome
        ``called`` (a tool ran), ``answered`` (no tool was needed), ``abstained`` (none fits), ``refused``
        (the user said no), ``failed`` or ``cancelled``.
    request, answer, arguments, result
        What was asked, said, sent to the tool and given back (contents).
    result_is_error
        The tool reported an error.
    problem
        Kind of failure, for example ``ServerTimeout``; its text belongs in the event's contents.
    schema_mode
        What the model saw of the tool: ``signature``, ``full`` or ``splice(...)``.
    ttft_s
        Seconds from the request to the first generated token, shadow runs excluded.
    prompt_tokens, reused_tokens, generated_tokens
        Tokens in the context, those of them taken from the cache or spliced, and those generated; of a turn
        on an endpoint the sums over its requests, as it counts them.
    times_ms
        Milliseconds by stage, in the order they ran.
    settings
        The profile's knobs the turn ran with.
    """

    table: ClassVar[str] = "turns"

    turn: int
    outcome: str
    tool: str | None = None
    server: str | None = None
    request: str | None = field(default=None, metadata=_CONTENT)
    answer: str | None = field(default=None, metadata=_CONTENT)
    arguments: Json = field(default=None, metadata=_CONTENT)
    result: str | None = field(default=None, metadata=_CONTENT)
    result_is_error: bool = False
    problem: str | None = None
    schema_mode: str | None = None
    ttft_s: float | None = None
    prompt_tokens: int | None = None
    reused_tokens: int | None = None
    generated_tokens: int | None = None
    times_ms: Mapping[str, float] = field(default_factory=dict)
    settings: Mapping[str, Json] = field(default_factory=dict)


Row: TypeAlias = RoutingRow | OpRow | FidelityRow | DriftFrame | MessageRow | TurnRow


def content_fields(row: Row | type[Row]) -> frozenset[str]:
    """Names of the fields of `row` that hold contents."""
    return frozenset(item.name for item in fields(row) if item.metadata.get("content"))
