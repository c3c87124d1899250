"""What tells a session: a clock of its own, spans, a cache that numbers its operations, and who ran it."""

from __future__ import annotations

import math
from contextlib import contextmanager
from dataclasses import dataclass, field

from nexus_lab.agent.base import (
    Candidate,
    DriftFrame,
    Event,
    EventKind,
    MessageRow,
    OpKind,
    OpRow,
    Status,
)

EPOCH_NS = 1_764_499_080_000_000_000
MS = 1_000_000
# In two parts, so that no scanner takes it for a real one.
LEAKED = "ghp_" + "a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6"
HOSTILE = (
    "<script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\"> "
    '& "quoted" \u202eevil'
)

MODEL = {
    "name": "SmolLM2-135M-Instruct.Q4_1",
    "sha256": "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    "path": "/home/mara/models/SmolLM2-135M-Instruct.Q4_1.gguf",
    "architecture": "llama",
    "n_layer": 30,
    "n_head": 9,
    "n_head_kv": 3,
    "head_dim_k": 64,
    "head_dim_v": 64,
    "n_embd": 576,
    "n_vocab": 49152,
    "n_ctx_train": 8192,
    "size_bytes": 98_114_240,
    "license": "apache-2.0",
    "rope": {"pairing": "norm", "base": 100000.0, "scale": 1.0, "n_rot": 64},
    "embedder": "all-MiniLM-L6-v2",
}
HOST = {
    "host": "workshop",
    "system": "Linux 6.1.0",
    "machine": "x86_64",
    "cpu": "Example Processor 4210 @ 2.20GHz",
    "cpu_features": ["avx2", "f16c", "fma"],
    "scan_kernels": ["avx2", "scalar"],
    "cores_physical": 2,
    "cores_logical": 2,
    "memory_bytes": 8_321_654_784,
    "threads": 2,
    "versions": {"python": "3.11.7", "nexus_lab": "0.1.0", "llama-cpp-python": "0.3.36", "polars": "2.1.0"},
}
SETTINGS = {
    "name": "default",
    "k": 4.0,
    "m": 256,
    "r_base": 0.05,
    "tau": 0.0136,
    "top_k": 3,
    "schema_mode": "splice(bounded(0.02))",
    "repair": "leading",
    "repair_budget": 0.25,
    "policy": "rolling_drop",
    "keep_responses": 1,
    "repos": True,
    "shadow": True,
    "seed": 0,
    "temperature": 0.0,
    "max_tokens": 192,
    "threads": 2,
}


@dataclass
class Teller:
    """Tells events to an observer, on a clock that only moves when told."""

    observer: object
    now: int = EPOCH_NS
    last: int = 0
    stack: list[int] = field(default_factory=list)

    def wait(self, ms: float) -> None:
        self.now += round(ms * MS)

    @contextmanager
    def span(self, kind, name, *, status=Status.OK, contents=None, rows=None, end=True, **attributes):
        """Open a span; what is appended to the yielded dict's lists is reported at its end."""
        self.last += 1
        said = {
            "id": self.last,
            "parent": self.stack[-1] if self.stack else None,
            "kind": kind,
            "name": name,
            "start_ns": self.now,
        }
        late = {"status": status, "attributes": attributes, "contents": contents or {}, "rows": rows or []}
        self.observer.on_event(
            Event(
                **said,
                duration_ns=None,
                status=Status.RUNNING,
                attributes=attributes,
                contents=contents or {},
            )
        )
        self.stack.append(said["id"])
        yield late
        self.stack.pop()
        if end:
            late["rows"] = tuple(late["rows"])
            self.observer.on_event(Event(**said, duration_ns=self.now - said["start_ns"], **late))

    def step(self, kind, name, ms, *rows, **options):
        """Report a span of `ms` with nothing inside."""
        with self.span(kind, name, rows=list(rows), **options):
            self.wait(ms)

    def moment(self, kind, name, *rows, **options):
        """Report something without a length."""
        self.step(kind, name, 0, *rows, **options)


@dataclass
class Cache:
    """Just enough of a cache program to give ops their numbers."""

    positions: list[int] = field(default_factory=list)
    active: list[bool] = field(default_factory=list)
    next_position: int = 0
    count: int = 0
    state: str | None = None

    def row(self, op, tokens, ranges, positions, **extra):
        parent, self.count = self.state, self.count + 1
        self.state = f"s{self.count:02d}-{(self.count * 48271) % 65521:04x}"
        return OpRow(
            op=op,
            state_id=self.state,
            parent_state_id=parent,
            tokens=tokens,
            ranges=ranges,
            positions=positions,
            active_tokens=sum(self.active),
            logical_tokens=len(self.active),
            next_position=self.next_position,
            **extra,
        )

    def add(self, tokens, op=OpKind.APPEND, **extra):
        start, position = len(self.active), self.next_position
        self.positions += range(position, position + tokens)
        self.active += [True] * tokens
        self.next_position += tokens
        ids = tuple(range(100, 100 + tokens)) if op is not OpKind.REPAIR else None
        return self.row(
            op, tokens, ((start, start + tokens),), ((position, position + tokens),), token_ids=ids, **extra
        )

    def repair(self, start, tokens, **extra):
        position = self.positions[start]
        return self.row(
            OpKind.REPAIR, tokens, ((start, start + tokens),), ((position, position + tokens),), **extra
        )

    def drop(self, *ranges, **extra):
        for start, stop in ranges:
            self.active[start:stop] = [False] * (stop - start)
        return self.row(OpKind.DROP, sum(stop - start for start, stop in ranges), ranges, (), **extra)

    def repos(self, **extra):
        kept = [index for index, active in enumerate(self.active) if active]
        for position, index in enumerate(kept):
            self.positions[index] = position
        self.next_position = len(kept)
        return self.row(OpKind.REPOS, len(kept), _runs(kept), ((0, len(kept)),), **extra)


def _runs(indices):
    runs = []
    for index in indices:
        if runs and runs[-1][1] == index:
            runs[-1] = (runs[-1][0], index + 1)
        else:
            runs.append((index, index + 1))
    return tuple(runs)


def candidates(*scores):
    return tuple(
        Candidate(
            tool=tool, score=round(0.7 * dense + 0.3 * lexical, 4), dense=dense, lexical=lexical, view="name"
        )
        for tool, dense, lexical in scores
    )


def route(teller, row, *, contents_query):
    teller.step(EventKind.EMBEDDINGS, "embed the request", 3.1, model="all-MiniLM-L6-v2", dimensions=384)
    teller.step(
        EventKind.RETRIEVAL,
        "scan 71 tools",
        0.0176,
        registry="tickets",
        top_k=3,
        kernel="avx2",
        contents={"query": contents_query},
    )
    teller.moment(EventKind.GATE, f"gate: {row.decision}", row)


def drift(step, label, base):
    def value(layer, head):
        spread = (layer * 37 + head * 101 + step * 13) % 97 / 97
        return round(base * (0.4 + layer / 30) * (0.5 + spread), 4)

    values = [[value(layer, head) for head in range(3)] for layer in range(30)]
    values[4][2] = math.nan
    values[27][0] = base * 9
    return DriftFrame(step=step, label=label, tensor="k", measure="relative", values=values)


def settings(**changed):
    return {**{key: SETTINGS[key] for key in ("k", "tau", "top_k", "schema_mode", "policy")}, **changed}


def message(teller, role, text, **extra):
    teller.moment(EventKind.MESSAGE, role, MessageRow(role=role, text=text, n_tokens=len(text) // 4, **extra))
