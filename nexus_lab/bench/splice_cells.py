"""One cell of a splice sweep: a block behind a live prefix at one depth, under every repair.

All runs of a cell start from the same live cells and force the same tokens, so that their figures are
paired: each repair with the full prefill, and with the noise floor of this very cell.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

from nexus_lab.bench.splice_decisions import Decision, decide_like, settled_decision
from nexus_lab.bench.splice_grid import NO_REANCHOR
from nexus_lab.engine import SequenceState, StopReason
from nexus_lab.splice import (
    NoRepair,
    SplicePath,
    SpliceResult,
    SpliceTimings,
    compare_logits,
    key_value_drift,
    splice_block,
)
from nexus_lab.splice.fidelity import logits_of
from nexus_lab.splice.trials import left_as_it_was, with_answer

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from nexus_lab.bench.splice_grid import Repair, SpliceTask
    from nexus_lab.engine import Engine
    from nexus_lab.splice import ToolBlock

__all__ = ["Cell", "splice_unrotated"]

_GREEDY = 32
Row = dict[str, Any]


@dataclass(frozen=True, slots=True, eq=False)
class _Seen:
    """What was seen of one run of a cell.

    Attributes
    ----------
    forced
        Logits after the rest and after each forced token, float32 [1 + n_answer, n_vocab].
    greedy
        Likeliest token at each position of the reference's own continuation, int64 [n].
    rows
        K and V of the block.
    attention
        Attention of the last prompt token, float32 [n_layer, n_head, n_keys]; ``None`` unless asked for.
    decision
        The call decided on; ``None`` unless asked for.
    """

    forced: NDArray[np.float32]
    greedy: NDArray[np.int64]
    rows: SequenceState
    attention: NDArray[np.float32] | None
    decision: Decision | None


class Cell:
    """A block behind the live tokens of a sequence.

    Parameters
    ----------
    engine, seq
        The sequence, which holds the prefix and is left so.
    task
        What is measured.
    """

    def __init__(self, engine: Engine, seq: int, task: SpliceTask) -> None:
        self._engine, self._seq, self._task = engine, seq, task
        self._case = task.case
        self._depth = engine.pos_max(seq) + 1
        self._continuation: tuple[int, ...] = ()
        self._greedy_n = 0
        self._decision: Decision | None = None
        with left_as_it_was(engine, seq):
            first, self._block_s, self._ttft_s = self._prefilled()
            self._reference = self._see(first, opening=True, decisions=bool(task.decisions))

    def rows(self, blocks: Mapping[str, ToolBlock]) -> Iterator[Row]:
        """Yield a row for each repair and compile context, then those of the noise floor.

        A full prefill has no use for the compile context, and runs under the first one only; a repair by
        profile runs where the block has one.
        """
        for name, repair in product(blocks, self._task.repairs):
            first = name == next(iter(blocks))
            if repair.runs_on(blocks[name]) and (repair.strategy != "full" or first):
                yield self._repaired(blocks[name], name, repair)
        yield self._floor("split", self._split())
        yield self._floor("permuted", self._permuted())

    # -- the runs -----------------------------------------------------------------------------------------

    def _prefilled(self) -> tuple[NDArray[np.float32], float, float]:
        """Prefill block and rest; returns the logits, and the seconds until each of the two was done."""
        started = perf_counter()
        self._engine.prefill(self._seq, self._case.block, logits="none")
        block_s = perf_counter() - started
        first = logits_of(self._engine, self._seq, self._case.rest, "last")
        return first, block_s, perf_counter() - started

    def _repaired(self, block: ToolBlock, context: str, repair: Repair) -> Row:
        with self._engine.turn(), left_as_it_was(self._engine, self._seq):
            if repair.strategy == NO_REANCHOR:
                result = splice_unrotated(self._engine, self._seq, block, self._case.rest)
            else:
                result = splice_block(
                    self._engine,
                    self._seq,
                    block,
                    strategy=repair.make(),
                    budget=repair.budget,
                    rest=self._case.rest,
                )
            first = np.empty(0, np.float32) if result.logits is None else result.logits
            seen = self._see(first, decisions=repair in self._task.decisions)
        return {
            **self._key(repair.strategy, repair.label, context),
            **self._compared(seen),
            "path": result.path.value,
            "declined": result.declined.code if result.declined else None,
            "repaired": result.repaired,
            "ttft_s": result.ttft_s,
            "block_s": result.seconds,
            "prefill_ttft_s": self._ttft_s,
            "prefill_block_s": self._block_s,
        }

    def _floor(self, schedule: str, seen: _Seen) -> Row:
        return {**self._key("floor", schedule, ""), "kind": "floor", **self._compared(seen)}

    def _split(self) -> _Seen:
        """Run the same tokens, the block cut into other decode calls."""
        cut = max(1, len(self._case.block) // 3)
        with left_as_it_was(self._engine, self._seq):
            for part in (self._case.block[:cut], self._case.block[cut:]):
                self._engine.prefill(self._seq, part, logits="none")
            first = logits_of(self._engine, self._seq, self._case.rest, "last")
            return self._see(first, decisions=bool(self._task.decisions))

    def _permuted(self) -> _Seen:
        """Run the same tokens, the prefix's rows in random cells; comes last, since it moves them."""
        engine, seq = self._engine, self._seq
        state = engine.save_state(seq)
        order = np.random.default_rng(self._depth).permutation(state.n_cells)
        engine.restore_state(state.take(order), seq)
        try:
            with left_as_it_was(engine, seq):
                return self._see(self._prefilled()[0], decisions=bool(self._task.decisions))
        finally:
            engine.restore_state(state, seq)

    # -- what is seen -------------------------------------------------------------------------------------

    def _see(self, first: NDArray[np.float32], *, opening: bool = False, decisions: bool = False) -> _Seen:
        """Look at the sequence, which holds prefix, block and rest; `first` are the logits after them."""
        engine, seq, task = self._engine, self._seq, self._task
        with left_as_it_was(engine, seq) as again:
            forced = with_answer(engine, seq, self._case, first)
            again()
            if opening:
                self._open(first, decisions=decisions and bool(task.grammar))
                again()
            greedy = self._greedy(first)
            again()
            decision = None
            if decisions and self._decision is not None:
                decision = decide_like(engine, seq, first, task.grammar, self._decision)
        stop = self._depth + len(self._case.block)
        rows = engine.save_state(seq, start=self._depth, stop=stop)
        return _Seen(forced, greedy, rows, self._attention(stop) if task.attention else None, decision)

    def _open(self, first: NDArray[np.float32], *, decisions: bool) -> None:
        """Decode what the reference says, and decides, by itself."""
        if self._task.continuation:
            said = self._engine.generate(self._seq, first, max_tokens=_GREEDY, decode_last=False)
            self._continuation = said.tokens
            # The end of the turn is a choice of the model like any other token.
            self._greedy_n = len(said.tokens) + (said.stop_reason is StopReason.EOG)
            self._engine.remove(self._seq, self._depth + len(self._case.block) + len(self._case.rest), -1)
        if decisions:
            self._decision = settled_decision(self._engine, self._seq, first, self._task.grammar)

    def _greedy(self, first: NDArray[np.float32]) -> NDArray[np.int64]:
        logits = [first[np.newaxis]]
        if self._continuation:
            logits.append(logits_of(self._engine, self._seq, self._continuation, "all"))
        likeliest: NDArray[np.int64] = np.concatenate(logits).argmax(axis=1)[: self._greedy_n]
        return likeliest

    def _attention(self, stop: int) -> NDArray[np.float32]:
        """Run the rest of the prompt once more, away from every clock, and read its last row."""
        engine = self._engine
        engine.remove(self._seq, stop, -1)
        layers = range(engine.info.n_layer)
        with engine.capture_attention(layers, n_queries=1) as capture:
            engine.prefill(self._seq, self._case.rest, logits="last")
        return np.stack([capture.rows(layer)[:, 0] for layer in layers])

    def _key(self, strategy: str, budget: float | str, context: str) -> Row:
        return {
            **self._task.common,
            "depth": self._depth,
            "strategy": strategy,
            "budget": str(budget),
            "context": context,
        }

    def _compared(self, seen: _Seen) -> Row:
        fidelity = compare_logits(self._reference.forced, seen.forced)
        same = self._reference.greedy == seen.greedy
        drift = key_value_drift(
            self._reference.rows,
            seen.rows,
            n_head_kv=self._engine.info.n_head_kv,
            start=self._depth,
            stop=self._depth + len(self._case.block),
        )
        row: Row = {
            "dkl": list(fidelity.dkl),
            "dkl_mean": fidelity.dkl_mean,
            "top1": fidelity.top1,
            "top1_first": fidelity.greedy_match > 0,
            "top5_overlap": fidelity.top5_overlap,
            "greedy_match": int(same.size if same.all() else same.argmin()),
            "greedy_n": int(same.size),
            "k_drift": float(drift.k_relative.mean()),
            "v_drift": float(drift.v_relative.mean()),
        }
        if seen.attention is not None and self._reference.attention is not None:
            # Total variation: the share of the attention that went elsewhere.
            moved = np.abs(seen.attention - self._reference.attention).sum(axis=2) / 2
            row["attention_drift"] = float(moved.mean())
            row["attention_heads"] = np.round(moved.astype(np.float64), 4).tolist()
        if seen.decision is not None and self._reference.decision is not None:
            row["tool_match"] = seen.decision.tool == self._reference.decision.tool
            row["arguments_match"] = (
                row["tool_match"] and seen.decision.arguments == self._reference.decision.arguments
            )
        return row


def splice_unrotated(engine: Engine, seq: int, block: ToolBlock, rest: Sequence[int]) -> SpliceResult:
    """Append a block with its keys as they were compiled, and the rest of the prompt: an experiment.

    Shows what re-anchoring is for. The product has no way to splice like this.
    """
    started = perf_counter()
    n_past = engine.pos_max(seq) + 1
    compiled = block.rows_at(engine, block.anchor)
    layers = range(compiled.n_layer)
    state = SequenceState.from_rows(
        compiled.layout,
        np.arange(n_past, n_past + block.n_tokens, dtype=np.int32),
        [compiled.key(layer) for layer in layers],
        [compiled.value(layer) for layer in layers],
    )
    engine.restore_state(state, seq, append=True)
    restored = perf_counter()
    logits = logits_of(engine, seq, rest, "last")
    return SpliceResult(
        path=SplicePath.SPLICE,
        plan=NoRepair().plan(block.n_tokens, n_past),
        contract="",
        n_past=n_past,
        n_tokens=block.n_tokens,
        anchored=False,
        timings=SpliceTimings(restore_s=restored - started, rest_s=perf_counter() - restored),
        logits=logits,
    )
