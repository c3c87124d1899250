"""What a model does with text: tokens, chat template, grammar tokenizer. Needs no context."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from nexus_lab.engine.chat import ChatTemplate
    from nexus_lab.engine.vocab import Vocabulary

__all__ = ["ModelText"]


class ModelText:
    """The text side of an engine; any thread may use it.

    Attributes
    ----------
    vocabulary
        The model's tokenizer.
    chat
        The model's chat template; ``chat.is_fallback`` says when its file has none.
    """

    def __init__(self, vocabulary: Vocabulary, chat: ChatTemplate) -> None:
        self.vocabulary = vocabulary
        self.chat = chat
        self._grammar_lock = threading.Lock()
        self._grammar_tokenizer: Any = None

    def tokenize(self, text: str, *, bos: bool = False, special: bool = True) -> list[int]:
        """Turn text into tokens; see `Vocabulary.tokenize`."""
        return self.vocabulary.tokenize(text, bos=bos, special=special)

    def detokenize(self, tokens: Sequence[int], *, special: bool = False) -> str:
        """Turn tokens into text; control tokens are left out unless `special`."""
        return self.vocabulary.detokenize(tokens, special=special)

    def token_bytes(self, token: int) -> bytes:
        """Bytes that `token` adds to the text; none for a control token."""
        return self.vocabulary.token_bytes(token)

    @property
    def eos(self) -> int | None:
        """End-of-sequence token."""
        return self.vocabulary.eos

    @property
    def eot(self) -> int | None:
        """End-of-turn token."""
        return self.vocabulary.eot

    @property
    def bos(self) -> int | None:
        """Beginning-of-sequence token."""
        return self.vocabulary.bos

    def render_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> str:
        """Render messages with the model's chat template; ``chat.is_fallback`` says when it has none."""
        return self.chat.render(messages, add_generation_prompt=add_generation_prompt, tools=tools)

    @property
    def grammar_tokenizer(self) -> Any:
        """The vocabulary as llguidance sees it, built once."""
        from nexus_lab.engine.grammar import grammar_tokenizer

        with self._grammar_lock:
            if self._grammar_tokenizer is None:
                self._grammar_tokenizer = grammar_tokenizer(self.vocabulary)
            return self._grammar_tokenizer
