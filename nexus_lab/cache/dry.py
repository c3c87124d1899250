"""A runner that runs nothing: it folds programs, and counts what they would cost.

What a policy computes, reads and holds follows from the program alone, so it is known exactly without a
model, in a thousandth of the time. Not counted are what a policy asks the model meanwhile, and llama.cpp's
choice of cells: as many are taken as scanned as are in use, in llama.cpp's steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from nexus_lab.cache.base import BatchSchedule, RunnerError, RunResult, Start, StartKind
from nexus_lab.cache.ops import Append, Repair
from nexus_lab.cache.program import CacheProgram
from nexus_lab.engine import DecodeCall
from nexus_lab.engine.ledger import in_scan_steps

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from nexus_lab.cache.ops import CacheOp
    from nexus_lab.cache.state import CacheState

__all__ = ["DryRunner"]


@dataclass(frozen=True, slots=True)
class _Snapshot:
    state: CacheState


class DryRunner:
    """Stands in for a `ProgramRunner` where only the counts are wanted.

    Parameters
    ----------
    meter
        Told of every decode that there would be.
    """

    def __init__(self, meter: Callable[[DecodeCall], None]) -> None:
        self._meter = meter
        self.program = CacheProgram()

    @property
    def snapshot(self) -> _Snapshot:
        """The state at the cursor."""
        return _Snapshot(self.program.layout)

    def step(self, *ops: CacheOp, **_options: Any) -> RunResult:
        """Count operations at the cursor."""
        began = len(self.program.layout)
        for op in ops:
            if isinstance(op, Append):
                self._count(len(op.tokens))
            elif isinstance(op, Repair):
                self._repair(op)
            self.program = self.program.then(op)
        return self._result(began)

    def run(self, program: CacheProgram, **_options: Any) -> RunResult:
        """Count the way to `program`, from the live state or from the first tokens that both have.

        The last token is always computed, for its logits.
        """
        rest = program.remainder(self.program)
        if rest is not None:
            return self.step(*rest)
        tokens, live = program.plain_tokens(), self.program.layout
        plain = live.tokens[: live.plain_length()]
        n = min(len(plain), max(0, len(tokens) - 1))
        differs = np.flatnonzero(plain[:n] != np.asarray(tokens[:n], np.int32))
        common = int(differs[0]) if differs.size else n
        self.program = CacheProgram((Append(tokens[:common]),))
        self.step(*(program.remainder(self.program) or ()))
        self.program = program
        return self._result(common)

    def force(self, tokens: Sequence[int]) -> tuple[NDArray[np.float32], RunResult]:
        """Count an append; there are no logits."""
        return np.zeros((0, 0), np.float32), self.step(Append(tuple(tokens)))

    def generate(self, **_options: Any) -> Any:
        """Refuse.

        Raises
        ------
        RunnerError
            Always: what a model says cannot be counted ahead.
        """
        raise RunnerError("a dry run has no model to ask", next_step="replay with the model instead")

    def close(self) -> None:
        """Nothing is held."""

    def _count(self, n: int) -> None:
        held = self.program.layout.n_active
        if n:
            self._tell(n, n * held + n * (n + 1) // 2, held + n)

    def _repair(self, op: Repair) -> None:
        active = self.program.layout.active_indices()
        seen = np.searchsorted(active, np.asarray(op.selection), side="right")
        self._tell(len(op.selection), int(seen.sum()), len(active))

    def _tell(self, n: int, attended: int, used: int) -> None:
        scanned = in_scan_steps(used) * n
        self._meter(DecodeCall(tokens=n, attended=attended, scanned=scanned, used=used, generated=False))

    def _result(self, started: int) -> RunResult:
        state = self.program.layout
        start = Start(StartKind.LIVE, started, "", 0.0)
        return RunResult(
            seq=-1,
            program=self.program,
            state=state,
            logits=None,
            schedule=BatchSchedule(),
            start=start,
            records=(),
            seconds=0.0,
        )
