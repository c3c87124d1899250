"""An endpoint of this machine that answers what it is told, over real HTTP."""

from __future__ import annotations

import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Scripted:
    """Its address, and what it was asked."""

    def __init__(self, port, answers) -> None:
        self.url = f"http://127.0.0.1:{port}/v1"
        self.answers = list(answers)
        self.headers, self.bodies = [], []


@contextmanager
def scripted(*answers):
    """Yield an endpoint that gives these answers in turn: ``events``, ``json``, ``text``, ``status``."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            told.bodies.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            told.headers.append(dict(self.headers))
            answer = told.answers.pop(0)
            kind, text = "application/json", answer.get("text", json.dumps(answer.get("json")))
            if "events" in answer:
                kind = "text/event-stream"
                lines = [*map(json.dumps, answer["events"]), "[DONE]"]
                text = "".join(f"data: {line}\n\n" for line in lines)
            self.send_response(answer.get("status", 200))
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(text.encode())))
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_arguments):
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    told = Scripted(server.server_port, answers)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield told
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
