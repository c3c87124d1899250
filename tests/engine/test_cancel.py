from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from nexus_lab.engine import Engine
from nexus_lab.errors import Cancelled

ABORTED = 2  # what llama_decode says of a graph that it did not go through
TRIES = 20  # on a busy machine the graph may have ended before the one who stops it gets his turn


@pytest.mark.model
@pytest.mark.parametrize("name", ["smol", "flash"])
def test_a_prefill_stops_inside_a_graph_and_leaves_no_trace(
    name: str, story: np.ndarray, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
):
    engine: Engine = request.getfixturevalue(name)
    seq = engine.acquire_sequence()
    engine.prefill(seq, story[:20], logits="none")
    began = time.perf_counter()
    expected = engine.prefill(seq, story[20:150])
    whole = time.perf_counter() - began
    said = _note_what_decodes_say(engine, monkeypatch)
    for _ in range(TRIES):
        engine.remove(seq, 20)
        timer = threading.Timer(whole / 4, engine.cancel)
        timer.start()
        with contextlib.suppress(Cancelled):
            engine.prefill(seq, story[20:150])
        timer.join()
        if said[-1] == ABORTED:
            break
    assert said[-1] == ABORTED
    assert (engine.pos_max(seq), engine._runtime.context.pos_max(seq), engine.used_cells()) == (19, 19, 20)
    np.testing.assert_array_equal(engine.prefill(seq, story[20:150]), expected)


def _note_what_decodes_say(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    said: list[int] = []
    decode = engine._runtime.context.decode

    def noted(*arguments: object) -> int:
        said.append(decode(*arguments))
        return said[-1]

    monkeypatch.setattr(engine._runtime.context, "decode", noted)
    return said


def test_a_request_lasts_for_the_turn_and_no_longer(tiny: Engine, tiny_tokens: np.ndarray):
    assert not tiny.cancel(), "there is no turn to stop"
    seq = tiny.acquire_sequence()
    with tiny.turn():
        tiny.prefill(seq, tiny_tokens[:10])
        assert tiny.cancel()
        for _ in range(2):
            with pytest.raises(Cancelled):
                tiny.prefill(seq, tiny_tokens[:10])
        tiny.remove(seq, 5)
    tiny.prefill(seq, tiny_tokens[:10])
    assert tiny.positions(seq).tolist() == list(range(15))


def test_a_cancelled_generation_leaves_the_sequence_as_it_was(tiny: Engine, tiny_tokens: np.ndarray):
    seq = tiny.acquire_sequence()
    logits = tiny.prefill(seq, tiny_tokens[:20])
    expected = tiny.generate(seq, logits, max_tokens=12)
    tiny.remove(seq, 20)
    seen: list[str] = []

    def stop_soon(text: str) -> None:
        seen.append(text)
        if len(seen) == 3:
            tiny.cancel()

    with pytest.raises(Cancelled):
        tiny.generate(seq, logits, max_tokens=60, on_token=stop_soon)
    assert (len(seen), tiny.pos_max(seq), tiny.used_cells()) == (3, 19, 20)
    assert tiny.generate(seq, logits, max_tokens=12).tokens == expected.tokens


INTERRUPTED = """
import os, signal, sys, threading, time
import numpy as np
from nexus_lab.engine import Engine
engine = Engine.load(n_ctx=1024, threads=1)
tokens = np.arange(1000, 1150)
seq = engine.acquire_sequence()
engine.prefill(seq, tokens[:20], logits="none")
began = time.perf_counter()
expected = engine.prefill(seq, tokens[20:])
whole = time.perf_counter() - began
context, said = engine._runtime.context, []
decode = context.decode
context.decode = lambda *arguments: said.append(decode(*arguments)) or said[-1]
for _ in range(int(sys.argv[1])):
    engine.remove(seq, 20)
    try:
        threading.Timer(whole / 4, os.kill, (os.getpid(), signal.SIGINT)).start()
        engine.prefill(seq, tokens[20:])
        time.sleep(600)  # the prefill has ended before the interruption came
    except KeyboardInterrupt:
        if said[-1] == int(sys.argv[2]):
            break
print(said[-1], flush=True)
print(engine.pos_max(seq), engine._runtime.context.pos_max(seq), engine.used_cells(), flush=True)
print("equal" if np.array_equal(engine.prefill(seq, tokens[20:]), expected) else "differs", flush=True)
"""


@pytest.mark.model
def test_ctrl_c_stops_a_prefill_and_the_context_goes_on():
    command = [sys.executable, "-c", INTERRUPTED, str(TRIES), str(ABORTED)]
    found = subprocess.run(command, capture_output=True, text=True, check=True)
    assert found.stdout.splitlines() == [str(ABORTED), "19 19 20", "equal"]


@pytest.mark.model
def test_an_engine_that_was_never_closed_goes_quietly():
    code = (
        "from nexus_lab.engine import Engine\n"
        "engine = Engine.load(n_ctx=256, threads=1)\n"
        "engine.prefill(engine.acquire_sequence(), [1, 2, 3])\n"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (found.stdout, found.stderr) == ("", "")


def test_ctrl_c_stops_a_load(tiny_path, monkeypatch: pytest.MonkeyPatch):
    """The interruption arrives from inside the loading, so the test does not race with it."""
    from nexus_lab.engine import native

    asked: list[float] = []
    real = native.llama().llama_progress_callback

    def interrupting(function):
        def report(share: float, data: object) -> bool:
            if not asked:
                asked.append(share)
                os.kill(os.getpid(), signal.SIGINT)
                time.sleep(0.3)
            return function(share, data)

        return real(report)

    monkeypatch.setattr(native.llama(), "llama_progress_callback", interrupting)
    with pytest.raises(KeyboardInterrupt):
        Engine.load(tiny_path("plain"), n_ctx=256, threads=1)
    assert len(asked) == 1
