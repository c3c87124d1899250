"""The engine room: how does llama.cpp run?

The only room that imports ``llama_cpp``, and only when an engine is loaded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nexus_lab._lazy import lazy_names

if TYPE_CHECKING:
    from nexus_lab.engine.base import (
        AdapterInfo,
        DecodeCall,
        DecodeSchedule,
        Generation,
        KvType,
        ModelEntry,
        ModelInfo,
        SamplerSettings,
        StopReason,
        TokenMask,
    )
    from nexus_lab.engine.catalogue import find_models, resolve_model
    from nexus_lab.engine.engine import Engine
    from nexus_lab.engine.errors import (
        AdapterMismatch,
        ChatTemplateError,
        ContextFull,
        EngineClosed,
        EngineError,
        GrammarError,
        MaskExhausted,
        ModelLoadFailed,
        ModelNotFound,
        ModelUnavailable,
        NotAGguf,
        PatchFailed,
        SequenceError,
        StateMemoryFull,
        StateMismatch,
        StateRestoreFailed,
        TokenError,
        TruncatedModel,
        UnsupportedAdapter,
        UnsupportedModel,
    )
    from nexus_lab.engine.grammar import GrammarMask
    from nexus_lab.engine.machine import library_versions, machine_facts
    from nexus_lab.engine.patches import AttentionCapture, HiddenBlock, PatchPlan, PatchReport
    from nexus_lab.engine.rope import RopeParameters
    from nexus_lab.engine.state import SequenceState, rotate_keys
    from nexus_lab.engine.threads import cap_threads

_HOMES = {
    "base": (
        "AdapterInfo",
        "DecodeCall",
        "DecodeSchedule",
        "Generation",
        "KvType",
        "ModelEntry",
        "ModelInfo",
        "SamplerSettings",
        "StopReason",
        "TokenMask",
    ),
    "catalogue": ("find_models", "resolve_model"),
    "engine": ("Engine",),
    "errors": (
        "AdapterMismatch",
        "ChatTemplateError",
        "ContextFull",
        "EngineClosed",
        "EngineError",
        "GrammarError",
        "MaskExhausted",
        "ModelLoadFailed",
        "ModelNotFound",
        "ModelUnavailable",
        "NotAGguf",
        "PatchFailed",
        "SequenceError",
        "StateMemoryFull",
        "StateMismatch",
        "StateRestoreFailed",
        "TokenError",
        "TruncatedModel",
        "UnsupportedAdapter",
        "UnsupportedModel",
    ),
    "grammar": ("GrammarMask",),
    "machine": ("library_versions", "machine_facts"),
    "patches": ("AttentionCapture", "HiddenBlock", "PatchPlan", "PatchReport"),
    "rope": ("RopeParameters",),
    "state": ("SequenceState", "rotate_keys"),
    "threads": ("cap_threads",),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "AdapterInfo",
    "AdapterMismatch",
    "AttentionCapture",
    "ChatTemplateError",
    "ContextFull",
    "DecodeCall",
    "DecodeSchedule",
    "Engine",
    "EngineClosed",
    "EngineError",
    "Generation",
    "GrammarError",
    "GrammarMask",
    "HiddenBlock",
    "KvType",
    "MaskExhausted",
    "ModelEntry",
    "ModelInfo",
    "ModelLoadFailed",
    "ModelNotFound",
    "ModelUnavailable",
    "NotAGguf",
    "PatchFailed",
    "PatchPlan",
    "PatchReport",
    "RopeParameters",
    "SamplerSettings",
    "SequenceError",
    "SequenceState",
    "StateMemoryFull",
    "StateMismatch",
    "StateRestoreFailed",
    "StopReason",
    "TokenError",
    "TokenMask",
    "TruncatedModel",
    "UnsupportedAdapter",
    "UnsupportedModel",
    "cap_threads",
    "find_models",
    "library_versions",
    "machine_facts",
    "resolve_model",
    "rotate_keys",
]

__getattr__, __dir__ = lazy_names(__name__, _HOME_OF)
