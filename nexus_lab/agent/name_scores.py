"""How likely a model is to write a tool's name, among the names that it could write at all.

The names of a registry, each as JSON writes it and closed by a quotation mark, form a byte trie. Of a name
whose tokens are t_1 to t_n, the mark included, token t_i has the probability ::

    p_i = exp(z_i[t_i]) / sum of exp(z_i[a]) over all a in A_i

where z_i are the model's logits behind the opening of the call and t_1 to t_(i-1), and A_i all tokens of the
vocabulary that lead on in the trie from there. So it is normalised over what may be written of *some* name of
the registry, not over the whole vocabulary, and a token without an alternative has probability 1. The score
is the mean of log p_i over the n tokens (nats a token, at most 0); their sum is the logarithm of the
probability that a model which can write nothing but names of the registry writes exactly these tokens.
"""

from __future__ import annotations

import json
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from nexus_lab.arguments import ToolNameTrie

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from numpy.typing import NDArray

    from nexus_lab.engine import Engine

__all__ = ["CALL_OPENING", "NameScorer", "json_name"]

CALL_OPENING = '{"name": "'
"""How a call begins, up to its tool's name."""

_MARK = '"'


def json_name(name: str) -> str:
    """Return `name` as it stands between the quotation marks of JSON, with none of those inside.

    A mark in the name is written as its code, so that the one that ends it is the only one.
    """
    return json.dumps(name)[1:-1].replace('\\"', "\\u0022")


class NameScorer:
    """Scores names against all names of a registry.

    Parameters
    ----------
    engine
        Gives the tokenizer and the bytes of its tokens.
    names
        Names of the tools; equal ones count once.

    Raises
    ------
    ArgumentsError
        When there is no name, or the vocabulary cannot write one.
    """

    def __init__(self, engine: Engine, names: Iterable[str]) -> None:
        pieces = engine.vocabulary.all_token_bytes
        self._trie = ToolNameTrie([json_name(name) for name in names], pieces)
        self._tokenize: Callable[[str], list[int]] = lambda text: engine.tokenize(text, special=False)
        self._pieces = pieces
        self.tokens = cache(self._tokens)

    def _tokens(self, name: str) -> tuple[int, ...]:
        """Return the tokens of a name and the mark that ends it, as the tokenizer splits them.

        Where it does not write these bytes alone (some put a blank before a text), each token is the longest
        that leads on in the name.
        """
        text = f"{json_name(name)}{_MARK}"
        tokens, wanted = tuple(self._tokenize(text)), text.encode()
        if b"".join(self._pieces[token] for token in tokens) == wanted:
            return tokens
        found: list[int] = []
        node = self._trie.root
        while wanted:
            leading = [t for t in self._trie.allowed(node).tolist() if wanted.startswith(self._pieces[t])]
            token = max(leading, key=lambda t: len(self._pieces[t]))
            found.append(token)
            node, wanted = self._trie.step(node, token), wanted[len(self._pieces[token]) :]
        return tuple(found)

    def log_chances(self, logits: NDArray[np.float32], tokens: Sequence[int]) -> NDArray[np.float64]:
        """Return log p_i of each token of a name, float64 [n].

        Parameters
        ----------
        logits
            float32 [n, n_vocab], each row behind the tokens before.
        tokens
            The name's, from `tokens`.
        """
        chances = np.zeros(len(tokens))
        node = self._trie.root
        for place, token in enumerate(tokens):
            allowed = self._trie.allowed(node)
            row = logits[place][allowed].astype(np.float64)
            top = row.max()
            chances[place] = float(logits[place][token]) - top - np.log(np.exp(row - top).sum())
            node = self._trie.step(node, token)
        return chances
