"""How much attention goes to each role and age of message: the evidence behind a cache policy.

While real conversations are replayed, the attention of the real replies' tokens is captured from the model,
and summed over the messages that they look back on.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from nexus_lab.agent.base import Emitter
from nexus_lab.agent.conversation import Conversation
from nexus_lab.bench.base import Result, ResultFile, ResultsError, insist_positive
from nexus_lab.bench.cache_replay import turns_of
from nexus_lab.bench.clusters import cluster_ratio
from nexus_lab.bench.tables import html_table
from nexus_lab.cache import make_policy
from nexus_lab.engine import ContextFull

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import polars as pl
    from plotly.graph_objects import Figure

    from nexus_lab.bench.cache_replay import TurnSteps
    from nexus_lab.bench.trajectories import Trajectory
    from nexus_lab.cache import MessageSpan
    from nexus_lab.engine import AttentionCapture, Engine

__all__ = ["ROLES", "AttentionStudy", "age_bucket", "study_attention"]

ROLES = ("sink", "system", "user", "call", "tool", "reply", "self")
"""Whose tokens: the very first one, the roles (an assistant's calls and replies apart), the reply itself."""

_N_LAYERS, _N_QUERIES = 5, 32
_BUCKETS = ((0, "0"), (1, "1"), (2, "2"), (4, "3-4"), (8, "5-8"))
_OLDEST = "9+"
_AGES = (*(name for _, name in _BUCKETS), _OLDEST)
_COLOURS = {
    "sink": "#5f6b76",
    "system": "#8a5a83",
    "user": "#00708c",
    "call": "#b35c00",
    "tool": "#b3261e",
    "reply": "#1b5e20",
    "self": "#4b3fb5",
}
Row = dict[str, Any]


def age_bucket(age: int) -> str:
    """Return the name of the bucket of an age in turns: 0 for what came since the last reply."""
    return next((name for most, name in _BUCKETS if age <= most), _OLDEST)


def study_attention(
    engine: Engine,
    trajectories: Sequence[Trajectory],
    *,
    policy: str = "full",
    layers: Sequence[int] | None = None,
    n_queries: int = _N_QUERIES,
    n_turns: int | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> AttentionStudy:
    """Replay conversations and capture where the replies look.

    Parameters
    ----------
    engine
        Loaded without flash attention, with cells for the longest conversation; where one does not fit them,
        or the positions that the model was trained on, its later turns are left out, and counted.
    policy
        Cache policy while they are replayed.
    layers
        Layers to capture, each once; five by default, evenly spread.
    n_queries
        Last tokens of each reply that are captured.
    n_turns
        Only the first so many replies of each conversation.
    on_progress
        Called with the conversations done and all of them.

    Raises
    ------
    PatchFailed
        When attention cannot be captured here.
    ResultsError
        When there are no conversations, a count is below 1, or not one turn fits.
    """
    insist_positive(n_queries=n_queries, n_turns=n_turns)
    if not trajectories:
        raise ResultsError("there is no conversation to study", next_step="give at least one")
    chosen = tuple(dict.fromkeys(layers)) if layers else _spread(engine.info.n_layer)
    rows: list[Row] = []
    left_out = 0
    for number, trajectory in enumerate(trajectories, start=1):
        own = list(
            _studied(engine, trajectory, policy=policy, layers=chosen, n_queries=n_queries, n_turns=n_turns)
        )
        left_out += len(turns_of(trajectory)[1][:n_turns]) - len({row["turn"] for row in own})
        rows += own
        if on_progress is not None:
            on_progress(number, len(trajectories))
    if not rows:
        raise ResultsError(
            f"none of {left_out} turns fits {engine.n_ctx} cells, and the positions the model was trained on",
            next_step="give shorter conversations, or a model that was trained on longer ones",
        )
    settings = {
        "model": engine.info.name,
        "model_sha256": engine.info.sha256,
        "policy": policy,
        "layers": list(chosen),
        "n_queries": n_queries,
        "n_turns": n_turns,
        "turns_left_out": left_out,
        "conversations": [trajectory.name for trajectory in trajectories],
    }
    return AttentionStudy(settings, rows)


def _spread(n_layer: int) -> tuple[int, ...]:
    return tuple(dict.fromkeys(np.linspace(0, n_layer - 1, _N_LAYERS).round().astype(int).tolist()))


def _studied(
    engine: Engine,
    trajectory: Trajectory,
    *,
    policy: str,
    layers: tuple[int, ...],
    n_queries: int,
    n_turns: int | None,
) -> Iterator[Row]:
    system, turns = turns_of(trajectory)
    engine.clear()
    conversation = Conversation(engine, system=system, emitter=Emitter(), policy=make_policy(policy))
    try:
        conversation.open()
        for number, turn in enumerate(turns[:n_turns], start=1):
            if not _fits(engine, conversation, turn):
                return
            for role, text in turn.inputs:
                conversation.append(role, conversation.transcript.message(role, text), reply=False)
            conversation.apply_policy()
            conversation.open_reply()
            with engine.capture_attention(layers, n_queries=n_queries) as capture:
                conversation.force(turn.reply.text, thought=turn.reply.thought, calls=turn.reply.calls)
            common = {"trajectory": trajectory.name, "turn": number}
            for row in _rows(conversation, capture):
                yield {**common, **row}
    except ContextFull:
        return
    finally:
        conversation.close()


def _fits(engine: Engine, conversation: Conversation, turn: TurnSteps) -> bool:
    texts = (*(text for _, text in turn.inputs), turn.reply.text)
    wanted = sum(len(engine.tokenize(text, special=False)) + 8 for text in texts)
    state = conversation.runner.snapshot.state
    most = min(engine.info.n_ctx_train or engine.n_ctx, engine.n_ctx)
    return state.next_position + wanted <= most


def _rows(conversation: Conversation, capture: AttentionCapture) -> Iterator[Row]:
    """Sum the captured attention over messages of the same role and age."""
    state = conversation.runner.snapshot.state
    active = state.active_indices()
    logical = active[np.searchsorted(state.positions[active], capture.positions)]
    groups = _groups(conversation.messages, len(state))[logical]
    names = sorted(set(groups.tolist()))
    for layer in capture.layers:
        weights = capture.rows(layer).mean(axis=(0, 1), dtype=np.float64)
        for name in names:
            role, age = ROLES[name % len(ROLES)], name // len(ROLES)
            inside = groups == name
            yield {
                "layer": layer,
                "role": role,
                "age": int(age),
                "tokens": int(inside.sum()),
                "seen": len(groups),
                "mass": float(weights[inside].sum()),
            }


def _groups(messages: Sequence[MessageSpan], n_tokens: int) -> Any:
    """Return role and age of each logical token as one number, int64 [n_tokens]."""
    groups, age = np.zeros(n_tokens, np.int64), 0
    for place in range(len(messages) - 1, -1, -1):
        message = messages[place]
        if message.role == "assistant" and place < len(messages) - 1:
            age += 1
        own = place == len(messages) - 1
        role = "self" if own else _role(message)
        groups[message.start : message.stop] = age * len(ROLES) + ROLES.index(role)
    groups[0] = ROLES.index("sink")
    return groups


def _role(message: MessageSpan) -> str:
    if message.role == "assistant":
        return "call" if message.calls else "reply"
    return message.role


@dataclass(frozen=True)
class AttentionStudy:
    """Attention by role and age of message; shows itself as a table in a notebook.

    Attributes
    ----------
    settings
        How it was measured.
    raw
        A row for each conversation, turn, layer, role and age, JSON values: ``tokens`` of these messages,
        ``seen`` of all that is in the cache, and ``mass``, their share of the attention.
    """

    settings: Mapping[str, Any]
    raw: Sequence[Row] = field(repr=False)

    def to_frame(self) -> pl.DataFrame:
        """Return the rows as a frame."""
        import polars as pl

        return pl.DataFrame(list(self.raw), infer_schema_length=None)

    @cached_property
    def figures(self) -> list[Result]:
        """Figures by role and age, with intervals over conversations.

        ``attention_share`` is the share of the attention of a turn that has such messages; ``attention_lift``
        that share over their share of the tokens: 1 for what is looked at like anything else.
        """
        results: list[Result] = []
        for (role, age), rows in self._grouped().items():
            case = {"role": role, "age": age}
            names = [name for name, _, _ in rows]
            mass, tokens = [row[1] for row in rows], [row[2] for row in rows]
            ones = [1.0] * len(rows)
            results.append(cluster_ratio(mass, ones, names, case=case, metric="attention_share"))
            results.append(cluster_ratio(mass, tokens, names, case=case, metric="attention_lift"))
        return results

    def _grouped(self) -> dict[tuple[str, str], list[tuple[str, float, float]]]:
        """Return conversation, share of attention and of tokens of each turn, by role and age bucket."""
        turns: dict[tuple[str, str], dict[tuple[str, int], list[float]]] = defaultdict(dict)
        n_layers = len(self.settings["layers"])
        for row in self.raw:
            key = row["role"], age_bucket(row["age"]) if row["role"] not in {"sink", "system"} else "any"
            sums = turns[key].setdefault((row["trajectory"], row["turn"]), [0.0, 0.0])
            sums[0] += row["mass"] / n_layers
            sums[1] += row["tokens"] / row["seen"] / n_layers
        order = {name: place for place, name in enumerate(("any", *_AGES))}
        keys = sorted(turns, key=lambda key: (ROLES.index(key[0]), order[key[1]]))
        return {key: [(name, mass, share) for (name, _), (mass, share) in turns[key].items()] for key in keys}

    def results(self) -> ResultFile:
        """Return the figures in the one form of a result file."""
        return ResultFile.now("eval attention", self.figures, settings=self.settings)

    def told(self) -> str:
        """Return in a sentence how many turns the figures are of."""
        done = len({(row["trajectory"], row["turn"]) for row in self.raw})
        left = self.settings.get("turns_left_out", 0)
        why = f"; {left} more did not fit the context or the trained positions" if left else ""
        return f"The last tokens of {done} replies{why}."

    def overview(self) -> tuple[list[str], list[list[str]]]:
        """Return head and rows of a table."""
        shown: dict[tuple[str, str], dict[str, Result]] = defaultdict(dict)
        for result in self.figures:
            shown[result.case["role"], result.case["age"]][result.metric] = result
        head = ["role", "age in turns", "share of attention", "lift over its tokens", "turns"]
        return head, [
            [
                role,
                age,
                _told(found["attention_share"]),
                _told(found["attention_lift"]),
                str(found["attention_lift"].n),
            ]
            for (role, age), found in shown.items()
        ]

    def text(self) -> str:
        """Return the table as text, for where nothing can be drawn."""
        head, rows = self.overview()
        widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
        lines = (
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
            for row in (head, *rows)
        )
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        return html_table(*self.overview())

    def figure(self) -> Figure:
        """Return a chart: lift by age, a line for each role; 1 is what a token gets on average."""
        from plotly import graph_objects as go

        figure = go.Figure()
        for role in ROLES:
            found = [
                result
                for result in self.figures
                if result.metric == "attention_lift"
                and result.case["role"] == role
                and result.case["age"] in _AGES
            ]
            if not found or role == "self":
                continue
            high = [item.value if item.high is None else item.high for item in found]
            low = [item.value if item.low is None else item.low for item in found]
            values = [item.value for item in found]
            figure.add_scatter(
                x=[item.case["age"] for item in found],
                y=values,
                error_y={
                    "type": "data",
                    "symmetric": False,
                    "array": np.subtract(high, values),
                    "arrayminus": np.subtract(values, low),
                    "thickness": 1,
                },
                name=role,
                line={"color": _COLOURS[role]},
            )
        figure.add_hline(y=1.0, line_dash="dot", line_color="#888888", annotation_text="a token on average")
        figure.update_xaxes(
            title="age of the message in turns", categoryorder="array", categoryarray=list(_AGES)
        )
        figure.update_yaxes(title="attention per token, over the average", type="log")
        figure.update_layout(template="plotly_white", height=420, legend={"orientation": "h", "y": -0.25})
        return figure


def _told(result: Result) -> str:
    interval = "" if result.low is None else f" [{result.low:.3f}, {result.high:.3f}]"
    return f"{result.value:.3f}{interval}"
