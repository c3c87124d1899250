"""The op tree: which programs are in the cache, what they share, and how much of a new one is there."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from enum import IntFlag
from typing import TYPE_CHECKING, Protocol

import numpy as np

from nexus_lab import _core
from nexus_lab.cache.ops import Append, CacheOp, OpKind
from nexus_lab.cache.program import CacheProgram
from nexus_lab.cache.state import IntegrityError
from nexus_lab.cache.words import decode_words, n_operands
from nexus_lab.errors import NexusError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["DEFAULT_TREE_WORDS", "OpTree", "ProgramTree", "Tier", "TreeError", "TreeMatch", "TreeNode"]

DEFAULT_TREE_WORDS = 2**24
"""Words a tree holds by default: 64 MB of tokens."""


class TreeError(NexusError):
    """The tree was asked about a program that it does not hold, or that does not fit."""


class Tier(IntFlag):
    """Where the state of a program is; none of them when its rows are gone."""

    NOWHERE = 0
    LIVE = 1
    HOST = 2
    DISK = 4


@dataclass(frozen=True, slots=True)
class TreeMatch:
    """The longest beginning of a program that is in the tree.

    Attributes
    ----------
    ops
        Whole canonical operations that are there.
    op_tokens
        Tokens of the append after them that are there.
    tokens
        Logical tokens that are there.
    complete
        All of the program is there.
    node
        The node where it ends, or within whose edge.
    """

    ops: int
    op_tokens: int
    tokens: int
    complete: bool
    node: int

    def prefix(self, program: CacheProgram) -> CacheProgram:
        """Return the beginning of `program` that matched."""
        if self.complete:
            return program
        ops: tuple[CacheOp, ...] = program.canonical_ops
        if self.op_tokens:
            part = ops[self.ops]
            assert isinstance(part, Append)  # noqa: S101 - no other operation matches in part
            return CacheProgram((*ops[: self.ops], Append(part.tokens[: self.op_tokens])))
        return CacheProgram(ops[: self.ops])


@dataclass(frozen=True, slots=True)
class TreeNode:
    """One node, for views and for eviction.

    Attributes
    ----------
    node, parent
        Numbers; a node keeps its own while a program ends there.
    kind
        Operation it stands for; an append may lie on several edges.
    start, tokens
        First logical token and number of tokens that it adds.
    dropped
        How many of them every longest program through it has dropped: cache that only a step back, or a
        program that parts above the drop, would use.
    locks
        Holders of it and of what lies below it.
    entry
        Where the state of the program that ends here is.
    tiers
        Where its rows are active in some state.
    used_at
        Logical time of the last use.
    """

    node: int
    parent: int
    kind: OpKind
    start: int
    tokens: int
    dropped: int
    locks: int
    entry: Tier
    tiers: Tier
    used_at: int


class ProgramTree(Protocol):
    """Contract of a tree of programs, which are entries in one or several tiers.

    Programs are compared in canonical form. Of the programs that no other continues, the unlocked one that
    was used longest ago is evicted first; an insert and a match use a program and all its beginnings.
    """

    def insert(self, program: CacheProgram, tier: Tier) -> tuple[str, ...]:
        """Make `program` an entry in a tier; returns the ids of the programs that had to go for it.

        Raises
        ------
        TreeError
            When it does not fit, or is empty. Others may have gone, unless it would not fit by itself.
        """
        ...

    def remove(self, program_id: str, tier: Tier) -> None:
        """Take an entry out of a tier.

        Raises
        ------
        TreeError
            When it is not there, or is locked and in no other tier.
        """
        ...

    def match(self, program: CacheProgram) -> TreeMatch:
        """Return the longest beginning of `program` that is there; it counts as used now."""
        ...

    def tiers(self, program_id: str) -> Tier:
        """Return the tiers of an entry."""
        ...

    def lock(self, program_id: str) -> None:
        """Keep an entry; locks count."""
        ...

    def unlock(self, program_id: str) -> None:
        """End a lock."""
        ...

    def evict(self) -> str | None:
        """Forget one program, in every tier; returns its id."""
        ...

    def check_integrity(self) -> None:
        """Raise `IntegrityError` when the structure contradicts itself."""
        ...


class OpTree:
    """The native tree, behind the contract `ProgramTree`.

    Parameters
    ----------
    max_words
        Limit of what it holds: a word for each token and other operand, shared ones once.
    """

    def __init__(self, max_words: int = DEFAULT_TREE_WORDS) -> None:
        self._tree = _core.OpTree(max_words)
        self._max = max_words
        self._listeners: list[weakref.WeakMethod[Callable[[str], None]]] = []
        self._node_of: dict[str, int] = {}
        self._entries: dict[int, tuple[str, Tier]] = {}

    def __contains__(self, program_id: object) -> bool:
        return program_id in self._node_of

    def __len__(self) -> int:
        return len(self._node_of)

    def insert(self, program: CacheProgram, tier: Tier) -> tuple[str, ...]:
        """See `ProgramTree.insert`."""
        gone: list[str] = []
        node = None
        while node is None:
            try:
                node = self._tree.insert(program.words, tier)
            except ValueError as error:
                raise TreeError(f"no entry for {program!r}: {error}") from error
            except _core.ArenaFull as error:
                # Nothing goes for what would not fit in an empty tree.
                lost = self.evict() if n_operands(program) <= self._max else None
                if lost is None:
                    raise TreeError(str(error), next_step="unlock programs, or allow more words") from error
                gone.append(lost)
        self._node_of[program.id] = node
        self._entries[node] = (program.id, self._entries.get(node, ("", Tier.NOWHERE))[1] | tier)
        return tuple(gone)

    def remove(self, program_id: str, tier: Tier) -> None:
        """See `ProgramTree.remove`."""
        node = self._node(program_id)
        try:
            self._tree.remove(node, tier)
        except ValueError as error:
            raise TreeError(f"{program_id}: {error}", next_step="unlock it, and name its tier") from error
        left = self._entries[node][1] & ~tier
        if left:
            self._entries[node] = (program_id, left)
        else:
            self._forget(node)

    def match(self, program: CacheProgram) -> TreeMatch:
        """See `ProgramTree.match`."""
        node, _, tokens, ops, op_tokens, _, complete = self._tree.match(program.words)
        return TreeMatch(ops, op_tokens, tokens, complete, node)

    def source(self, match: TreeMatch, tiers: Tier) -> str | None:
        """Return an entry in one of `tiers` whose state begins with what matched and only grew behind it.

        Raises
        ------
        TreeError
            When what matched has been evicted since.
        """
        try:
            node = self._tree.source(match.node, tiers)
        except IndexError as error:
            raise TreeError(f"what matched is gone: {error}", next_step="match again") from error
        return self._entries.get(node, (None,))[0]

    def held(self, program: CacheProgram, tiers: Tier) -> tuple[CacheProgram, str] | None:
        """Return the longest beginning of `program` that an entry in one of `tiers` has the state of.

        Returns
        -------
        tuple or None
            The beginning, and the entry: of that very program, or of one that only grew behind it.
        """
        node, _, tokens, ops, op_tokens, entry, complete = self._tree.match(program.words)
        if not tokens:
            return None
        source = self._tree.source(node, tiers)
        if source >= 0:
            match = TreeMatch(ops, op_tokens, tokens, complete, node)
            return match.prefix(program), self._entries[source][0]
        above = () if entry < 0 else reversed(self._tree.path(entry))
        found = next((at for at in above if at in self._entries and self._entries[at][1] & tiers), None)
        return None if found is None else (self.program(found), self._entries[found][0])

    def longest(self) -> frozenset[str]:
        """Return the entries that no other continues."""
        rows = self._tree.survey()
        leaves = np.setdiff1d(rows[1:, 0], rows[:, 1])
        return frozenset(self._entries[node][0] for node in leaves.tolist() if node in self._entries)

    def tiers(self, program_id: str) -> Tier:
        """See `ProgramTree.tiers`."""
        node = self._node_of.get(program_id)
        return Tier.NOWHERE if node is None else self._entries[node][1]

    def lock(self, program_id: str) -> None:
        """See `ProgramTree.lock`."""
        self._tree.lock(self._node(program_id))

    def unlock(self, program_id: str) -> None:
        """See `ProgramTree.unlock`."""
        try:
            self._tree.unlock(self._node(program_id))
        except ValueError as error:
            raise TreeError(f"{program_id}: {error}", next_step="unlock each lock once") from error

    def evict(self) -> str | None:
        """See `ProgramTree.evict`."""
        node = self._tree.evict()
        if node < 0:
            return None
        lost = self._forget(node)
        for listener in [held() for held in self._listeners]:
            if listener is not None:
                listener(lost)
        return lost

    def on_evicted(self, listener: Callable[[str], None]) -> None:
        """Have a bound method called with the id of each program that is evicted; it is held weakly."""
        self._listeners.append(weakref.WeakMethod(listener))

    def program(self, node: int) -> CacheProgram:
        """Return the program that ends at a node.

        Raises
        ------
        TreeError
            When there is no such node.
        """
        try:
            return CacheProgram(decode_words(self._tree.program(node)))
        except IndexError as error:
            raise TreeError(str(error), next_step="name a node of the last survey") from error

    def path(self, program_id: str) -> tuple[int, ...]:
        """Return the nodes that lead to an entry, from below the root."""
        return tuple(self._tree.path(self._node(program_id)))

    def survey(self) -> tuple[TreeNode, ...]:
        """Return every node but the root, parents before children."""
        return tuple(_described(row) for row in self._tree.survey().tolist()[1:])

    def counters(self) -> dict[str, int]:
        """Return counts of words, nodes, entries, locks, matches, inserts, splits and evictions."""
        return dict(self._tree.counters())

    def check_integrity(self) -> None:
        """See `ProgramTree.check_integrity`."""
        try:
            self._tree.check_integrity()
        except RuntimeError as error:
            raise IntegrityError(str(error), next_step="report this") from error
        entries = {node.node: node.entry for node in self.survey() if node.entry}
        if entries != {node: tier for node, (_, tier) in self._entries.items()}:
            raise IntegrityError("op tree: entries are booked otherwise", next_step="report this")
        if {name: node for node, (name, _) in self._entries.items()} != self._node_of:
            raise IntegrityError("op tree: programs and nodes differ", next_step="report this")

    def __iter__(self) -> Iterator[str]:
        return iter(tuple(self._node_of))  # other threads look while programs come and go

    def _node(self, program_id: str) -> int:
        node = self._node_of.get(program_id)
        if node is None:
            raise TreeError(f"program {program_id} is no entry", next_step="insert it first")
        return node

    def _forget(self, node: int) -> str:
        program_id, _ = self._entries.pop(node)
        del self._node_of[program_id]
        return program_id


def _described(row: list[int]) -> TreeNode:
    node, parent, kind, start, tokens, dropped, locks, entry, tiers, used_at = row
    return TreeNode(
        node, parent, _KINDS[kind], start, tokens, dropped, locks, Tier(entry), Tier(tiers), used_at
    )


_KINDS = tuple(OpKind)
