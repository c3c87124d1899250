"""Text to tokens and back, as the model's own tokenizer has it."""

from __future__ import annotations

import codecs
import ctypes
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from nexus_lab.engine.errors import EngineClosed, TokenError
from nexus_lab.engine.native import function_address, llama

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["TextStream", "Vocabulary"]

_NONE = -1


class Vocabulary:
    """The tokenizer of a loaded model. Reads only, so any thread may use it.

    Parameters
    ----------
    handle
        llama.cpp's vocabulary pointer.
    """

    def __init__(self, handle: Any) -> None:
        self._lib = llama()
        self._handle: Any = handle
        self.size = int(self._lib.llama_vocab_n_tokens(handle))
        self.bos = self._token(self._lib.llama_vocab_bos(handle))
        self.eos = self._token(self._lib.llama_vocab_eos(handle))
        self.eot = self._token(self._lib.llama_vocab_eot(handle))
        self.adds_bos = bool(self._lib.llama_vocab_get_add_bos(handle))

    @property
    def handle(self) -> Any:
        """llama.cpp's pointer.

        Raises
        ------
        EngineClosed
            When the model has been freed.
        """
        if self._handle is None:
            raise EngineClosed("the engine is closed", next_step="load it again")
        return self._handle

    def close(self) -> None:
        """Forget the pointer, which is about to dangle."""
        self._handle = None

    @staticmethod
    def _token(value: int) -> int | None:
        return None if value == _NONE else int(value)

    @cached_property
    def eog(self) -> frozenset[int]:
        """Tokens that end a generation."""
        return frozenset(
            token for token in range(self.size) if self._lib.llama_vocab_is_eog(self.handle, token)
        )

    def tokenize(self, text: str, *, bos: bool = False, special: bool = True) -> list[int]:
        """Turn text into tokens.

        Parameters
        ----------
        bos
            Begin with the BOS token, when the model's tokenizer wants one and the text has none of its own.
        special
            Read markup such as ``<|im_start|>`` as control tokens. Give ``False`` for text that others wrote.
        """
        data = text.encode("utf-8", "replace")  # half a surrogate pair has no bytes
        capacity = len(data) + 8
        buffer = (ctypes.c_int32 * capacity)()
        count = self._lib.llama_tokenize(self.handle, data, len(data), buffer, capacity, False, special)
        if count < 0:
            buffer = (ctypes.c_int32 * -count)()
            count = self._lib.llama_tokenize(self.handle, data, len(data), buffer, -count, False, special)
        tokens = [int(token) for token in buffer[:count]]
        if bos and self.adds_bos and self.bos is not None and tokens[:1] != [self.bos]:
            return [self.bos, *tokens]
        return tokens

    def detokenize(self, tokens: Sequence[int], *, special: bool = False) -> str:
        """Turn tokens into text; control tokens are left out unless `special`."""
        self.check(np.asarray(tokens, np.int64))
        if len(tokens) == 0:
            return ""
        array = (ctypes.c_int32 * len(tokens))(*tokens)
        capacity = 16 * len(tokens) + 64
        for _ in range(2):
            buffer = ctypes.create_string_buffer(capacity)
            count = self._lib.llama_detokenize(
                self.handle, array, len(tokens), buffer, capacity, False, special
            )
            if count >= 0:
                break
            capacity = -count
        return buffer.raw[: max(count, 0)].decode("utf-8", "replace")

    def token_bytes(self, token: int) -> bytes:
        """Bytes that `token` adds to the text; none for a control token. May be part of a character."""
        if not 0 <= token < self.size:
            self.check(np.array([token]))
        return self._piece(token, special=False)

    @cached_property
    def all_token_bytes(self) -> tuple[bytes, ...]:
        """`token_bytes` of the whole vocabulary."""
        return tuple(self._piece(token, special=False) for token in range(self.size))

    def token_text(self, token: int) -> str:
        """Text of `token`, control tokens by their name."""
        return self._piece(token, special=True).decode("utf-8", "replace")

    def is_control(self, token: int) -> bool:
        """Whether `token` is markup rather than text."""
        return bool(self._lib.llama_vocab_is_control(self.handle, token))

    def is_markup(self, token: int) -> bool:
        """Whether `token` was added by a user of the tokenizer and is written like a control token."""
        if not self._lib.llama_vocab_get_attr(self.handle, token) & self._lib.LLAMA_TOKEN_ATTR_USER_DEFINED:
            return False
        text = self.token_text(token)
        return text.startswith("<") and text.endswith(">")

    @property
    def address(self) -> int:
        """Address of llama.cpp's vocabulary, for libraries that call it themselves."""
        return int(ctypes.cast(self.handle, ctypes.c_void_p).value or 0)

    @property
    def tokenize_address(self) -> int:
        """Address of ``llama_tokenize``."""
        return function_address("llama_tokenize")

    def check(self, tokens: np.ndarray[Any, Any]) -> None:
        """Raise TokenError when some of `tokens` are outside the vocabulary."""
        wrong = (tokens < 0) | (tokens >= self.size)
        if np.any(wrong):
            raise TokenError(
                f"token {int(tokens[wrong][0])} is outside the vocabulary of {self.size}",
                next_step="use tokens of this model's own tokenizer",
            )

    def _piece(self, token: int, *, special: bool) -> bytes:
        buffer = ctypes.create_string_buffer(64)
        count = self._lib.llama_token_to_piece(self.handle, token, buffer, len(buffer), 0, special)
        if count < 0:
            buffer = ctypes.create_string_buffer(-count)
            count = self._lib.llama_token_to_piece(self.handle, token, buffer, len(buffer), 0, special)
        return buffer.raw[: max(count, 0)]


class TextStream:
    """Turns a stream of tokens into whole characters.

    Parameters
    ----------
    vocabulary
        Source of the tokens' bytes.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token: int) -> str:
        """Return the characters that `token` completes, possibly none."""
        return self._decoder.decode(self._vocabulary.token_bytes(token))

    def finish(self) -> str:
        """Return what is left; an unfinished character becomes U+FFFD."""
        return self._decoder.decode(b"", final=True)
