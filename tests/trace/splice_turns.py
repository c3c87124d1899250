"""The turns of the story in which a block is spliced, or is not."""

from __future__ import annotations

from session_teller import (
    HOSTILE,
    LEAKED,
    MODEL,
    candidates,
    drift,
    message,
    route,
    settings,
)

from nexus_lab.agent.base import (
    EventKind,
    FidelityRow,
    OpKind,
    RoutingRow,
    Status,
    TurnRow,
)
from nexus_lab.errors import Decline


def declined_splice(teller, cache, *, turn=3):
    request = "Is there an older ticket about the same crash?"
    decline = Decline(
        "other_tokenizer", "The block was compiled by another tokenizer.", "prefilled 96 tokens"
    )
    routing = RoutingRow(
        query=request,
        candidates=candidates(
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
        message(teller, "user", request)
        route(teller, routing, contents_query=request)
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
        message(teller, "tool", result, tool="find_duplicate", call_id="c2")
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
        message(teller, "assistant", answer)
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
                settings=settings(),
            )
        )


def drop_and_repair(teller, cache, *, turn=4):
    request = "Close 482 as a duplicate of 467."
    routing = RoutingRow(
        query=request,
        candidates=candidates(
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
        message(teller, "user", request)
        route(teller, routing, contents_query=request)
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
                drift(2, "rotate", 0.11),
                drift(8, "redecode 4/4", 0.03),
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
        message(teller, "assistant", answer)
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
                settings=settings(),
            )
        )
