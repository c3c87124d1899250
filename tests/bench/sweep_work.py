"""Tasks that need no model: each says which process ran it, and may wait for a file to appear."""

from __future__ import annotations

import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from nexus_lab.bench.sweep import Journal, run_tasks
from nexus_lab.errors import NexusError
from nexus_lab.paths import atomic_write


@dataclass(frozen=True)
class Numbered:
    number: int
    folder: str = ""
    waits: bool = False
    fails: bool = False
    alone: bool = False

    @property
    def key(self) -> str:
        return str(self.number)


class Odd(NexusError):
    """An error that no pickle can bring back."""

    def __init__(self, *, number: int) -> None:
        super().__init__(f"{number} is odd", next_step="take an even one")


def work(task: Numbered) -> list[dict]:
    if task.waits:
        atomic_write(Path(task.folder) / "waiting", str(os.getpid()).encode())  # there whole, or not yet
        while not (Path(task.folder) / "gate").exists():
            time.sleep(0.01)
    if task.fails:
        raise Odd(number=task.number)
    return [{"number": task.number, "pid": os.getpid()}]


def tasks(folder: str) -> list[Numbered]:
    return [*(Numbered(number, folder) for number in range(3)), Numbered(3, folder, waits=True)]


def main(folder: str) -> None:
    with Journal(Path(folder)) as journal:
        run_tasks(tasks(folder), work, journal, workers=2)


if __name__ == "__main__":
    main(sys.argv[1])
