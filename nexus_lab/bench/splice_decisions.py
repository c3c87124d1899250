"""Which call the model decides on: a constrained greedy decode, and whether a splice changes it.

The call is decoded token by token once, behind the full prefill. Behind a splice the same tokens are forced
in one prefill and compared under the same grammar; only from the first token that differs on is the call
decoded anew. What comes out is the call that a decode from the start would have given.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from nexus_lab.agent.calling import call_opening
from nexus_lab.arguments import SchemaUnusable, plan_call
from nexus_lab.engine import GrammarMask
from nexus_lab.splice.fidelity import logits_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from nexus_lab.engine import Engine
    from nexus_lab.registry import ToolSpec

__all__ = ["Decision", "call_grammar", "decide", "decide_like", "settled_decision"]

_MOST_TOKENS = 96
_SETTLING = 4


@dataclass(frozen=True, slots=True)
class Decision:
    """A call that the model decided on.

    Attributes
    ----------
    tokens
        Its tokens, at most 96.
    text
        Its text; without an end when it has more tokens.
    """

    tokens: tuple[int, ...]
    text: str

    @property
    def tool(self) -> str:
        """Name of the tool; what there is of the text when that breaks off within the name."""
        found = self._parsed()
        return str(found["name"]) if found else self.text.partition('", "arguments"')[0]

    @property
    def arguments(self) -> str:
        """The arguments as canonical JSON; the text after the name when it breaks off."""
        found = self._parsed()
        if found:
            return json.dumps(found["arguments"], sort_keys=True)
        return self.text.partition('"arguments": ')[2]

    def _parsed(self) -> dict[str, Any] | None:
        try:
            found = json.loads(self.text)
        except ValueError:
            return None
        return found if isinstance(found, dict) else None


def call_grammar(tool: ToolSpec, others: Sequence[ToolSpec], request: str) -> str:
    """Return the grammar of a call of one of several tools, each under its own schema.

    As in the agent, arguments are those that the request speaks of. Another tool whose schema makes no
    grammar is left out.

    Returns
    -------
    str
        For `GrammarMask`; empty when `tool` itself has a schema that makes none.
    """
    rules: list[str] = []
    for offered in (tool, *others):
        try:
            schema = plan_call(offered, request).schema_used
        except SchemaUnusable:
            if offered is tool:
                return ""
            continue
        number = len(rules)
        held = json.dumps({**schema, "x-guidance": {"whitespace_flexible": False}})
        opening = json.dumps(call_opening(offered.name))
        rules.append(f'call_{number}: {opening} arguments_{number} "}}"\narguments_{number}: %json {held}\n')
    start = " | ".join(f"call_{number}" for number in range(len(rules)))
    return f"start: {start}\n" + "".join(rules)


def decide(engine: Engine, seq: int, first: NDArray[np.float32], grammar: str) -> Decision:
    """Decode a call greedily after `first`, float32 [n_vocab]; the sequence is left as it was."""
    end = engine.pos_max(seq) + 1
    found = engine.generate(
        seq, first, max_tokens=_MOST_TOKENS, mask=GrammarMask(engine, grammar), decode_last=False
    )
    if engine.pos_max(seq) >= end:
        engine.remove(seq, end, -1)
    return Decision(found.tokens, found.text)


def settled_decision(engine: Engine, seq: int, first: NDArray[np.float32], grammar: str) -> Decision:
    """Return the call that `decide` gives, and that `decide_like` gives when compared with it.

    At a near tie a token decoded alone may be another than the same one in a batch. Every comparison runs in
    batches, and would part from the call there, and be slow, for no reason of its own.
    """
    found = decide(engine, seq, first, grammar)
    for _ in range(_SETTLING):
        again = decide_like(engine, seq, first, grammar, found)
        if again.tokens == found.tokens:
            break
        found = again
    return found


def decide_like(
    engine: Engine, seq: int, first: NDArray[np.float32], grammar: str, like: Decision
) -> Decision:
    """Return the call that a greedy decode gives, quickly where it is `like`; leaves the sequence as it was.

    Every comparison runs in one batch of the same length, so that two equal caches decide alike.
    """
    end = engine.pos_max(seq) + 1
    mask = GrammarMask(engine, grammar)
    logits = np.concatenate([first[np.newaxis], logits_of(engine, seq, like.tokens, "all")])
    engine.remove(seq, end, -1)
    for number, token in enumerate(like.tokens):
        masked = logits[number].copy()
        mask.mask(masked)
        chosen = int(masked.argmax())
        mask.accept(chosen)
        if chosen != token:
            return _decoded_on(engine, seq, (*like.tokens[:number], chosen), mask)
    return like


def _decoded_on(engine: Engine, seq: int, tokens: tuple[int, ...], mask: GrammarMask) -> Decision:
    end = engine.pos_max(seq) + 1
    left = _MOST_TOKENS - len(tokens)
    if not mask.stopped and left > 0:
        logits = logits_of(engine, seq, tokens, "last")
        found = engine.generate(seq, logits, max_tokens=left, mask=mask, decode_last=False)
        tokens = (*tokens, *found.tokens)
        engine.remove(seq, end, -1)
    return Decision(tokens, engine.detokenize(tokens))
