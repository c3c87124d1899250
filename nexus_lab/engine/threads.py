"""How many threads native code may use: llama.cpp and torch get the same number."""

from __future__ import annotations

import os
import sys
from functools import cache
from pathlib import Path

from nexus_lab.engine.errors import EngineError

__all__ = ["available_cores", "cap_threads", "physical_cores", "user_wait_policy"]

WAIT_VARIABLES = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
DEFAULT_WAIT = "passive"


def user_wait_policy() -> str | None:
    """Return what the environment says about waiting at barriers, ``None`` when it says nothing."""
    return next((f"{name}={os.environ[name]}" for name in WAIT_VARIABLES if name in os.environ), None)


def available_cores() -> int:
    """Logical cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@cache
def physical_cores() -> int:
    """Physical cores that this process may run on; hyper-threads share one."""
    try:
        allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None
        found = {_core_of(cpu) for cpu in allowed} if allowed is not None else set()
    except OSError:
        found = set()
    return max(1, len(found) or available_cores())


def _core_of(cpu: int) -> tuple[str, str]:
    topology = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology")
    return (topology / "physical_package_id").read_text(), (topology / "core_id").read_text()


def cap_threads(setting: int | None) -> int:
    """Decide the thread count, cap torch to it, and return it for llama.cpp.

    Parameters
    ----------
    setting
        Wanted threads; ``None`` for the physical cores, and never more than those.
    """
    if setting is not None and setting < 1:
        raise EngineError(
            f"threads = {setting}", next_step="choose at least 1, or none for the physical cores"
        )
    threads = physical_cores() if setting is None else min(setting, physical_cores())
    if setting is not None:
        # Torch may be imported later, and reads this when it starts.
        os.environ.setdefault("OMP_NUM_THREADS", str(threads))
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(threads)
    return threads
