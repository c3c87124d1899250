"""Tool names as a finite-state mask: the model can only write a name that exists."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from nexus_lab.arguments.base import ArgumentsError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

__all__ = ["ToolNameTrie", "TrieMask"]

_REFUSED = np.float32(-np.inf)


@dataclass(slots=True, eq=False)
class _Node:
    children: dict[int, _Node] = field(default_factory=dict)
    name: str | None = None
    tokens: NDArray[np.int64] | None = None


class ToolNameTrie:
    """The byte trie of ``name + terminator``, walked by tokens.

    A token is allowed when its bytes lead from the current node to another one, so a token may end inside
    a name and another may bring its end and the terminator at once.

    Parameters
    ----------
    names
        Names of the tools, each once.
    token_bytes
        The bytes of every token of the vocabulary by id; empty for control tokens, which are never allowed.
    terminator
        What ends a name, at least one byte, so that ``issue`` can be told from ``issue_read``.

    Raises
    ------
    ArgumentsError
        When there is no name, a name holds the terminator, or no token can begin one.
    """

    def __init__(
        self, names: Iterable[str], token_bytes: Sequence[bytes], *, terminator: bytes = b'"'
    ) -> None:
        self._names = tuple(dict.fromkeys(names))
        if not self._names or not terminator:
            raise ArgumentsError(
                "a name mask needs at least one name and a terminator", next_step="give the registry's names"
            )
        self.terminator = terminator
        self._ids: dict[bytes, list[int]] = {}
        for token, piece in enumerate(token_bytes):
            if piece:
                self._ids.setdefault(piece, []).append(token)
        self._pieces = tuple(token_bytes)
        self._longest = max((len(piece) for piece in self._ids), default=0)
        self.root = _Node()
        for name in self._names:
            self._insert(name)
        if not len(self.allowed(self.root)):
            raise ArgumentsError(
                "no token of the vocabulary begins a tool name",
                next_step="give the bytes of the model's tokens",
            )

    def __len__(self) -> int:
        return len(self._names)

    def start(self) -> TrieMask:
        """Return a mask at the beginning of a name."""
        return TrieMask(self)

    def allowed(self, node: Any) -> NDArray[np.int64]:
        """Return the ids of the tokens that may follow at `node`, ascending; computed once for a node."""
        if node.tokens is None:
            found: list[int] = []
            stack: list[tuple[_Node, bytes]] = [(node, b"")]
            while stack:
                place, path = stack.pop()
                if path:
                    found += self._ids.get(path, ())
                if len(path) < self._longest:
                    stack.extend((child, path + bytes((byte,))) for byte, child in place.children.items())
            node.tokens = np.asarray(sorted(found), np.int64)
        tokens: NDArray[np.int64] = node.tokens
        return tokens

    def step(self, node: Any, token: int) -> Any:
        """Return the node that `token` leads to, or ``None``."""
        piece = self._pieces[token] if 0 <= token < len(self._pieces) else b""
        place: _Node | None = node if piece else None
        for byte in piece:
            place = place.children.get(byte) if place is not None else None
        return place

    def _insert(self, name: str) -> None:
        path = name.encode() + self.terminator
        if self.terminator in name.encode() or not name:
            raise ArgumentsError(
                f"the name {name!r} is empty or holds the terminator {self.terminator!r}",
                next_step="choose a terminator that no name holds",
            )
        node = self.root
        for byte in path:
            node = node.children.setdefault(byte, _Node())
        node.name = name


class TrieMask:
    """The mask while one name is written; a `TokenMask`."""

    def __init__(self, trie: ToolNameTrie) -> None:
        self._trie = trie
        self._node: Any = trie.root

    @property
    def name(self) -> str | None:
        """The name, once it is complete."""
        name: str | None = self._node.name
        return name

    @property
    def stopped(self) -> bool:
        """Whether the name and its terminator are complete."""
        return self.name is not None

    def mask(self, logits: NDArray[np.float32]) -> None:
        """Set the logits (float32 [n_vocab]) of tokens that lead to no name to minus infinity, in place."""
        allowed = self._trie.allowed(self._node)
        kept = logits[allowed]
        logits[:] = _REFUSED
        logits[allowed] = kept

    def accept(self, token: int) -> None:
        """Follow `token`.

        Raises
        ------
        ArgumentsError
            When it leads to no name.
        """
        node = self._trie.step(self._node, token)
        if node is None:
            raise ArgumentsError(
                f"token {token} leads to no tool name", next_step="sample from the masked logits"
            )
        self._node = node
