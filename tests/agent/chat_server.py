"""A server of the OpenAI chat API over the bundled model, that misbehaves as the model's name says.

``smol`` answers as it should; ``smol+no_tools+no_usage`` and so on leave things out; a name that is in
`MISBEHAVIOURS` does that instead, with ``+once`` only the first time. What it was asked, and what became of
it, is told under ``/log``.
"""

from __future__ import annotations

import json
import select
import socket
import sys
import threading
import time
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from llguidance import LLMatcher

from nexus_lab.engine import Engine, GrammarMask, SamplerSettings

LOG: list[dict] = []
SCRIPT: list[dict] = []
GENERATING = threading.Lock()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    engine: Engine

    def handle(self):
        with suppress(ConnectionResetError):
            super().handle()

    def log_message(self, *_arguments):
        """Say nothing."""

    def do_GET(self):
        self.whole(LOG)

    def do_PUT(self):
        SCRIPT[:] = self.body()
        LOG.clear()
        self.whole([])

    def do_POST(self):
        body = self.body()
        entry = {"path": self.path, "key": self.headers["Authorization"], "body": body, "ended": ""}
        LOG.append(entry)
        name, *flaws = body["model"].split("+")
        try:
            misbehave = MISBEHAVIOURS.get(name)
            if misbehave is not None and not ("once" in flaws and len(LOG) > 1):
                misbehave(self, entry)
            elif not self.refuses(body, flaws):
                self.answer(body, flaws)
            entry["ended"] = entry["ended"] or "answered"
        except (BrokenPipeError, ConnectionResetError):
            entry["ended"] = "closed"
            self.close_connection = True

    # -- what is right ------------------------------------------------------------------------------------

    def body(self):
        return json.loads(self.rfile.read(int(self.headers["Content-Length"])))

    def whole(self, value, status=200, *, text=None, kind="application/json", **headers):
        data = (json.dumps(value) if text is None else text).encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        for header, content in headers.items():
            self.send_header(header.replace("_", "-"), content)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def error(self, status, message, **headers):
        self.whole({"error": {"message": message, "type": "error", "code": None}}, status, **headers)

    def open_stream(self, *, chunked=True):
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        if chunked:
            self.send_header("Transfer-Encoding", "chunked")
        else:
            self.send_header("Connection", "close")
        self.end_headers()
        self.chunked = chunked

    def line(self, text):
        data = f"{text}\n\n".encode()
        self.wfile.write(b"%x\r\n%b\r\n" % (len(data), data) if self.chunked else data)
        self.wfile.flush()

    def delta(self, delta, finish=None):
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        self.line("data: " + json.dumps({"object": "chat.completion.chunk", "choices": [choice]}))

    def refuses(self, body, flaws):
        form = body.get("tools") or body.get("response_format")
        called = any(message.get("tool_calls") for message in body["messages"])
        refusals = {
            "no_tools": ("tools" in body or called, 400, "tools are not supported by this model"),
            "no_jinja": ("tools" in body or called, 500, "tools param requires --jinja flag"),
            "picky": (
                form is not None and "hello" in json.dumps(form),
                400,
                "Invalid schema for function 'echo': enum is not supported",
            ),
            "no_required": (body.get("tool_choice") == "required", 400, "tool_choice must be auto or named"),
            "mute_tools": ("tools" in body or called, 422, "unprocessable"),
            "no_schema": ("response_format" in body, 400, "response_format is not supported"),
            "no_json_schema": (
                body.get("response_format", {}).get("type") == "json_schema",
                500,
                "Input should be 'text' or 'json_object' (response_format)",
            ),
            "no_tool_messages": (called, 422, "unprocessable"),
            "no_null": (
                any(message.get("content") is None for message in body["messages"]),
                500,
                "7 validation errors: role: Input should be 'system'",
            ),
            "no_options": ("stream_options" in body, 400, "unknown field stream_options"),
            "no_streaming": (body.get("stream", False), 400, "Streaming is not supported"),
            "no_seed": ("seed" in body, 400, "Unsupported parameter: 'seed'"),
            "new_limit": ("max_tokens" in body, 400, "Use 'max_completion_tokens' in place of 'max_tokens'"),
        }
        for flaw in flaws:
            applies, status, message = refusals.get(flaw, (False, 0, ""))
            if applies:
                self.error(status, message)
                return True
        return False

    def answer(self, body, flaws):
        ignored = "ignores_tools" in flaws or (
            "ignores_required" in flaws and body.get("tool_choice") == "required"
        )
        tools = [] if ignored else body.get("tools", [])
        form = None if "ignores_schema" in flaws else body.get("response_format")
        schema = (form.get("json_schema") or form)["schema"] if form else None
        name = None
        if tools:
            choice = body["tool_choice"]
            name = tools[0]["function"]["name"] if choice == "required" else choice["function"]["name"]
            function = next(tool["function"] for tool in tools if tool["function"]["name"] == name)
            schema = function["parameters"]
        stream = body.get("stream", False) and "no_stream" not in flaws
        told = Teller(self, name, stream=stream)
        if SCRIPT:
            script = SCRIPT.pop(0)
            told.name = script.get("call")
            usage = {"prompt_tokens": 1, "completion_tokens": 1}
            for character in script["text"]:
                told.piece(character)
            reason = script.get("reason", "stop")
        else:
            usage, reason = self.generate(body, schema, tools, told.piece)
        told.end(reason, None if "no_usage" in flaws else usage)

    def generate(self, body, schema, tools, tell):
        engine = self.engine
        prompt = engine.tokenize(engine.render_chat(flat(body["messages"], tools)))
        limit = body.get("max_tokens", body.get("max_completion_tokens", 64))
        with GENERATING, engine.scratch_sequence() as seq:
            logits = engine.prefill(seq, prompt)
            mask = None
            if schema is not None:
                mask = GrammarMask(engine, LLMatcher.grammar_from_json_schema(json.dumps(schema)))
            made = engine.generate(
                seq,
                logits,
                max_tokens=limit,
                mask=mask,
                on_token=tell,
                sampler=SamplerSettings(temperature=body.get("temperature", 0), seed=body.get("seed", 0)),
            )
        usage = {
            "prompt_tokens": len(prompt),
            "completion_tokens": len(made.tokens),
            "prompt_tokens_details": {"cached_tokens": 0},
        }
        return usage, "length" if len(made.tokens) >= limit else "stop"

    # -- what is not --------------------------------------------------------------------------------------

    def wait_for_the_client_to_leave(self, entry):
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            readable = select.select([self.connection], [], [], 0.02)[0]
            if readable and not self.connection.recv(1, socket.MSG_PEEK):
                entry["ended"] = "closed"
                break
        self.close_connection = True

    def hang_up(self):
        self.connection.shutdown(socket.SHUT_RDWR)
        self.close_connection = True

    def hangs(self, entry):
        self.wait_for_the_client_to_leave(entry)

    def hangs_in_the_middle(self, entry):
        self.open_stream()
        self.delta({"content": "half a"})
        self.wait_for_the_client_to_leave(entry)

    def keeps_alive(self, _entry):
        self.open_stream()
        while True:
            self.line(": still here")
            time.sleep(0.05)

    def dies(self, _entry):
        self.open_stream()
        self.delta({"content": "half a"})
        self.hang_up()

    def dies_quietly(self, _entry):
        self.open_stream(chunked=False)
        self.delta({"content": "half a"})
        self.hang_up()

    def dies_at_once(self, _entry):
        self.hang_up()

    def fails_in_the_middle(self, _entry):
        self.open_stream()
        self.delta({"content": "half a"})
        self.line('data: {"error": {"message": "the GPU is on fire \\u001b[2J", "code": 500}}')
        self.hang_up()

    def malformed(self, _entry):
        self.open_stream()
        self.line('data: {"choices": [{"delta": ')
        self.hang_up()

    def repeats_the_key(self, entry):
        self.error(401, f"Incorrect API key provided: {entry['key']}")

    def floods(self, _entry):
        self.open_stream()
        while True:
            self.delta({"content": "x" * 500_000})


def flat(messages, tools):
    """Return messages of a chat template that knows neither tools nor calls."""
    texts = []
    for message in messages:
        content = message.get("content") or ""
        for call in message.get("tool_calls", ()):
            content += json.dumps(call["function"])
        texts.append({"role": message["role"], "content": content})
    if tools:
        texts[0]["content"] += "\nTools: " + json.dumps(tools)
    return texts


class Teller:
    """Writes one answer, in pieces or whole."""

    def __init__(self, handler, name, *, stream):
        self.handler, self.name, self.stream, self.pieces = handler, name, stream, []

    def piece(self, text):
        if not self.pieces and self.stream:
            self.handler.open_stream()
            self.handler.delta({"role": "assistant", "content": None})
        first, self.pieces = not self.pieces, [*self.pieces, text]
        if self.stream:
            self.handler.delta(self.part(text, first=first))

    def part(self, text, *, first):
        if self.name is None:
            return {"content": text}
        named = {"name": self.name} if first else {}
        call = {"index": 0, "type": "function", "function": {**named, "arguments": text}}
        return {"tool_calls": [{**call, **({"id": "call_1"} if first else {})}]}

    def end(self, reason, usage):
        if not self.stream:
            message = {"role": "assistant", **self.part("".join(self.pieces), first=True)}
            whole = {"choices": [{"index": 0, "message": message, "finish_reason": reason}]}
            self.handler.whole(whole | ({"usage": usage} if usage else {}))
            return
        if not self.pieces:
            self.handler.open_stream()
        self.handler.delta({}, reason)
        if usage:
            self.handler.line("data: " + json.dumps({"choices": [], "usage": usage}))
        self.handler.line("data: [DONE]")
        self.handler.wfile.write(b"0\r\n\r\n")


MISBEHAVIOURS = {
    "hangs": Handler.hangs,
    "hangs_in_the_middle": Handler.hangs_in_the_middle,
    "keeps_alive": Handler.keeps_alive,
    "dies": Handler.dies,
    "dies_quietly": Handler.dies_quietly,
    "dies_at_once": Handler.dies_at_once,
    "fails_in_the_middle": Handler.fails_in_the_middle,
    "malformed": Handler.malformed,
    "repeats_the_key": Handler.repeats_the_key,
    "floods": Handler.floods,
    "forbidden": lambda self, _entry: self.error(401, "no key, no answer"),
    "unknown": lambda self, _entry: self.error(404, "The model `unknown` does not exist"),
    "busy": lambda self, _entry: self.error(429, "slow down", Retry_After="7"),
    "loading": lambda self, _entry: self.error(503, "Loading model"),
    "broken": lambda self, _entry: self.error(500, "internal error"),
    "full": lambda self, _entry: self.error(400, "This model's maximum context length is 512 tokens"),
    "wrong": lambda self, _entry: self.error(400, "bad request"),
    "elsewhere": lambda self, _entry: self.whole({}, 302, Location="http://127.0.0.1:1/v1"),
    "page": lambda self, _entry: self.whole(None, text="<html>welcome</html>", kind="text/html"),
    "empty": lambda self, _entry: self.whole({"choices": []}),
    "packed": lambda self, _entry: self.whole(None, text="xx", Content_Encoding="gzip"),
}


def main() -> None:
    with Engine.load(n_ctx=2048, threads=1) as engine:
        Handler.engine = engine
        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        sys.stdout.write(f"{server.server_port}\n")
        sys.stdout.flush()
        threading.Thread(target=lambda: (sys.stdin.read(), server.shutdown()), daemon=True).start()
        server.serve_forever(0.05)
        server.server_close()


if __name__ == "__main__":
    main()
