"""What can go wrong in the engine room, each with its own type."""

from __future__ import annotations

from nexus_lab.errors import NexusError

__all__ = [
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
]


class EngineError(NexusError):
    """Root of the engine room's errors."""


class ModelNotFound(EngineError):
    """There is no file where the model should be."""


class ModelUnavailable(EngineError):
    """A model named by ``hf:`` cannot be fetched, and is not in the local cache."""


class NotAGguf(EngineError):
    """The file is not a GGUF."""


class TruncatedModel(EngineError):
    """The file starts like a GGUF and ends before its data does."""


class UnsupportedModel(EngineError):
    """A GGUF that cannot generate text, for example an embedding model."""


class AdapterMismatch(EngineError):
    """A LoRA adapter of another model: its architecture, a tensor or a shape is not this one's."""


class UnsupportedAdapter(EngineError):
    """A GGUF that is no LoRA adapter, or one of a kind that is not run here."""


class ModelLoadFailed(EngineError):
    """llama.cpp refused the model, its adapter or the context; its own words are in the problem."""


class EngineClosed(EngineError):
    """The engine was closed before this call."""


class SequenceError(EngineError):
    """A sequence, position or range that the context cannot serve."""


class TokenError(EngineError):
    """A token id outside the vocabulary."""


class ContextFull(EngineError):
    """The tokens do not fit; nothing has been written.

    Attributes
    ----------
    needed, free
        Cells asked for and cells that are free.
    """

    def __init__(self, needed: int, free: int, n_ctx: int) -> None:
        super().__init__(
            f"{needed} tokens do not fit: {free} of {n_ctx} cells of the context are free",
            next_step="shorten the prompt, remove sequences, or load with a larger n_ctx",
        )
        self.needed = needed
        self.free = free


class StateMismatch(EngineError):
    """A saved sequence state has another layout than this context."""


class StateRestoreFailed(EngineError):
    """llama.cpp refused a sequence state; the destination sequence has been cleared."""


class StateMemoryFull(EngineError):
    """The arena given for a sequence state has no room for it."""


class PatchFailed(EngineError):
    """A patched decode could not be carried out as planned; what it wrote has been removed."""


class ChatTemplateError(EngineError):
    """The model's chat template cannot be rendered."""


class GrammarError(EngineError):
    """A grammar that llguidance refuses, or that rejected a token."""


class MaskExhausted(EngineError):
    """A token mask forbids every token of the vocabulary."""
