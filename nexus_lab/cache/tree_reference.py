"""The contract of the op tree again, slow and obviously right: a list of programs, compared one by one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from nexus_lab.cache.ops import Append, CacheOp
from nexus_lab.cache.tree import DEFAULT_TREE_WORDS, Tier, TreeError, TreeMatch
from nexus_lab.cache.words import n_operands

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nexus_lab.cache.program import CacheProgram

__all__ = ["ReferenceTree"]


@dataclass(slots=True)
class _Entry:
    program: CacheProgram
    tiers: Tier
    locks: int = 0
    used_at: int = 0


class ReferenceTree:
    """A `ProgramTree` without a tree."""

    def __init__(self, max_words: int = DEFAULT_TREE_WORDS) -> None:
        self._max = max_words
        self._entries: dict[str, _Entry] = {}
        self._clock = 0

    def insert(self, program: CacheProgram, tier: Tier) -> tuple[str, ...]:
        """See `ProgramTree.insert`."""
        gone: list[str] = []
        if not program.canonical_ops:
            raise TreeError("the empty program needs no entry")
        while self._words_with(program) > self._max:
            lost = self.evict() if n_operands(program) <= self._max else None
            if lost is None:
                raise TreeError("it does not fit", next_step="unlock programs, or allow more words")
            gone.append(lost)
        entry = self._entries.setdefault(program.id, _Entry(program, Tier.NOWHERE))
        entry.tiers |= tier
        self._use(program)
        return tuple(gone)

    def remove(self, program_id: str, tier: Tier) -> None:
        """See `ProgramTree.remove`."""
        entry = self._entries.get(program_id)
        if entry is None or not entry.tiers & tier:
            raise TreeError("it is not in that tier")
        if entry.locks and not entry.tiers & ~tier:
            raise TreeError("it is locked")
        entry.tiers &= ~tier
        if not entry.tiers:
            del self._entries[program_id]

    def match(self, program: CacheProgram) -> TreeMatch:
        """See `ProgramTree.match`; there are no nodes."""
        found = [_shared(entry.program, program) for entry in self._entries.values()]
        ops, op_tokens = max(found, default=(0, 0))
        self._use(program)
        wanted = program.canonical_ops
        tokens = op_tokens + sum(len(op.tokens) for op in wanted[:ops] if hasattr(op, "tokens"))
        return TreeMatch(ops, op_tokens, tokens, ops == len(wanted), 0)

    def tiers(self, program_id: str) -> Tier:
        """See `ProgramTree.tiers`."""
        entry = self._entries.get(program_id)
        return Tier.NOWHERE if entry is None else entry.tiers

    def lock(self, program_id: str) -> None:
        """See `ProgramTree.lock`."""
        self._entry(program_id).locks += 1

    def unlock(self, program_id: str) -> None:
        """See `ProgramTree.unlock`."""
        entry = self._entry(program_id)
        if not entry.locks:
            raise TreeError("it is not locked")
        entry.locks -= 1

    def evict(self) -> str | None:
        """See `ProgramTree.evict`."""
        free = [entry for entry in self._longest(self._entries.values()) if not entry.locks]
        if not free:
            return None
        victim = min(free, key=lambda entry: entry.used_at).program.id
        del self._entries[victim]
        return victim

    def check_integrity(self) -> None:
        """See `ProgramTree.check_integrity`; there is nothing that could contradict itself."""

    def dropped(self, prefix: CacheProgram, start: int, stop: int) -> int:
        """Count the tokens from `start` to `stop` that every longest program behind `prefix` has dropped."""
        longest = [entry.program.layout.active for entry in self._longest(self._behind(prefix))]
        return sum(not any(active[i] for active in longest) for i in range(start, stop))

    def tiers_of_rows(self, prefix: CacheProgram, start: int, stop: int) -> Tier:
        """Return the tiers of programs behind `prefix` that have not dropped all of these tokens."""
        found = Tier.NOWHERE
        for entry in self._behind(prefix):
            if start == stop or entry.program.layout.active[start:stop].any():
                found |= entry.tiers
        return found

    def _behind(self, prefix: CacheProgram) -> list[_Entry]:
        return [entry for entry in self._entries.values() if _begins(prefix, entry.program)]

    def _longest(self, entries: object) -> Iterator[_Entry]:
        for entry in list(entries):  # type: ignore[call-overload]
            others = (other for other in self._entries.values() if other is not entry)
            if not any(_begins(entry.program, other.program) for other in others):
                yield entry

    def _entry(self, program_id: str) -> _Entry:
        if program_id not in self._entries:
            raise TreeError("it is no entry")
        return self._entries[program_id]

    def _use(self, program: CacheProgram) -> None:
        self._clock += 1
        for entry in self._entries.values():
            if _begins(entry.program, program):
                entry.used_at = self._clock

    def _words_with(self, program: CacheProgram) -> int:
        """Count operands of all programs, those of common beginnings once."""
        seen: set[tuple[object, ...]] = set()
        words = 0
        for held in (*(entry.program for entry in self._entries.values()), program):
            before: tuple[CacheOp, ...] = ()
            for op in held.canonical_ops:
                if isinstance(op, Append):
                    parts = [(before, "append", op.tokens[: n + 1]) for n in range(len(op.tokens))]
                    words += sum(part not in seen for part in parts)
                    seen.update(parts)
                elif (before, op) not in seen:
                    seen.add((before, op))
                    words += _operands(op)
                before = (*before, op)
        return words


def _operands(op: CacheOp) -> int:
    """Count operands as `words` writes them, spelled out again."""
    tokens = len(getattr(op, "tokens", ()))
    name = getattr(op, "block_id", "").encode()
    head = 2 + (len(name) + 3) // 4 if name else 0
    return head + tokens + len(getattr(op, "selection", ())) + 2 * len(getattr(op, "ranges", ()))


def _shared(held: CacheProgram, wanted: CacheProgram) -> tuple[int, int]:
    """Count whole operations of `wanted` that `held` begins with, and tokens of the append after them."""
    for number, op in enumerate(wanted.canonical_ops):
        other = held.canonical_ops[number] if number < len(held.canonical_ops) else None
        if isinstance(op, Append) and isinstance(other, Append):
            pairs = enumerate(zip(op.tokens, other.tokens, strict=False))
            shorter = min(len(op.tokens), len(other.tokens))
            common = next((i for i, (mine, theirs) in pairs if mine != theirs), shorter)
            if common < len(op.tokens):
                return number, common
            if common < len(other.tokens):
                return number + 1, 0
        elif op != other:
            return number, 0
    return len(wanted.canonical_ops), 0


def _begins(prefix: CacheProgram, program: CacheProgram) -> bool:
    """Whether `program` begins with `prefix`, of whose last append it may have more tokens."""
    return _shared(program, prefix) == (len(prefix.canonical_ops), 0)
