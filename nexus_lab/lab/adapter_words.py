"""How the workbench says which adapter runs with a model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nexus_lab.arguments.scoring import Scoring
from nexus_lab.trace.text import clip, visible

if TYPE_CHECKING:
    from nexus_lab.engine import AdapterInfo

__all__ = ["adapter_name", "adapter_row", "named_with", "weights_with"]

_NAME_CHARACTERS = 60


def adapter_name(adapter: AdapterInfo | None) -> str | None:
    """Return an adapter's name, which is that of its file, in characters that can be seen."""
    return None if adapter is None else clip(visible(adapter.name), _NAME_CHARACTERS)


def named_with(model: str | None, adapter: AdapterInfo | None) -> str | None:
    """Return a model's name and that of the adapter it runs with."""
    return model if model is None or adapter is None else f"{model} + {adapter_name(adapter)}"


def weights_with(quantisation: str | None, adapter: str | None) -> str | None:
    """Return what the weights are: how they are quantised, and the name of what is added to them."""
    if adapter is None:
        return quantisation
    return f"{quantisation} + {adapter}" if quantisation else f"+ {adapter}"


def adapter_row(adapter: AdapterInfo | None) -> dict[str, Any] | None:
    """Return an adapter as views show it; see ``AdapterRow`` in ``protocol.ts``."""
    if adapter is None:
        return None
    return {
        "name": adapter_name(adapter),
        "path": visible(str(adapter.path)),
        "sha256": adapter.sha256,
        "lora_rank": adapter.rank,
        "targets": len(adapter.targets),
        "size_bytes": adapter.size_bytes,
        "weighs_calls": Scoring.of(adapter.facts) is not None,
    }
