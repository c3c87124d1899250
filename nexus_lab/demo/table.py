"""The demonstration's table: one request per row, mistakes included."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from rich.console import Group
from rich.table import Table
from rich.text import Text

from nexus_lab.registry import neutralise

if TYPE_CHECKING:
    from collections.abc import Iterable

    from nexus_lab.agent import Turn
    from nexus_lab.agent.rows import FidelityRow
    from nexus_lab.demo.run import DemoStep

__all__ = ["splice_lines", "turn_table"]

_RESULT_LIMIT = 160
_STAGES = ("route", "prefill", "arguments", "tool", "result", "answer", "shadow")


def turn_table(steps: Iterable[DemoStep]) -> Table:
    """Return the table of all requests."""
    table = Table(show_lines=True, title="Requests", title_justify="left", expand=True)
    table.add_column("request", ratio=4)
    table.add_column("tool, top-3 scores", ratio=5)
    table.add_column("gate", ratio=4)
    table.add_column("arguments, result, answer", ratio=9)
    table.add_column("ms", justify="right", ratio=3)
    for step in steps:
        turn = step.turn
        table.add_row(
            Group(Text(step.request.text), Text(f"{step.request.kind}, {turn.schema_mode}", style="dim")),
            _tool(turn),
            _gate(turn),
            _outcome(turn),
            _times(turn),
        )
    return table


def _plain(text: object, *, limit: int = _RESULT_LIMIT, style: str = "") -> Text:
    return Text(neutralise(str(text), limit=limit), style=style)


def _tool(turn: Turn) -> Group:
    lines = [_plain(turn.tool or "no tool", style="bold")]
    if turn.decision is not None:
        lines += [_plain(f"{item.score:.3f} {item.tool}") for item in turn.decision.candidates]
    return Group(*lines)


def _gate(turn: Turn) -> Group:
    decision = turn.decision
    if decision is None:
        return Group(Text("not reached"))
    return Group(
        Text(decision.outcome.value.replace("_", " ")),
        Text(f"margin {decision.margin:.4f}"),
        Text(f"tau    {decision.tau:.4f}"),
    )


def _outcome(turn: Turn) -> Group:
    lines: list[Text] = []
    if turn.arguments is not None:
        lines.append(_plain(json.dumps(turn.arguments, ensure_ascii=False)))
    if turn.result is not None:
        mark, style = ("× ", "red") if turn.result.is_error else ("→ ", "")
        lines.append(Text(mark, style=style).append_text(_plain(" ".join(turn.result.text.split()))))
    if turn.problem is not None:
        lines.append(_plain(f"× {turn.problem.problem}", style="red"))
    if turn.answer:
        lines.append(_plain(f"“{' '.join(turn.answer.split())}”", style="italic"))
    return Group(*lines)


def _times(turn: Turn) -> Group:
    lines = [Text(f"{name} {turn.times_ms[name]:.0f}") for name in _STAGES if name in turn.times_ms]
    if turn.ttft_s is not None:
        lines.append(Text(f"TTFT {turn.ttft_s * 1e3:.0f}", style="bold"))
    return Group(*lines)


def splice_lines(row: FidelityRow) -> list[str]:
    """Return what the splice of a turn cost and kept, a line each."""
    repair = f"{row.repaired or 0} of them repaired, {row.strategy or 'none'}"
    lines = [f"{row.tool}: {row.n_tokens} tokens at position {row.n_past}, path {row.path} ({repair})"]
    if row.decline is not None:
        lines.append(f"! declined ({row.decline.code}): {row.decline.reason} Instead: {row.decline.instead}")
    if row.ttft_s is not None:
        lines.append(f"block and prompt ready after {row.ttft_s * 1e3:.0f} ms")
    if row.prefill_s is not None:
        ratio = f", {row.prefill_s / row.ttft_s:.2f} times as long" if row.ttft_s else ""
        lines.append(f"shadow run, the same tokens as text: {row.prefill_s * 1e3:.0f} ms{ratio}")
    if row.dkl is not None:
        lines.append(
            f"D_KL {row.dkl:.4f} nats over {row.n_positions} positions (noise floor {row.noise_floor:.4f}), "
            f"top-1 agreement {row.top1:.2f}"
        )
    return lines
