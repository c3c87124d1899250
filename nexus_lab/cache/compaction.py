"""Moving a sequence's rows into the lowest free cells, so that fewer are scanned.

llama.cpp scans up to the highest cell in use. Later tokens fill the holes that a drop leaves, yet as long as
rows stand above them, every token pays for the holes. Moving the rows changes neither positions nor bits of
them, only the order in which sums over them run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nexus_lab.cache.rows import RowMover
from nexus_lab.engine.ledger import in_scan_steps

if TYPE_CHECKING:
    from nexus_lab.cache.runner import ProgramRunner
    from nexus_lab.engine import Engine

__all__ = ["TOKENS_AHEAD", "compact", "compaction_pays"]

TOKENS_AHEAD = 256
"""Tokens that a conversation is taken to go on for: a tool response and a reply."""

# Measured on two cores: moving a row takes as long as 2 to 6 tokens take to scan one cell.
_ROW_READS = 8


def compaction_pays(*, scanned: int, used: int, rows: int, tokens_ahead: int = TOKENS_AHEAD) -> bool:
    """Say whether moving `rows` rows costs less than it saves the next tokens.

    Parameters
    ----------
    scanned, used
        Cells that a query scans now, and cells in use.
    tokens_ahead
        Tokens that will be computed before things change.
    """
    return (scanned - in_scan_steps(used)) * tokens_ahead > _ROW_READS * rows


def compact(engine: Engine, runner: ProgramRunner) -> int:
    """Move the rows of a runner's sequence into the lowest free cells; returns the cells no longer scanned.

    Cells that other sequences share stay where they are, and the runner's sequence gets copies of its own.

    Raises
    ------
    ContextFull
        When such copies do not fit; everything is as before.
    """
    with engine.turn():
        before, snapshot = engine.scanned_cells(), runner.snapshot
        active = snapshot.state.active_indices()
        if runner.seq is None or not active.size or "splice" in engine.declines:
            return 0
        rows = RowMover(engine, runner.store)
        fresh = rows.live(runner.seq, snapshot.state.positions[active], None)
        rows.swap(runner.seq, snapshot, int(active[0]), fresh)
        return before - engine.scanned_cells()
