"""Token masks from grammars, through llguidance, which refuses what it cannot honour."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from nexus_lab.engine.errors import GrammarError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from nexus_lab.engine.engine import Engine
    from nexus_lab.engine.vocab import Vocabulary

__all__ = ["GrammarMask", "grammar_tokenizer"]

_SHOWN = 400
_WORD_BITS = 32
_CONTROL_PREFIX = b"\xff"


def grammar_tokenizer(vocabulary: Vocabulary) -> Any:
    """Build llguidance's view of the vocabulary; takes about a second, so the engine keeps it."""
    from llguidance import LLTokenizer

    tokenizers: Any = LLTokenizer  # its type stub leaves this constructor out
    ends = sorted(vocabulary.eog) or ([vocabulary.eos] if vocabulary.eos is not None else [])
    return tokenizers.from_llamacpp(
        tokens=[_described(vocabulary, token) for token in range(vocabulary.size)],
        vocab_ptr=vocabulary.address,
        tokenize_fptr=vocabulary.tokenize_address,
        eos_token=ends,
        slices=None,
    )


def _described(vocabulary: Vocabulary, token: int) -> bytes:
    """Bytes of a token; llguidance knows control tokens by a byte that no text has."""
    if vocabulary.is_control(token) or vocabulary.is_markup(token):
        return _CONTROL_PREFIX + vocabulary.token_text(token).encode()
    return vocabulary.token_bytes(token)


class GrammarMask:
    """Allows only what a grammar allows.

    Parameters
    ----------
    engine
        Whose vocabulary the masks are for.
    grammar
        A Lark grammar, or llguidance's JSON form (as ``LLMatcher.grammar_from_json_schema`` gives it).

    Raises
    ------
    GrammarError
        When llguidance refuses the grammar, with its words.
    """

    def __init__(self, engine: Engine, grammar: str) -> None:
        from llguidance import LLMatcher

        self._matcher = LLMatcher(engine.grammar_tokenizer, grammar, log_level=0)
        self._words = np.zeros((engine.info.n_vocab + _WORD_BITS - 1) // _WORD_BITS, np.int32)
        self._check("refused")

    def _check(self, what: str) -> None:
        if self._matcher.is_error():
            raise GrammarError(
                f"the grammar was {what}: {self._matcher.get_error()[:_SHOWN]}",
                next_step="simplify the schema, or generate without a grammar",
            )

    @property
    def stopped(self) -> bool:
        """Whether the grammar is complete and nothing more may follow."""
        return bool(self._matcher.is_stopped())

    @property
    def accepting(self) -> bool:
        """Whether the grammar could end here."""
        return bool(self._matcher.is_accepting())

    def mask(self, logits: NDArray[np.float32]) -> None:
        """Set the logits of forbidden tokens to -inf, in place."""
        self._matcher.unsafe_compute_mask_ptr(self._words.ctypes.data, self._words.nbytes)
        self._check("left")
        bits = np.unpackbits(self._words.view(np.uint8), bitorder="little")[: len(logits)]
        logits[bits == 0] = -np.inf

    def accept(self, token: int) -> None:
        """Advance past `token`.

        Raises
        ------
        GrammarError
            When the grammar forbids it.
        """
        if not self._matcher.consume_token(int(token)):
            self._check("broken by a token")
