"""Facts about the machine and the versions, for results, traces and the doctor."""

from __future__ import annotations

import platform
import sys
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from nexus_lab.engine.threads import DEFAULT_WAIT, available_cores, physical_cores, user_wait_policy

__all__ = ["library_versions", "machine_facts", "memory_bytes"]

_PACKAGES = (
    "nexus_lab",
    "llama-cpp-python",
    "llguidance",
    "numpy",
    "torch",
    "sentence-transformers",
    "mcp",
    "polars",
)


def machine_facts(*, threads: int | None = None) -> dict[str, Any]:
    """Host, processor, native kernels, cores, threads and versions, as JSON values.

    Parameters
    ----------
    threads
        Threads in use; ``None`` when no engine runs.
    """
    from nexus_lab import _core

    return {
        "host": platform.node(),
        "system": f"{platform.system()} {platform.release()}",
        "machine": platform.machine(),
        "cpu": _cpu_name(),
        "cpu_features": sorted(name for name, present in _core.cpu_features().items() if present),
        "scan_kernels": list(_core.scan_kernels()),
        "cores_physical": physical_cores(),
        "cores_logical": available_cores(),
        "memory_bytes": memory_bytes(),
        "threads": threads,
        "barrier_wait": user_wait_policy() or DEFAULT_WAIT,
        "versions": library_versions(),
    }


@cache
def library_versions() -> dict[str, str]:
    """Versions of Python, the packages that shape results, and the llama.cpp build."""
    versions = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return versions


def _cpu_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def memory_bytes() -> int | None:
    """Physical memory of the machine, ``None`` where it is not told."""
    if sys.platform == "win32":
        return None
    import os

    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return None
