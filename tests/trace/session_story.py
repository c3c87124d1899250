"""A realistic stream of events: a session that triages tickets, told on a clock of its own.

Six turns: a plain call with an anchored splice, a request that no tool fits, a declined splice, a turn that
drops and repositions before it splices, a tool that times out, and a turn that was stopped in prefill. What
tools and users write is hostile on purpose. `tell_long` repeats turns until there are enough events.
"""

from __future__ import annotations

from session_teller import (
    MODEL,
    Cache,
    Teller,
    candidates,
    message,
    route,
    settings,
)
from splice_turns import declined_splice, drop_and_repair

from nexus_lab.agent.base import (
    EventKind,
    FidelityRow,
    OpKind,
    RoutingRow,
    Status,
    TurnRow,
)


def tell_story(observer, *, through=6):
    """Tell the first `through` turns to `observer`; returns the teller."""
    teller, cache = Teller(observer), Cache()
    turns = (_plain_call, _no_tool, declined_splice, drop_and_repair, _tool_dies, _stopped)
    for tell in turns[:through]:
        tell(teller, cache)
        teller.wait(900)
    return teller


def _plain_call(teller, cache, *, turn=1):
    request = "What does ticket 482 in brightloom/orchard say?"
    routing = RoutingRow(
        query=request,
        candidates=candidates(
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
        message(teller, "user", request)
        route(teller, routing, contents_query=request)
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
        message(teller, "tool", result, tool="issue_read", call_id="c1")
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
        message(teller, "assistant", answer)
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
                settings=settings(schema_mode="splice(exact)"),
            )
        )


def _no_tool(teller, cache, *, turn=2):
    request = "Find a pasta place near the office."
    routing = RoutingRow(
        query=request,
        candidates=candidates(
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
        message(teller, "user", request)
        route(teller, routing, contents_query=request)
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
        message(teller, "assistant", answer)
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
                settings=settings(),
            )
        )


def _tool_dies(teller, cache, *, turn=5):
    request = "And who was on call that night?"
    routing = RoutingRow(
        query=request,
        candidates=candidates(
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
        message(teller, "user", request)
        route(teller, routing, contents_query=request)
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
                settings=settings(schema_mode="signature"),
            )
        )


def _stopped(teller, _cache, *, turn=6):
    request = "Summarise the whole discussion of both tickets, every comment, word by word."
    with teller.span(
        EventKind.TURN, f"turn {turn}", turn=turn, agent="tickets", contents={"request": request}
    ) as late:
        message(teller, "user", request)
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
                settings=settings(),
            )
        )


def tell_long(observer, *, events):
    """Repeat turns until at least `events` spans were told; returns the teller."""
    teller, turn = Teller(observer), 0
    while teller.last < events:
        cache = Cache()
        for tell in (_plain_call, _no_tool, declined_splice, drop_and_repair, _tool_dies):
            turn += 1
            tell(teller, cache, turn=turn)
            teller.wait(40)
    return teller
