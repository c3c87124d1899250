"""The one engine that a worker process of a sweep keeps between its tasks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nexus_lab.bench.base import ResultsError
from nexus_lab.engine import Engine

if TYPE_CHECKING:
    from nexus_lab.bench.splice_grid import EngineSettings

__all__ = ["worker_engine"]

_engines: dict[EngineSettings, Engine] = {}


def worker_engine(settings: EngineSettings) -> Engine:
    """Return this process's engine for `settings`; that of other settings is closed.

    Raises
    ------
    ResultsError
        When the model or the adapter here is another than the one the task was made with.
    """
    if settings not in _engines:
        while _engines:
            _engines.popitem()[1].close()
        engine = Engine.load(
            settings.model,
            n_ctx=settings.n_ctx,
            threads=settings.threads,
            flash_attention=settings.flash_attention,
            adapter=settings.adapter or None,
        )
        adapter = engine.info.adapter
        here = engine.info.sha256, "" if adapter is None else adapter.sha256
        if here != (settings.sha256, settings.adapter_sha256):
            engine.close()
            which = (settings.model, "model") if here[0] != settings.sha256 else (settings.adapter, "adapter")
            raise ResultsError(
                f"{which[0]} is another {which[1]} here than where the sweep was started",
                next_step="give the same file to every worker",
            )
        _engines[settings] = engine
    return _engines[settings]
