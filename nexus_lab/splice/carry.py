"""Carrying the shift that a block's recomputed head shows over to the tokens that are spliced."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nexus_lab.engine.shift import seen_shift

if TYPE_CHECKING:
    from nexus_lab.engine import Engine
    from nexus_lab.engine.shift import KeyShift
    from nexus_lab.splice.blocks import ToolBlock

__all__ = ["head_shift"]


def head_shift(engine: Engine, seq: int, block: ToolBlock, *, n_past: int, n_head: int) -> KeyShift | None:
    """Return the common shift of a head, which was computed on `seq` from position `n_past` on."""
    live = engine.save_state(seq, start=n_past, stop=n_past + n_head)
    compiled = block.rows_at(engine, n_past, stop=n_head)
    return seen_shift(live.in_order(), compiled, engine.info.rope)
