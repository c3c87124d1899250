"""Buddy arena and L0 arena as Python sees them: lifetimes, twins, threads."""

from __future__ import annotations

import gc
import threading

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from nexus_lab import _core


def test_a_block_lives_as_long_as_anything_that_looks_at_it():
    arena = _core.BuddyArena(1 << 20)
    block = arena.allocate(5000)
    assert len(block) == 5000
    assert memoryview(block).nbytes == 5000
    array = np.frombuffer(block, dtype=np.float16)
    array[:] = 3
    view = memoryview(block)
    del block, array
    gc.collect()
    assert arena.counters()["live"] == 1
    assert bytes(view[:2]) == np.float16(3).tobytes()
    view.release()
    gc.collect()
    assert arena.counters()["live"] == 0
    assert arena.counters()["used_bytes"] == 0


def test_an_arena_lives_as_long_as_its_blocks():
    block = _core.BuddyArena(1 << 16).allocate(100)
    gc.collect()
    memoryview(block)[:] = b"x" * 100
    assert bytes(block) == b"x" * 100


def test_a_full_arena_says_so_and_stays_whole():
    arena = _core.BuddyArena(1 << 16, min_block=1024)
    kept = [arena.allocate(1024) for _ in range(64)]
    with pytest.raises(_core.ArenaFull, match="in use"):
        arena.allocate(1)
    assert issubclass(_core.ArenaFull, MemoryError)
    kept.clear()
    arena.check_integrity()
    assert arena.counters()["refusals"] == 1
    assert len(arena.allocate(1 << 16)) == 1 << 16
    with pytest.raises(ValueError, match="at least one byte"):
        arena.allocate(0)
    with pytest.raises(ValueError, match="min_block"):
        _core.BuddyArena(1 << 16, min_block=1000)


def test_threads_share_an_arena():
    arena = _core.BuddyArena(1 << 20, min_block=256)
    wrong: list[int] = []

    def work(colour: int) -> None:
        rng = np.random.default_rng(colour)
        live: list[np.ndarray] = []
        for _ in range(400):
            if live and rng.random() < 0.5:
                array = live.pop(int(rng.integers(len(live))))
                if not np.all(array == colour):
                    wrong.append(colour)
            else:
                try:
                    array = np.frombuffer(arena.allocate(int(rng.integers(1, 4000))), dtype=np.uint8)
                except _core.ArenaFull:
                    continue
                array[:] = colour
                live.append(array)

    threads = [threading.Thread(target=work, args=(colour,)) for colour in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    arena.check_integrity()
    assert wrong == []
    assert arena.counters()["live"] == 0


class BuddyMachine(RuleBasedStateMachine):
    """Blocks painted in their own colours never touch each other."""

    def __init__(self) -> None:
        super().__init__()
        self.arena = _core.BuddyArena(100 * 64, min_block=64)
        self.live: list[tuple[np.ndarray, int]] = []
        self.colour = 0

    @rule(n=st.integers(1, 2500))
    def allocate(self, n: int) -> None:
        try:
            block = np.frombuffer(self.arena.allocate(n), dtype=np.uint8)
        except _core.ArenaFull:
            assert self.arena.counters()["largest_free_bytes"] < n
            return
        self.colour = self.colour % 255 + 1
        block[:] = self.colour
        self.live.append((block, self.colour))

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        self.live.pop(data.draw(st.integers(0, len(self.live) - 1)))

    @invariant()
    def whole(self) -> None:
        self.arena.check_integrity()
        counters = self.arena.counters()
        assert counters["live"] == len(self.live)
        assert counters["requested_bytes"] == sum(len(block) for block, _ in self.live)
        assert counters["requested_bytes"] <= counters["used_bytes"] <= counters["capacity_bytes"]
        for block, colour in self.live:
            assert np.all(block == colour)


TestBuddyMachine = BuddyMachine.TestCase
TestBuddyMachine.settings = settings(max_examples=25, stateful_step_count=40, deadline=None)

token_lists = st.lists(st.integers(0, 2), max_size=24)


def _shared(left: list[int], right: list[int]) -> int:
    n = 0
    while n < min(len(left), len(right)) and left[n] == right[n]:
        n += 1
    return n


def _array(tokens: list[int]) -> np.ndarray:
    return np.array(tokens, dtype=np.int32)


class L0Machine(RuleBasedStateMachine):
    """The arena does what a dictionary, a clock and a slow loop do."""

    N = 4

    def __init__(self) -> None:
        super().__init__()
        self.arena = _core.L0Arena(self.N, reserved_tokens=4)
        self.tokens: dict[int, list[int]] = {}
        self.pins = [0] * self.N
        self.used = [0] * self.N
        self.clock = 0

    def touch(self, slot: int) -> None:
        self.clock += 1
        self.used[slot] = self.clock

    @rule(tokens=token_lists)
    def match(self, tokens: list[int]) -> None:
        lengths = {slot: _shared(held, tokens) for slot, held in self.tokens.items()}
        best = max(lengths.values(), default=0)
        slot = min(slot for slot, length in lengths.items() if length == best) if best else -1
        assert self.arena.match(_array(tokens)) == (slot, best)
        if slot >= 0:
            self.touch(slot)

    @rule(tokens=token_lists)
    def bind_any(self, tokens: list[int]) -> None:
        empty = [slot for slot in range(self.N) if slot not in self.tokens]
        loose = [slot for slot in range(self.N) if self.pins[slot] == 0]
        if not empty and not loose:
            with pytest.raises(_core.ArenaFull):
                self.arena.bind(None, _array(tokens))
            return
        expected = empty[0] if empty else min(loose, key=self.used.__getitem__)
        assert self.arena.bind(None, _array(tokens)) == expected
        self.tokens[expected] = tokens
        self.touch(expected)

    @rule(slot=st.integers(0, N - 1), tokens=token_lists)
    def bind(self, slot: int, tokens: list[int]) -> None:
        assert self.arena.bind(slot, _array(tokens)) == slot
        self.tokens[slot] = tokens
        self.touch(slot)

    @rule(slot=st.integers(0, N - 1))
    def pin(self, slot: int) -> None:
        if slot in self.tokens:
            self.arena.pin(slot)
            self.pins[slot] += 1
        else:
            with pytest.raises(ValueError, match="no sequence"):
                self.arena.pin(slot)

    @rule(slot=st.integers(0, N - 1))
    def unpin(self, slot: int) -> None:
        if self.pins[slot]:
            self.arena.unpin(slot)
            self.pins[slot] -= 1
        else:
            with pytest.raises(ValueError, match="slot"):
                self.arena.unpin(slot)

    @rule(slot=st.integers(0, N - 1))
    def release(self, slot: int) -> None:
        if slot in self.tokens and not self.pins[slot]:
            self.arena.release(slot)
            del self.tokens[slot]
        else:
            with pytest.raises(ValueError, match="slot"):
                self.arena.release(slot)

    @invariant()
    def whole(self) -> None:
        self.arena.check_integrity()
        for slot in range(self.N):
            assert self.arena.tokens(slot).tolist() == self.tokens.get(slot, [])
        counters = self.arena.counters()
        assert counters["live"] == len(self.tokens)
        assert counters["pinned"] == sum(pins > 0 for pins in self.pins)


TestL0Machine = L0Machine.TestCase
TestL0Machine.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)


def test_the_pool_has_32_slots_unless_told_otherwise():
    arena = _core.L0Arena()
    assert arena.counters()["n_slots"] == 32
    assert [arena.bind(None, _array([i])) for i in range(33)] == [*range(32), 0]
    assert arena.counters()["evictions"] == 1


def test_tokens_of_another_type_are_refused():
    with pytest.raises(TypeError):
        _core.L0Arena().match(np.array([1], dtype=np.int64))
    with pytest.raises(IndexError):
        _core.L0Arena().pin(32)
