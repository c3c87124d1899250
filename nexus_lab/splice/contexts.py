"""Contexts to compile blocks behind, and the states of those that many blocks share."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

from nexus_lab.engine.errors import ChatTemplateError
from nexus_lab.splice.identity import BlockContext, context_hash
from nexus_lab.splice.samples import SYSTEM_PROMPT, sample_history

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nexus_lab.engine import Engine, SequenceState
    from nexus_lab.splice.samples import Message

__all__ = ["TYPICAL_CONTEXTS", "TYPICAL_TOKENS", "ContextStates", "typical_context"]

TYPICAL_TOKENS = 512
"""Tokens of each typical context."""

TYPICAL_CONTEXTS = 6
"""How many of them."""

_SEED = 901
_TURN = 4
_BYTES = 512 << 20


def typical_context(
    engine: Engine,
    *,
    system: str = SYSTEM_PROMPT,
    n_tokens: int = TYPICAL_TOKENS,
    n_contexts: int = TYPICAL_CONTEXTS,
    consensus: bool = True,
) -> BlockContext:
    """Return several agents' conversations that begin with one system prompt.

    Parameters
    ----------
    engine
        Gives the chat template and the tokenizer.
    system
        The system prompt.
    n_tokens, n_contexts
        Most tokens of each conversation, and how many there are; each ends with a whole turn.
    consensus
        Keep the mean of the rows, not those behind the first.
    """
    first, *others = (_conversation(engine, system, n_tokens, _SEED + number) for number in range(n_contexts))
    return BlockContext(first, tuple(others), consensus=consensus and bool(others))


def _conversation(engine: Engine, system: str, n_tokens: int, seed: int) -> tuple[int, ...]:
    """Return a conversation of at most `n_tokens` tokens that ends where a user would speak next."""
    messages: list[Message] = [{"role": "system", "content": system}]
    tokens = engine.tokenize(_rendered(engine, messages))
    for message in sample_history(seed):
        messages.append(message)
        if len(messages) % _TURN == 1:
            longer = engine.tokenize(_rendered(engine, messages))
            if len(longer) > n_tokens:
                break
            tokens = longer
    return tuple(tokens)


def _rendered(engine: Engine, messages: list[Message]) -> str:
    try:
        return engine.render_chat(messages, add_generation_prompt=False)
    except ChatTemplateError:
        # The template knows no system role.
        system, *others = messages
        if not others:
            return ""
        first = {**others[0], "content": f"{system['content']}\n\n{others[0]['content']}"}
        return engine.render_chat([first, *others[1:]], add_generation_prompt=False)


class ContextStates:
    """States of contexts, so that only the first of many blocks pays for their prefill.

    Parameters
    ----------
    engine
        Computes them.
    n_bytes
        Memory that all of them may take; the ones used longest ago go first.
    """

    def __init__(self, engine: Engine, n_bytes: int = _BYTES) -> None:
        self._engine = engine
        self._limit = n_bytes
        self._states: OrderedDict[bytes, SequenceState] = OrderedDict()

    def enter(self, seq: int, tokens: Sequence[int]) -> None:
        """Put `tokens` into an empty sequence: as rows where they are known, else by a prefill."""
        if not len(tokens):
            return
        key = context_hash(tokens)
        state = self._states.get(key)
        if state is not None:
            self._states.move_to_end(key)
            self._engine.restore_state(state, seq)
            return
        self._engine.prefill(seq, tokens, start=0, logits="none")
        self._keep(key, self._engine.save_state(seq))

    def _keep(self, key: bytes, state: SequenceState) -> None:
        self._states[key] = state
        while sum(kept.buffer.nbytes for kept in self._states.values()) > self._limit:
            self._states.popitem(last=False)
