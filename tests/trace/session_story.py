"""A realistic stream of events: a session that triages tickets, told on a clock of its own.

Six turns: a plain call with an anchored splice, a request that no tool fits, a declined splice, a turn that
drops and repositions before it splices, a tool that times out, and a turn that was stopped in prefill. What
tools and users write is hostile on purpose. `tell_long` repeats turns until there are enough events.
"""

from __future__ import annotations

import math
from contextlib import contextmanager
from dataclasses import dataclass, field

from nexus_lab.agent.base import (
    Candidate,
    DriftFrame,
    Event,
    EventKind,
    FidelityRow,
    MessageRow,
    OpKind,
    OpRow,
    RoutingRow,
    Status,
    TurnRow,
)
from nexus_lab.errors import Decline

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


def _candidates(*scores):
    return tuple(
        Candidate(
            tool=tool, score=round(0.7 * dense + 0.3 * lexical, 4), dense=dense, lexical=lexical, view="name"
        )
        for tool, dense, lexical in scores
    )


def _route(teller, row, *, contents_query):
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


def _drift(step, label, base):
    def value(layer, head):
        spread = (layer * 37 + head * 101 + step * 13) % 97 / 97
        return round(base * (0.4 + layer / 30) * (0.5 + spread), 4)

    values = [[value(layer, head) for head in range(3)] for layer in range(30)]
    values[4][2] = math.nan
    values[27][0] = base * 9
    return DriftFrame(step=step, label=label, tensor="k", measure="relative", values=values)


def _settings(**changed):
    return {**{key: SETTINGS[key] for key in ("k", "tau", "top_k", "schema_mode", "policy")}, **changed}


def _message(teller, role, text, **extra):
    teller.moment(EventKind.MESSAGE, role, MessageRow(role=role, text=text, n_tokens=len(text) // 4, **extra))


def tell_story(observer, *, through=6):
    """Tell the first `through` turns to `observer`; returns the teller."""
    teller, cache = Teller(observer), Cache()
    turns = (_plain_call, _no_tool, _declined_splice, _drop_and_repair, _tool_dies, _stopped)
    for tell in turns[:through]:
        tell(teller, cache)
        teller.wait(900)
    return teller


def _plain_call(teller, cache, *, turn=1):
    request = "What does ticket 482 in brightloom/orchard say?"
    routing = RoutingRow(
        query=request,
        candidates=_candidates(
            ("issue_read", 0.681, 0.74), ("find_duplicate", 0.622, 0.718), ("list_issues", 0.571, 0.49)
        ),
        margin=0.0481,
        tau=0.0136,
        decision="auto",
        tool="issue_read",
        reason="The margin of the two best scores, 0.0481, is over tau, 0.0136.",
        times_ms={"embed": 3.1, "scan": 0.018, "lexical": 0.12},
        settings={"top_k": 3},
    )
    result = (
        "Crash: checkout freezes after the address step when the postcode is empty. Seen on three tills "
        "since Monday. Opened by Mara Lind <mara.lind@brightloom.example>, nobody is assigned."
    )
    with teller.span(
        EventKind.TURN, f"turn {turn}", turn=turn, agent="tickets", contents={"request": request}
    ) as late:
        start = teller.now
        _message(teller, "user", request)
        _route(teller, routing, contents_query=request)
        teller.step(
            EventKind.CACHE_OP,
            "append system, user",
            196,
            cache.add(196, note="system, turn 1 user"),
            tokens=196,
        )
        with teller.span(
            EventKind.SPLICE, "issue_read.atb", block="issue_read.atb", tokens=211, n_past=196
        ) as splice:
            teller.step(
                EventKind.CACHE_OP,
                "splice issue_read.atb",
                9.8,
                cache.add(211, OpKind.SPLICE, block="issue_read.atb", anchored=True),
                tokens=211,
            )
            splice["rows"].append(
                FidelityRow(
                    path="anchored",
                    block="issue_read.atb",
                    tool="issue_read",
                    n_past=196,
                    n_tokens=211,
                    repaired=0,
                    strategy="none",
                    budget=0.0,
                    contract="exact",
                    dkl=0.0,
                    noise_floor=0.0052,
                    top1=1.0,
                    top5_overlap=1.0,
                    n_positions=211,
                    ttft_s=0.0126,
                    prefill_s=0.5171,
                )
            )
        ttft = (teller.now - start) / 1e9
        with teller.span(
            EventKind.ARGUMENTS, "issue_read", tool="issue_read", schema_mode="splice(exact)"
        ) as filled:
            teller.step(
                EventKind.GENERATE,
                "arguments",
                431,
                model=MODEL["name"],
                input_tokens=407,
                cached_tokens=211,
                output_tokens=27,
                stop_reason="stop",
                ttft_s=0.011,
            )
            filled["contents"] = {
                "arguments": {"owner": "brightloom", "repo": "orchard", "issue_number": 482}
            }
        arguments = {"owner": "brightloom", "repo": "orchard", "issue_number": 482}
        teller.step(
            EventKind.TOOL,
            "issue_read",
            540,
            tool="issue_read",
            server="tracker",
            call_id="c1",
            read_only=True,
            result_bytes=len(result),
            contents={"arguments": arguments, "result": result},
        )
        _message(teller, "tool", result, tool="issue_read", call_id="c1")
        teller.step(
            EventKind.CACHE_OP, "append result", 610, cache.add(480, note="turn 1 result"), tokens=480
        )
        answer = (
            "Checkout freezes after the address step when the postcode is empty; three tills since Monday."
        )
        teller.step(
            EventKind.GENERATE,
            "answer",
            742,
            model=MODEL["name"],
            input_tokens=914,
            cached_tokens=434,
            output_tokens=46,
            stop_reason="eos",
        )
        _message(teller, "assistant", answer)
        late["contents"] = {"request": request, "answer": answer}
        late["rows"].append(
            TurnRow(
                turn=turn,
                outcome="called",
                tool="issue_read",
                server="tracker",
                request=request,
                answer=answer,
                arguments=arguments,
                result=result,
                schema_mode="splice(exact)",
                ttft_s=ttft,
                prompt_tokens=887,
                reused_tokens=211,
                generated_tokens=73,
                times_ms={
                    "route": 3.2,
                    "prefill": 196.0,
                    "splice": 9.8,
                    "arguments": 431.0,
                    "tool": 540.0,
                    "answer": 1352.0,
                },
                settings=_settings(schema_mode="splice(exact)"),
            )
        )


def _no_tool(teller, cache, *, turn=2):
    request = "Find a pasta place near the office."
    routing = RoutingRow(
        query=request,
        candidates=_candidates(
            ("list_issues", 0.221, 0.0), ("search_files", 0.2137, 0.0), ("status_page", 0.203, 0.01)
        ),
        margin=0.0051,
        tau=0.0136,
        decision="no_tool",
        tool=None,
        reason="The best score, 0.1547, is under the abstention bound, 0.2200.",
        times_ms={"embed": 2.9, "scan": 0.017, "lexical": 0.1},
    )
    with teller.span(
        EventKind.TURN, f"turn {turn}", turn=turn, agent="tickets", contents={"request": request}
    ) as late:
        _message(teller, "user", request)
        _route(teller, routing, contents_query=request)
        teller.step(EventKind.CACHE_OP, "append user", 61, cache.add(24, note="turn 2 user"), tokens=24)
        answer = "None of the 71 tools can look up restaurants."
        teller.step(
            EventKind.GENERATE,
            "answer",
            684,
            model=MODEL["name"],
            input_tokens=938,
            cached_tokens=914,
            output_tokens=41,
            stop_reason="eos",
        )
        _message(teller, "assistant", answer)
        late["contents"] = {"request": request, "answer": answer}
        late["rows"].append(
            TurnRow(
                turn=turn,
                outcome="abstained",
                request=request,
                answer=answer,
                schema_mode=None,
                ttft_s=0.071,
                prompt_tokens=938,
                reused_tokens=914,
                generated_tokens=41,
                times_ms={"route": 3.0, "prefill": 61.0, "answer": 684.0},
                settings=_settings(),
            )
        )


def _declined_splice(teller, cache, *, turn=3):
    request = "Is there an older ticket about the same crash?"
    decline = Decline(
        "other_tokenizer", "The block was compiled by another tokenizer.", "prefilled 96 tokens"
    )
    routing = RoutingRow(
        query=request,
        candidates=_candidates(
            ("find_duplicate", 0.662, 0.71), ("issue_read", 0.641, 0.663), ("list_issues", 0.58, 0.5)
        ),
        margin=0.0287,
        tau=0.0136,
        decision="auto",
        tool="find_duplicate",
        reason="The margin of the two best scores, 0.0287, is over tau, 0.0136.",
        times_ms={"embed": 3.0, "scan": 0.018, "lexical": 0.13},
    )
    arguments = {"owner": "brightloom", "repo": "orchard", "issue_number": 482, "note": HOSTILE}
    result = (
        "467 “Basket hangs when the postcode is missing”, open since nine days earlier. "
        f"{HOSTILE} Token for the tracker: {LEAKED}"
    )
    with teller.span(
        EventKind.TURN, f"turn {turn}", turn=turn, agent="tickets", contents={"request": request}
    ) as late:
        _message(teller, "user", request)
        _route(teller, routing, contents_query=request)
        teller.moment(
            EventKind.DECLINE,
            "splice find_duplicate.atb",
            FidelityRow(
                path="prefill",
                block="find_duplicate.atb",
                tool="find_duplicate",
                n_past=1146,
                n_tokens=96,
                contract="bounded(0.02)",
                prefill_s=0.240,
                ttft_s=0.240,
                decline=decline,
            ),
            status=Status.DECLINED,
            code=decline.code,
            reason=decline.reason,
            instead=decline.instead,
        )
        teller.step(
            EventKind.PREFILL,
            "schema of find_duplicate",
            240,
            cache.add(96, note="find_duplicate schema"),
            tokens=96,
        )
        with teller.span(
            EventKind.ARGUMENTS, "find_duplicate", tool="find_duplicate", schema_mode="full"
        ) as filled:
            teller.step(
                EventKind.GENERATE,
                "arguments",
                435,
                model=MODEL["name"],
                input_tokens=1034,
                cached_tokens=938,
                output_tokens=27,
                stop_reason="stop",
            )
            filled["contents"] = {"arguments": arguments}
        teller.step(
            EventKind.TOOL,
            "find_duplicate",
            655,
            tool="find_duplicate",
            server="tracker",
            call_id="c2",
            read_only=True,
            result_bytes=len(result),
            contents={"arguments": arguments, "result": result},
        )
        _message(teller, "tool", result, tool="find_duplicate", call_id="c2")
        teller.step(
            EventKind.CACHE_OP, "append result", 430, cache.add(383, note="turn 3 result"), tokens=383
        )
        answer = (
            "Yes: 467, “Basket hangs when the postcode is missing”, opened nine days earlier and still open."
        )
        teller.step(
            EventKind.GENERATE,
            "answer",
            742,
            model=MODEL["name"],
            input_tokens=1417,
            cached_tokens=1034,
            output_tokens=46,
            stop_reason="eos",
        )
        _message(teller, "assistant", answer)
        late["contents"] = {"request": request, "answer": answer}
        late["rows"].append(
            TurnRow(
                turn=turn,
                outcome="called",
                tool="find_duplicate",
                server="tracker",
                request=request,
                answer=answer,
                arguments=arguments,
                result=result,
                schema_mode="full",
                ttft_s=0.2441,
                prompt_tokens=1417,
                reused_tokens=938,
                generated_tokens=73,
                times_ms={
                    "route": 3.1,
                    "prefill": 240.0,
                    "arguments": 435.0,
                    "tool": 655.0,
                    "answer": 1172.0,
                },
                settings=_settings(),
            )
        )


def _drop_and_repair(teller, cache, *, turn=4):
    request = "Close 482 as a duplicate of 467."
    routing = RoutingRow(
        query=request,
        candidates=_candidates(
            ("issue_write", 0.612, 0.58), ("find_duplicate", 0.604, 0.57), ("issue_read", 0.571, 0.49)
        ),
        margin=0.0086,
        tau=0.0136,
        decision="escalation_unavailable",
        tool="issue_write",
        reason=(
            "The margin of the two best scores, 0.0086, is under tau, 0.0136, "
            "and there is no cross-encoder to ask."
        ),
        times_ms={"embed": 3.1, "scan": 0.017, "lexical": 0.12},
    )
    arguments = {
        "method": "update",
        "owner": "brightloom",
        "repo": "orchard",
        "issue_number": 482,
        "state": "closed",
        "state_reason": "duplicate",
        "duplicate_of": 467,
    }
    with teller.span(
        EventKind.TURN, f"turn {turn}", turn=turn, agent="tickets", contents={"request": request}
    ) as late:
        start = teller.now
        _message(teller, "user", request)
        _route(teller, routing, contents_query=request)
        teller.step(
            EventKind.CACHE_OP,
            "drop 2 responses",
            0.2,
            cache.drop((407, 887), (1007, 1390), note="keep 1 response"),
            tokens=863,
        )
        teller.step(
            EventKind.CACHE_OP, "repos", 5.2, cache.repos(note="re-packed"), tokens=cache.next_position
        )
        teller.step(EventKind.CACHE_OP, "append user", 60, cache.add(24, note="turn 4 user"), tokens=24)
        with teller.span(
            EventKind.SPLICE,
            "issue_write.atb",
            block="issue_write.atb",
            tokens=431,
            n_past=cache.next_position,
        ) as splice:
            n_past = cache.next_position
            first = len(cache.active)
            teller.step(
                EventKind.CACHE_OP,
                "splice issue_write.atb",
                14.0,
                cache.add(431, OpKind.SPLICE, block="issue_write.atb", anchored=False),
                tokens=431,
            )
            teller.step(
                EventKind.REPAIR,
                "leading 25 %",
                270,
                cache.repair(first, 108, note="leading 25 %", block="issue_write.atb"),
                tokens=108,
                fraction=0.25,
            )
            splice["rows"] += [
                FidelityRow(
                    path="repaired",
                    block="issue_write.atb",
                    tool="issue_write",
                    n_past=n_past,
                    n_tokens=431,
                    repaired=108,
                    strategy="leading",
                    budget=0.25,
                    contract="bounded(0.02)",
                    dkl=0.0082,
                    noise_floor=0.0052,
                    top1=0.9907,
                    top5_overlap=0.962,
                    n_positions=431,
                    ttft_s=0.284,
                    prefill_s=1.078,
                ),
                _drift(2, "rotate", 0.11),
                _drift(8, "redecode 4/4", 0.03),
            ]
        ttft = (teller.now - start) / 1e9
        with teller.span(
            EventKind.ARGUMENTS, "issue_write", tool="issue_write", schema_mode="splice(bounded(0.02))"
        ) as filled:
            teller.step(
                EventKind.GENERATE,
                "arguments",
                613,
                model=MODEL["name"],
                input_tokens=1079,
                cached_tokens=947,
                output_tokens=38,
                stop_reason="stop",
            )
            filled["contents"] = {"arguments": arguments}
        teller.step(
            EventKind.TOOL,
            "issue_write",
            533,
            tool="issue_write",
            server="tracker",
            call_id="c3",
            read_only=False,
            result_bytes=2,
            contents={"arguments": arguments, "result": "ok"},
        )
        teller.step(EventKind.CACHE_OP, "append result", 55, cache.add(38, note="turn 4 call"), tokens=38)
        answer = "Ticket 482 is closed as a duplicate of 467."
        teller.step(
            EventKind.GENERATE,
            "answer",
            728,
            model=MODEL["name"],
            input_tokens=1117,
            cached_tokens=1079,
            output_tokens=44,
            stop_reason="eos",
        )
        _message(teller, "assistant", answer)
        late["contents"] = {"request": request, "answer": answer}
        late["rows"].append(
            TurnRow(
                turn=turn,
                outcome="called",
                tool="issue_write",
                server="tracker",
                request=request,
                answer=answer,
                arguments=arguments,
                result="ok",
                schema_mode="splice(bounded(0.02))",
                ttft_s=ttft,
                prompt_tokens=1117,
                reused_tokens=947,
                generated_tokens=82,
                times_ms={
                    "route": 3.2,
                    "cache": 65.4,
                    "splice": 284.0,
                    "arguments": 613.0,
                    "tool": 533.0,
                    "answer": 783.0,
                },
                settings=_settings(),
            )
        )


def _tool_dies(teller, cache, *, turn=5):
    request = "And who was on call that night?"
    routing = RoutingRow(
        query=request,
        candidates=_candidates(
            ("on_call", 0.71, 0.66), ("status_page", 0.52, 0.31), ("list_events", 0.51, 0.2)
        ),
        margin=0.238,
        tau=0.0136,
        decision="auto",
        tool="on_call",
        reason="The margin of the two best scores, 0.2380, is over tau, 0.0136.",
        times_ms={"embed": 3.0, "scan": 0.018, "lexical": 0.12},
    )
    arguments = {"date": "2025-11-24", "team": "tills"}
    with teller.span(
        EventKind.TURN, f"turn {turn}", turn=turn, agent="tickets", contents={"request": request}
    ) as late:
        _message(teller, "user", request)
        _route(teller, routing, contents_query=request)
        teller.step(
            EventKind.CACHE_OP,
            "append user, signature",
            122,
            cache.add(49, note="turn 5 user, signature"),
            tokens=49,
        )
        with teller.span(EventKind.ARGUMENTS, "on_call", tool="on_call", schema_mode="signature") as filled:
            teller.step(
                EventKind.GENERATE,
                "arguments",
                388,
                model=MODEL["name"],
                input_tokens=1166,
                cached_tokens=1117,
                output_tokens=21,
                stop_reason="stop",
            )
            filled["contents"] = {"arguments": arguments}
        teller.step(
            EventKind.TOOL,
            "on_call",
            10_000,
            tool="on_call",
            server="calendar",
            call_id="c4",
            read_only=True,
            status=Status.ERROR,
            error_type="ServerTimeout",
            contents={"arguments": arguments, "error": "calendar did not answer on_call within 10 s"},
        )
        late["status"] = Status.ERROR
        late["attributes"] = {"turn": turn, "agent": "tickets", "error_type": "ServerTimeout"}
        late["contents"] = {"request": request, "error": "calendar did not answer on_call within 10 s"}
        late["rows"].append(
            TurnRow(
                turn=turn,
                outcome="failed",
                tool="on_call",
                server="calendar",
                request=request,
                arguments=arguments,
                problem="ServerTimeout",
                schema_mode="signature",
                ttft_s=0.136,
                prompt_tokens=1166,
                reused_tokens=1117,
                generated_tokens=21,
                times_ms={"route": 3.1, "prefill": 122.0, "arguments": 388.0, "tool": 10_000.0},
                settings=_settings(schema_mode="signature"),
            )
        )


def _stopped(teller, _cache, *, turn=6):
    request = "Summarise the whole discussion of both tickets, every comment, word by word."
    with teller.span(
        EventKind.TURN, f"turn {turn}", turn=turn, agent="tickets", contents={"request": request}
    ) as late:
        _message(teller, "user", request)
        teller.step(
            EventKind.PREFILL,
            "user",
            812,
            tokens=32,
            n_past=1166,
            status=Status.CANCELLED,
            error_type="Cancelled",
        )
        late["status"] = Status.CANCELLED
        late["rows"].append(
            TurnRow(
                turn=turn,
                outcome="cancelled",
                request=request,
                problem="Cancelled",
                schema_mode="signature",
                prompt_tokens=1166,
                reused_tokens=1166,
                times_ms={"prefill": 812.0},
                settings=_settings(),
            )
        )


def tell_long(observer, *, events):
    """Repeat turns until at least `events` spans were told; returns the teller."""
    teller, turn = Teller(observer), 0
    while teller.last < events:
        cache = Cache()
        for tell in (_plain_call, _no_tool, _declined_splice, _drop_and_repair, _tool_dies):
            turn += 1
            tell(teller, cache, turn=turn)
            teller.wait(40)
    return teller
