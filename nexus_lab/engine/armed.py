"""Carries a patch plan and a capture through the graphs of one prefill."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from nexus_lab.engine.errors import PatchFailed

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from nexus_lab.engine.patches import AttentionCapture, PatchPlan, PatchReport
    from nexus_lab.engine.runtime import Runtime

__all__ = ["ArmedPrefill"]


@dataclass(slots=True)
class ArmedPrefill:
    """State of one prefill that runs under a plan, piece by piece.

    The sequence's cells are learnt from the first graph's mask: its first query sees exactly the cells held
    before, in ascending order, which pairs them with their known positions. Later graphs add their own cells.
    """

    plan: PatchPlan | None
    report: PatchReport | None
    capture: AttentionCapture | None
    _runtime: Runtime | None = None
    _total: int = 0
    _begin: int = 0
    _positions: NDArray[np.int32] = field(default_factory=lambda: np.zeros(0, np.int32))
    _cells: NDArray[np.int64] | None = None
    _buffer: NDArray[np.float32] | None = None

    @classmethod
    def extended(
        cls,
        outer: ArmedPrefill | None,
        *,
        plan: PatchPlan | None,
        report: PatchReport | None,
        capture: AttentionCapture | None,
    ) -> ArmedPrefill:
        """Add a plan or a capture to what an outer block has armed already."""
        if outer is None:
            return cls(plan, report, capture)
        if (plan is not None and outer.plan is not None) or (
            capture is not None and outer.capture is not None
        ):
            raise PatchFailed("a plan of this kind is armed already", next_step="end the outer block first")
        return cls(plan or outer.plan, report or outer.report, capture or outer.capture)

    def begin(self, runtime: Runtime, seq: int, n_tokens: int, start: int) -> None:
        """Check that the plan is for this prefill, and read where the sequence's tokens are."""
        if self.plan is not None and self.plan.n_tokens != n_tokens:
            raise PatchFailed(
                f"the plan is for {self.plan.n_tokens} tokens, the prefill has {n_tokens}",
                next_step="make the plan for the very tokens of the next prefill",
            )
        self._runtime = runtime
        self._total, self._begin = n_tokens, start
        self._positions = runtime.cell_positions(seq)

    def arm(self, first: int, n_tokens: int, start: int) -> None:
        """Set the bridge for the piece of `n_tokens` tokens that begins at token `first`. On the worker."""
        options: dict[str, Any] = {
            "first_position": start,
            "cell_positions": self._positions,
            "map_cells": True,
        }
        if self.plan is not None:
            self._add_patches(options, self.plan, first, n_tokens)
        if self.capture is not None:
            self._add_capture(options, self.capture, first, n_tokens)
        self._bridge.arm(n_tokens, **options)

    def disarm(self, n_tokens: int, start: int) -> None:
        """Take the piece's report. On the worker.

        Raises
        ------
        PatchFailed
            When the plan was not carried out.
        """
        found = self._bridge.disarm()
        if found["graphs"] == 0:
            return  # the call failed before it ran; its status says why
        if found["problem"] or (layout := self._bridge.layout_problem):
            raise PatchFailed(
                f"the patched decode failed: {found['problem'] or layout}", next_step="prefill step by step"
            )
        own = np.arange(start, start + n_tokens, dtype=np.int32)
        earlier = found["earlier_cells"] if self._cells is None else self._cells
        cells = np.concatenate([earlier, found["destination_cells"]])
        positions = np.concatenate([self._positions, own])
        order = np.argsort(cells)
        self._cells, self._positions = cells[order], positions[order]
        in_place = self.plan is not None and self.plan.in_place
        if self.report is not None:
            written = found["rewritten_cells" if in_place else "destination_cells"]
            self.report.cells = np.concatenate([self.report.cells, written])
            self.report.n_kv = found["n_kv"]
        if self.capture is not None and self._buffer is not None:
            seen = self._positions < self._begin if in_place else slice(None)
            rows = self._buffer[..., : found["n_kv"]].copy()
            self.capture.add(rows, self._cells[seen], self._positions[seen])

    @property
    def _bridge(self) -> Any:
        if self._runtime is None:
            raise PatchFailed("the plan has not begun", next_step="report this")
        return self._runtime.bridge

    def _add_patches(self, options: dict[str, Any], plan: PatchPlan, first: int, n_tokens: int) -> None:
        if plan.positions is not None:
            options["positions"] = np.ascontiguousarray(plan.positions[first : first + n_tokens], np.int32)
        if plan.hidden:
            options["hidden_offsets"], options["hidden"] = plan.piece(first, first + n_tokens)
        if plan.in_place:
            options["in_place"] = True

    def _add_capture(
        self, options: dict[str, Any], capture: AttentionCapture, first: int, n_tokens: int
    ) -> None:
        wanted = self._total if capture.n_queries is None else capture.n_queries
        begin = max(first, self._total - wanted) - first
        self._buffer = None
        if begin >= n_tokens or self._runtime is None:
            return
        context = self._runtime.context
        self._buffer = np.empty(
            (len(capture.layers), context.n_head, n_tokens - begin, context.n_ctx), np.float32
        )
        options["capture_layers"] = list(capture.layers)
        options["capture_queries"] = (begin, n_tokens)
        options["capture_buffer"] = self._buffer
