"""A small MCP server in raw JSON-RPC over stdio, that misbehaves as its first argument says."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time

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
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def text(value: str, *, error: bool = False) -> dict:
    return {"content": [{"type": "text", "text": value}], "isError": error}


def hang() -> None:
    time.sleep(3600)


def call(request: int, arguments: dict) -> None:
    said = arguments.get("text", "")
    if said == "hang":
        hang()
    elif said == "slow":
        time.sleep(0.6)
    elif said == "die":
        print("fatal: the disk is on fire \x1b[31m", file=sys.stderr, flush=True)
        os._exit(7)
    elif said == "kill":
        os.kill(os.getpid(), 9)
    elif said == "huge":
        send({"id": request, "result": text("x" * 3_000_000)})
        return
    elif said == "endless":
        sys.stdout.write('{"jsonrpc":"2.0","id":%d,"result":"' % request)
        while True:
            sys.stdout.write("y" * 65536)
    elif said == "noise":
        for number in range(200_000):
            print("progress", number)
    elif said == "chatter":
        print("just saying")
    elif said == "broken":
        print('{"jsonrpc":"2.0","id":%d,"result":{]}' % request, flush=True)
        return
    elif said == "wrong":
        send({"id": request, "result": {"content": "no list"}})
        return
    elif said == "fail":
        send({"id": request, "result": text("no such file", error=True)})
        return
    elif said == "refuse":
        send({"id": request, "error": {"code": -32602, "message": "unknown tool \x1b[2J"}})
        return
    elif said == "pid":
        said = str(os.getpid())
    elif said == "env":
        said = json.dumps(dict(os.environ))
    elif said == "leak":
        print("the key is", os.environ["API_KEY"], file=sys.stderr, flush=True)
        os._exit(3)
    send({"id": request, "result": text(said)})


def start() -> None:
    if MODE == "exit":
        print("first line\nmissing --token", file=sys.stderr, flush=True)
        sys.exit(3)
    elif MODE == "hang":
        hang()
    elif MODE == "deaf":
        hang()
    elif MODE == "flood":
        while True:
            print("this is not JSON" * 50)
    elif MODE == "banner":
        print("Welcome to the server!\n")
    elif MODE == "text":
        print("usage: server [options]")
        sys.exit(0)
    elif MODE == "stubborn":
        import signal

        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    elif MODE == "parent":
        # A child that keeps the pipes open and outlives us if nobody ends the group.
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"])
        with open(sys.argv[2], "w") as file:
            file.write(str(child.pid))


def pages(params: dict) -> dict:
    if MODE != "pages":
        return {"tools": TOOLS}
    page = int(params.get("cursor") or 0)
    tools = [{**TOOLS[0], "name": f"echo_{page}_{index}"} for index in range(3)]
    return {"tools": tools, **({"nextCursor": str(page + 1)} if page < 2 else {})}


def main() -> None:
    start()
    for line in sys.stdin:
        message = json.loads(line)
        method, request = message.get("method"), message.get("id")
        params = message.get("params") or {}
        if method == "initialize":
            version = params["protocolVersion"]
            send(
                {
                    "id": request,
                    "result": {
                        "protocolVersion": version,
                        "capabilities": {"tools": {}},
                        "serverInfo": {"name": "raw", "version": "1"},
                    },
                }
            )
        elif method == "tools/list":
            if MODE == "listhang":
                hang()
            result = pages(params)
            if MODE == "badlist":
                result = {"tools": [{"name": 5}]}
            send({"id": request, "result": result})
        elif method == "tools/call":
            call(request, params.get("arguments") or {})
        elif method == "ping":
            send({"id": request, "result": {}})
        elif request is not None:
            send({"id": request, "error": {"code": -32601, "message": "Method not found"}})
    if MODE == "stubborn":
        hang()


main()
