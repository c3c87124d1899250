"""What llguidance says about a schema, without a model: whether it holds, and the grammar's text."""

from __future__ import annotations

import json
import re
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["grammar_fault", "grammar_text"]

# One way to write a value: no spaces to choose from, and only the escapes that common text needs.
_ESCAPES = 'nrt\\"'
_ALL_ESCAPES = 'nrtbfu\\"'
_RARE = re.compile(r"\\[bfu]")
_SHOWN = 160


def grammar_text(schema: Mapping[str, Any]) -> str:
    """Return the grammar of `schema` as text that llguidance compiles.

    JSON without spaces: a small model that may put some between two values does not always end them.
    """
    from llguidance import LLMatcher

    # As text, since llguidance takes no Python integer of more than 64 bits.
    said = json.dumps(schema, ensure_ascii=False)
    # A listed value may hold a control character, which has to be written somehow.
    rare = _RARE.search(said)
    options: Any = {
        "whitespace_flexible": False,
        "json_allowed_escapes": _ALL_ESCAPES if rare else _ESCAPES,
    }
    text: str = LLMatcher.grammar_from_json_schema(said, overrides=options)
    return text


def grammar_fault(schema: dict[str, Any]) -> str:
    """Return why llguidance does not hold `schema`, in one line; empty when it does."""
    return _fault(json.dumps(schema))


@lru_cache(maxsize=4096)
def _fault(schema: str) -> str:
    from llguidance import LLMatcher

    text = grammar_text(json.loads(schema))
    message: str = LLMatcher.validate_grammar(text, _bytes_tokenizer())
    first = " ".join(message.split())
    return first if len(first) <= _SHOWN else first[: _SHOWN - 1] + "…"


@cache
def _bytes_tokenizer() -> Any:
    """Return a tokenizer of single bytes, enough to compile a grammar without a model."""
    from llguidance import LLTokenizer

    return LLTokenizer("byte", slices=[])
