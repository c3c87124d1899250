"""A small MCP server in raw JSON-RPC over stdio, that misbehaves as its first argument says."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

FRESH = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"}
MODE = sys.argv[1] if len(sys.argv) > 1 else "good"
TOOLS = [
    {
        "name": "echo",
        "description": "Say it again",
        "inputSchema": {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]},
        "annotations": {"readOnlyHint": True},
    }
]


def send(message: dict) -> None:
    write(json.dumps({"jsonrpc": "2.0", **message}))


def text(value: str, *, error: bool = False) -> dict:
    fresh = {"resultType": "complete"} if MODE == "modern" else {}
    return {"content": [{"type": "text", "text": value}], "isError": error, **fresh}


def hang() -> None:
    time.sleep(3600)


def write(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def complain(line: str) -> None:
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


def die(_request: int) -> None:
    complain("fatal: the disk is on fire \x1b[31m")
    os._exit(7)


def leak(_request: int) -> None:
    complain(f"the key is {os.environ['API_KEY']}")
    os._exit(3)


def endless(request: int) -> None:
    sys.stdout.write(f'{{"jsonrpc":"2.0","id":{request},"result":"')
    while True:
        sys.stdout.write("y" * 65536)


def noise(_request: int) -> None:
    for number in range(200_000):
        write(f"progress {number}")


# What a call does instead of an answer, by the text that it brings.
INSTEAD = {
    "hang": lambda _request: hang(),
    "die": die,
    "leak": leak,
    "kill": lambda _request: os.kill(os.getpid(), 9),
    "endless": endless,
    "noise": noise,
    "huge": lambda request: send({"id": request, "result": text("x" * 3_000_000)}),
    "broken": lambda request: write(f'{{"jsonrpc":"2.0","id":{request},"result":{{]}}'),
    "wrong": lambda request: send({"id": request, "result": {"content": "no list"}}),
    "fail": lambda request: send({"id": request, "result": text("no such file", error=True)}),
    "refuse": lambda request: send(
        {"id": request, "error": {"code": -32602, "message": "unknown tool \x1b[2J"}}
    ),
}

# Calls that are answered late: when the next message has come, which is after the client gave them up.
LATE: list[int] = []
INSTEAD["slow"] = LATE.append

# What a call says, where that is more than what it was told.
ANSWERS = {
    "chatter": lambda: write("just saying") or "chatter",
    "pid": lambda: str(os.getpid()),
    "env": lambda: json.dumps(dict(os.environ)),
}


def call(request: int, arguments: dict) -> None:
    said = arguments.get("text", "")
    if said in INSTEAD:
        INSTEAD[said](request)
    else:
        send({"id": request, "result": text(ANSWERS.get(said, lambda: said)())})


def exit_at_once(*lines: str, code: int) -> None:
    for line in lines:
        (complain if code else write)(line)
    sys.exit(code)


def flood() -> None:
    while True:
        write("this is not JSON" * 50)


def have_child() -> None:
    """Start a child that keeps the pipes open and outlives us if nobody ends the group."""
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"])
    Path(sys.argv[2]).write_text(str(child.pid))


START = {
    "exit": lambda: exit_at_once("first line", "missing --token", code=3),
    "text": lambda: exit_at_once("usage: server [options]", code=0),
    "hang": hang,
    "flood": flood,
    "banner": lambda: write("Welcome to the server!\n"),
    "stubborn": lambda: signal.signal(signal.SIGTERM, signal.SIG_IGN),
    "parent": have_child,
}


def pages(params: dict) -> dict:
    if MODE != "pages":
        return {"tools": TOOLS, **(FRESH if MODE == "modern" else {})}
    page = int(params.get("cursor") or 0)
    tools = [{**TOOLS[0], "name": f"echo_{page}_{index}"} for index in range(3)]
    return {"tools": tools, **({"nextCursor": str(page + 1)} if page < 2 else {})}


def refuse(request: int) -> None:
    send({"id": request, "error": {"code": -32601, "message": "Method not found"}})


def initialize(request: int, params: dict) -> None:
    facts = {"capabilities": {"tools": {}}, "serverInfo": {"name": "raw", "version": "1"}}
    send({"id": request, "result": {"protocolVersion": params["protocolVersion"], **facts}})


def discover(request: int, _params: dict) -> None:
    found = {"supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}}
    send({"id": request, "result": {**found, **FRESH}})


def list_tools(request: int, params: dict) -> None:
    if MODE == "listhang":
        hang()
    send({"id": request, "result": {"tools": [{"name": 5}]} if MODE == "badlist" else pages(params)})


METHODS = {
    "tools/list": list_tools,
    "tools/call": lambda request, params: call(request, params.get("arguments") or {}),
}
if MODE == "modern":  # a server that knows only the protocol without a handshake
    METHODS["server/discover"] = discover
else:
    METHODS["initialize"] = initialize
    METHODS["ping"] = lambda request, _params: send({"id": request, "result": {}})


def main() -> None:
    START.get(MODE, lambda: None)()
    for line in sys.stdin:
        message = json.loads(line)
        while LATE:
            send({"id": LATE.pop(), "result": text("slow")})
        method, request = message.get("method"), message.get("id")
        if method in METHODS:
            METHODS[method](request, message.get("params") or {})
        elif request is not None:
            refuse(request)
    if MODE == "stubborn":
        hang()


main()
