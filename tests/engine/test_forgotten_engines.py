"""An engine that nobody closed: freed wherever the collector finds it, and before the process ends."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

BEGUN = f"""
import gc, sys, threading
sys.path.insert(0, {str(Path(__file__).parents[1])!r})
from pathlib import Path
from concurrent.futures import thread as pools
from tiny_models import write_kind
from nexus_lab.engine import Engine
from waiting import eventually

def workers():
    return [each for each in threading.enumerate() if each.name.startswith("nexus-llama")]

model = write_kind(Path(sys.argv[1]) / "model.gguf", "plain")
engine = Engine.load(model, n_ctx=64, threads=1)
assert len(workers()) == 1
"""


def _run(script: str, folder: Path) -> str:
    words = [sys.executable, "-c", BEGUN + script, str(folder)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


@pytest.mark.parametrize("lock", ["pools._global_shutdown_lock", "threading._active_limbo_lock"])
def test_it_is_freed_where_the_collector_comes_inside_a_lock_that_closing_needs(lock: str, tmp_path: Path):
    # Pools allocate inside that lock, so that the collector may come there.
    script = f"""
engine.itself = engine
del engine
with {lock}:
    gc.collect()
eventually(lambda: not workers(), seconds=60)
print("freed")
"""
    assert _run(script, tmp_path) == "freed\n"


def test_one_that_is_open_at_the_end_of_the_process_is_closed_then(tmp_path: Path):
    script = """
from nexus_lab.engine import engine as module

close = module._close

def told(loaded):
    print("closed", threading.main_thread() is threading.current_thread())
    close(loaded)

module._close = told
"""
    assert _run(script, tmp_path) == "closed True\n"


def test_closing_twice_is_closing_once(tmp_path: Path):
    script = """
engine.close()
assert not workers()
engine.close()
del engine
gc.collect()
print("closed")
"""
    assert _run(script, tmp_path) == "closed\n"
