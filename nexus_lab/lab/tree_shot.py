"""Which programs share what: the op tree as it is now, and what of known programs is no longer in it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import pairwise
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from nexus_lab.cache import Append, Drop, OpKind, Repair, Repos, Splice, Tier, TreeError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from nexus_lab.cache import CacheProgram, OpTree, TreeNode

__all__ = ["PLACES", "Branch", "Step", "TreeShot", "place_of", "shoot", "steps_of"]

PLACES: Mapping[Tier, str] = MappingProxyType({Tier.LIVE: "live", Tier.HOST: "host", Tier.DISK: "disk"})
"""Where rows are, in words, the fastest first."""


_CHANGES = frozenset({OpKind.DROP, OpKind.REPAIR, OpKind.REPOS})


def place_of(tiers: Tier) -> tuple[str, ...]:
    """Return where rows are; ``gone`` when they are nowhere."""
    return tuple(word for tier, word in PLACES.items() if tier in tiers) or ("gone",)


@dataclass(frozen=True, slots=True)
class Step:
    """One operation of a program: the id of the state behind it, where it begins, and its tokens."""

    state_id: str
    kind: OpKind
    start: int
    tokens: int


def steps_of(program: CacheProgram) -> tuple[Step, ...]:
    """Return the operations of a program; folds it anew."""
    prefixes = list(program.prefixes())
    return tuple(
        Step(after.id, after.ops[-1].kind, len(before.layout), _touched(before, after))
        for before, after in pairwise(prefixes)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Branch:
    """A node of the tree as it is drawn.

    Attributes
    ----------
    node
        Its number in the op tree; below 0 for what is no longer there.
    parent
        Number of the node above it; 0 is the root.
    start, tokens
        First logical token and how many it adds; of a drop, repair or repos how many it touches, where known.
    dropped
        How many of its tokens every longest program through it has dropped.
    places
        Where its rows are: ``live``, ``host``, ``disk``, or ``gone``.
    entry
        Where the state is of the program that ends here; empty where none does.
    shared
        Longest programs that go through it.
    op
        Operation of the live program whose state ends here, from 1.
    here
        The cursor stands here.
    own
        The live conversation goes through it.
    name
        What ends here: a run, or a program by the beginning of its id.
    """

    node: int
    parent: int
    kind: OpKind
    start: int
    tokens: int
    dropped: int
    places: tuple[str, ...]
    entry: tuple[str, ...] = ()
    locks: int = 0
    used_at: int = 0
    shared: int = 1
    op: int | None = None
    here: bool = False
    own: bool = False
    name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeShot:
    """The op tree at one moment.

    Attributes
    ----------
    branches
        All nodes, parents before children.
    nodes
        Node of the state behind each operation of the live program that has one of its own, by number.
    """

    branches: tuple[Branch, ...] = ()
    nodes: Mapping[int, int] = field(default_factory=dict)

    @property
    def programs(self) -> int:
        """Longest programs: nodes that nothing follows."""
        parents = {branch.parent for branch in self.branches}
        return sum(branch.node not in parents for branch in self.branches)


def shoot(
    tree: OpTree,
    survey: tuple[TreeNode, ...],
    live: Sequence[Step],
    cursor: int,
    *,
    left: Iterable[tuple[str, Sequence[Step]]] = (),
    name: str = "this conversation",
) -> TreeShot:
    """Return the tree as `survey` has it, with the live program and those that were left for a fork.

    Parameters
    ----------
    tree
        To look programs up in; from any thread. What has changed since the survey is left out.
    live
        All operations of the live conversation, those ahead of the cursor included.
    cursor
        Operations behind the cursor.
    left
        Programs of other runs, by the run's name.
    """
    maker = _Maker(tree, survey)
    nodes, gone = maker.follow(live)
    maker.name(nodes, gone, name)
    for run, steps in left:
        found, lost = maker.follow(steps)
        maker.name(found, lost, run)
    return maker.shot(nodes, gone, cursor)


class _Maker:
    def __init__(self, tree: OpTree, survey: tuple[TreeNode, ...]) -> None:
        self._tree = tree
        self._survey = survey
        self._known = {node.node for node in survey}
        self._parents = {node.node: node.parent for node in survey}
        self._lost: dict[int, Branch] = {}
        self._names: dict[int, list[str]] = {}
        self._sizes: dict[int, int] = {}
        self._ghosts: dict[tuple[int, str], int] = {}

    def follow(self, steps: Sequence[Step]) -> tuple[dict[int, int], list[int]]:
        """Return the node of each kept state of a program by its number of operations, and its lost nodes."""
        found: dict[int, int] = {}
        for number, step in enumerate(steps, start=1):
            node = self._node(step.state_id)
            if node is not None:
                found[number] = node
                self._sizes[node] = step.tokens
        last = max(found, default=0)
        parent, before, lost = found.get(last, 0), steps[last - 1].state_id if last else "", list[int]()
        for step in steps[last:]:
            if step.state_id != before:
                parent, before = self._ghost(parent, step), step.state_id
                lost.append(parent)
        return found, lost

    def _node(self, program_id: str) -> int | None:
        if program_id not in self._tree:
            return None
        try:
            node = self._tree.path(program_id)[-1]
        except (TreeError, IndexError):  # evicted meanwhile
            return None
        return node if node in self._known else None

    def _ghost(self, parent: int, step: Step) -> int:
        """Return the number of a node that the tree no longer has; equal ones are one."""
        key = parent, step.state_id
        if key not in self._ghosts:
            number = self._ghosts[key] = -1 - len(self._ghosts)
            self._lost[number] = Branch(
                node=number,
                parent=parent,
                kind=step.kind,
                start=step.start,
                tokens=step.tokens,
                dropped=0,
                places=("gone",),
            )
            self._parents[number] = parent
        return self._ghosts[key]

    def name(self, found: dict[int, int], lost: list[int], name: str) -> None:
        """Say what ends where a program ends."""
        end = lost[-1] if lost else found.get(max(found, default=0), 0)
        if end:
            self._names.setdefault(end, []).append(name)

    def shot(self, nodes: dict[int, int], lost: list[int], cursor: int) -> TreeShot:
        """Put everything together."""
        own = self._above([*nodes.values(), *lost])
        shared = self._shared()
        ops = {node: number for number, node in nodes.items()}
        here = nodes.get(cursor)
        made = [self._of(node) for node in self._survey] + list(self._lost.values())
        ids = self._ids()
        branches = tuple(
            replace(
                branch,
                shared=shared[branch.node],
                op=ops.get(branch.node),
                here=branch.node == here,
                own=branch.node in own,
                name=", ".join(self._names.get(branch.node, ())) or ids.get(branch.node, ""),
            )
            for branch in made
        )
        return TreeShot(branches=branches, nodes=MappingProxyType(dict(nodes)))

    def _of(self, node: TreeNode) -> Branch:
        entry = place_of(node.entry) if node.entry else ()
        return Branch(
            node=node.node,
            parent=node.parent,
            kind=node.kind,
            start=node.start,
            tokens=self._sizes.get(node.node, 0) if node.kind in _CHANGES else node.tokens,
            dropped=node.dropped,
            places=place_of(node.tiers),
            entry=entry,
            locks=node.locks,
            used_at=node.used_at,
        )

    def _ids(self) -> dict[int, str]:
        """Return the beginning of the id of what ends at a leaf."""
        parents = set(self._parents.values())
        found = {}
        for program_id in list(self._tree):
            node = self._node(program_id)
            if node is not None and node not in parents:
                found[node] = f"program {program_id[:8]}"
        return found

    def _above(self, nodes: Iterable[int]) -> set[int]:
        seen: set[int] = set()
        for node in nodes:
            at = node
            while at and at not in seen:
                seen.add(at)
                at = self._parents.get(at, 0)
        return seen

    def _shared(self) -> dict[int, int]:
        parents = set(self._parents.values())
        counts = dict.fromkeys(self._parents, 0)
        for leaf in (node for node in self._parents if node not in parents):
            at = leaf
            while at:
                counts[at] += 1
                at = self._parents.get(at, 0)
        return counts


def _touched(before: CacheProgram, after: CacheProgram) -> int:
    match after.ops[-1]:
        case Append(tokens) | Splice(_, tokens, _):
            return len(tokens)
        case Repair(selection):
            return len(selection)
        case Drop():
            return before.layout.n_active - after.layout.n_active
        case Repos():
            return int(np.count_nonzero(before.layout.positions != after.layout.positions))
    return 0
