"""What tests of the workbench share: an embedder without a model, a tool, a view that is slow, requests."""

from __future__ import annotations

import hashlib
import re
import sys
import threading
import time

import numpy as np
from echo_tool import RAW_SERVER
from waiting import eventually  # noqa: F401 - the room's tests take it from here

from nexus_lab.registry import ServerConfig, ToolSpec


class WordEmbedder:
    """Sums a fixed random vector for each word: texts that share words are near each other."""

    name = "words"
    fingerprint = "lab-words-1"
    dim = 384
    query_prefix = document_prefix = ""

    def embed_queries(self, texts):
        return self._embed(texts)

    def embed_documents(self, texts):
        return self._embed(texts)

    def _embed(self, texts):
        return (
            np.stack([self._vector(text) for text in texts]) if texts else np.zeros((0, self.dim), np.float32)
        )

    def _vector(self, text):
        total = np.full(self.dim, 1e-3)
        for word in re.findall(r"\w+", text.lower()):
            seed = int.from_bytes(hashlib.sha256(word.encode()).digest()[:4], "little")
            total += np.random.default_rng(seed).standard_normal(self.dim)
        return (total / np.linalg.norm(total)).astype(np.float32)


def raw_config(name: str = "raw", mode: str = "good") -> ServerConfig:
    """A server that misbehaves as `mode` says."""
    return ServerConfig(name, sys.executable, (str(RAW_SERVER), mode))


def tool(name: str, description: str = "", *, server: str | None = None, **properties: object) -> ToolSpec:
    return ToolSpec(name, description, {"type": "object", "properties": properties}, server=server)


class Asker:
    """Sends requests to a desk and waits for the replies."""

    def __init__(self, desk) -> None:
        self.desk = desk

    def __call__(self, method: str, **params):
        """Return the result, or raise what came in its place."""
        answer = self.later(method, **params)()
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def later(self, method: str, **params):
        """Send a request; the value returned waits for its reply and gives it."""
        arrived, box = threading.Event(), []

        def reply(answer) -> None:
            box.append(answer)
            arrived.set()

        self.desk.handle(method, params, reply)

        def get():
            assert arrived.wait(240), f"{method} was never answered"
            return box[0]

        return get


class View:
    """A view that keeps what it gets; it acknowledges only when told to."""

    def __init__(self) -> None:
        self.messages: list[dict] = []
        self.buffers: list[list] = []
        self.link = None
        self.at: list[float] = []

    def send(self, message, buffers) -> None:
        self.at.append(time.monotonic())
        self.messages.append(message)
        self.buffers.append(buffers)

    @property
    def parts(self) -> list[dict]:
        return [message for message in self.messages if message["kind"] == "parts"]

    def ack(self) -> None:
        self.link.receive({"kind": "ack", "revision": self.parts[-1]["revision"]})
