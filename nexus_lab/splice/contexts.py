"""Contexts to compile blocks behind, and the states of those that many blocks share."""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from itertools import cycle, islice
from typing import TYPE_CHECKING

from nexus_lab.engine.errors import ChatTemplateError
from nexus_lab.splice.conversations import kept_conversations
from nexus_lab.splice.identity import BlockContext, context_hash
from nexus_lab.splice.samples import SYSTEM_PROMPT, sample_history

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nexus_lab.engine import Engine, SequenceState
    from nexus_lab.splice.samples import Message

__all__ = [
    "OWN_TOKENS",
    "TYPICAL_CONTEXTS",
    "TYPICAL_TOKENS",
    "ContextStates",
    "message_ending",
    "typical_context",
]

TYPICAL_TOKENS = 512
"""Tokens of each typical context that is made from sample conversations."""

TYPICAL_CONTEXTS = 6
"""How many of them."""

OWN_TOKENS = (256, 512, 1024, 2048, 512, 1024, 1536, 256, 768)
"""Tokens of each context that is made from conversations of the user's own.

Rows depend on how much stands before them as well as on what, so the lengths are those that a session goes
through.
"""

_SEED = 901
_TURN = 4
_BYTES = 512 << 20


def typical_context(
    engine: Engine,
    *,
    system: str = SYSTEM_PROMPT,
    conversations: Sequence[Sequence[Message]] | None = None,
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
    conversations
        Messages of real conversations, without those of the system; they are cut to `OWN_TOKENS` in turn.
        ``None`` takes those that were kept, see `nexus_lab.splice.keep_conversations`. An empty list, or
        ``None`` when none were kept, takes sample conversations.
    n_tokens, n_contexts
        Most tokens of each sample conversation, and how many there are. Every context ends with a whole
        turn.
    consensus
        Keep the mean of the rows, not those behind the first.

    Raises
    ------
    ConversationsError
        When the kept ones cannot be read.
    """
    real = kept_conversations() if conversations is None else conversations
    if real:
        made = [
            _conversation(engine, system, messages, most)
            for messages, most in zip(real, cycle(OWN_TOKENS), strict=False)
        ]
        first, *others = dict.fromkeys(made)
    else:
        first, *others = (_sample(engine, system, n_tokens, _SEED + number) for number in range(n_contexts))
    return BlockContext(first, tuple(others), consensus=consensus and bool(others))


def _sample(engine: Engine, system: str, n_tokens: int, seed: int) -> tuple[int, ...]:
    """Return a sample conversation of at most `n_tokens` tokens, in whole turns."""
    least_tokens = 3  # of any message
    messages = list(islice(sample_history(seed), n_tokens // least_tokens // _TURN * _TURN))
    return _conversation(engine, system, messages, n_tokens, turn=_TURN)


def _conversation(
    engine: Engine, system: str, messages: Sequence[Message], n_tokens: int, *, turn: int = 1
) -> tuple[int, ...]:
    """Return the system prompt and as many turns of `turn` messages as `n_tokens` tokens have room for."""

    def tokens(turns: int) -> list[int]:
        shown = [{"role": "system", "content": system}, *messages[: turns * turn]]
        return engine.tokenize(_rendered(engine, shown))

    # How many turns fit: the first number of turns that is too long, less one.
    longer = bisect_right(range(1, len(messages) // turn + 1), n_tokens, key=lambda turns: len(tokens(turns)))
    return tuple(tokens(longer))


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


def message_ending(engine: Engine) -> tuple[int, ...]:
    """Return the tokens that end a message under the model's chat template, such as ``<|im_end|>``.

    Blocks stand behind whole messages. Behind one that breaks off, most of a block's rows are others.
    """
    said = "(said)"
    _, _, after = engine.render_chat(
        [{"role": "user", "content": said}], add_generation_prompt=False
    ).rpartition(said)
    return tuple(engine.tokenize(after))


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
