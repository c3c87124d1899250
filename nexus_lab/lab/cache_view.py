"""What the Cache panel draws, from a state, a program and the counters of the memory behind it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from nexus_lab.cache import Origin

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from nexus_lab.cache import CacheState, MessageSpan, SlotUse
    from nexus_lab.lab.cache_ops import OpCell

__all__ = ["TOKEN_STATES", "Memory", "arena_of", "counts_of", "segments_of", "slots_of", "token_states"]

TOKEN_STATES = ("computed", "spliced", "repaired", "dropped")
_DROPPED = TOKEN_STATES.index("dropped")
_COUNTERS = ("snapshots", "chunks", "rows", "found", "missed", "declined", "chunks_evicted")

assert [origin.name.lower() for origin in Origin] == list(TOKEN_STATES[:_DROPPED])  # noqa: S101 - one list


@dataclass(frozen=True, slots=True)
class Memory:
    """Slots and counters as they were when an operation, or a step, had ended.

    Attributes
    ----------
    own
        Sequence of the live conversation.
    """

    slots: tuple[SlotUse, ...] = ()
    n_slots: int = 0
    own: int | None = None
    counters: tuple[tuple[str, int], ...] = ()


def token_states(state: CacheState) -> NDArray[np.uint8]:
    """Return uint8[n], the index in `TOKEN_STATES` of each logical token."""
    states: NDArray[np.uint8] = np.where(state.active, state.origin, np.uint8(_DROPPED)).astype(np.uint8)
    return states


def counts_of(state: CacheState | None) -> dict[str, int]:
    """Count the tokens of a state by what became of them."""
    if state is None:
        return dict.fromkeys(("active", "logical", "next_position", *TOKEN_STATES), 0)
    found = np.bincount(token_states(state), minlength=len(TOKEN_STATES))
    return {
        "active": state.n_active,
        "logical": len(state),
        "next_position": state.next_position,
        **{name: int(found[index]) for index, name in enumerate(TOKEN_STATES)},
    }


def arena_of(memory: Memory) -> dict[str, Any]:
    """Return the bytes of the arena, and the counters of the snapshots in it."""
    counters = dict(memory.counters)
    return {
        "total": counters.get("arena_capacity_bytes", 0),
        "given_out": counters.get("arena_used_bytes", 0),
        "asked_for": counters.get("arena_requested_bytes", 0),
        "counters": {name: counters[name] for name in _COUNTERS if name in counters},
    }


def slots_of(memory: Memory, state: CacheState | None) -> list[dict[str, Any]]:
    """Return the sequences of the pool; the live conversation's counts all tokens of `state`."""
    rows = []
    for slot in memory.slots:
        own = slot.seq == memory.own and state is not None
        tokens = state.n_active if own and state is not None else slot.n_plain
        label = "this conversation" if own else "warm prefix" if slot.warm else "held"
        kind = "warm" if slot.warm else "live"
        rows.append({"seq": slot.seq, "tokens": tokens, "kind": kind, "label": label})
    return rows


def segments_of(
    messages: Sequence[MessageSpan], cells: Iterable[OpCell], n_tokens: int
) -> list[dict[str, Any]]:
    """Return messages, and the tool blocks in them, as far as `n_tokens` logical tokens reach."""
    cuts = [
        (cell.logical - cell.tokens, cell.logical, f"block {cell.note.split(',')[0]}")
        for cell in cells
        if cell.kind == "splice"
    ]
    segments: list[dict[str, Any]] = []
    for message in messages:
        start = message.start
        for first, last, label in cuts:
            if message.start <= first < message.stop:
                segments.append({"start": start, "stop": first, "label": message.role})
                segments.append({"start": first, "stop": last, "label": label})
                start = last
        segments.append({"start": start, "stop": message.stop, "label": message.role})
    end = segments[-1]["stop"] if segments else 0
    if end < n_tokens:
        segments.append({"start": end, "stop": n_tokens, "label": "being added"})
    clipped = [{**item, "stop": min(item["stop"], n_tokens)} for item in segments]
    return [item for item in clipped if item["start"] < item["stop"]]
