"""The native op tree against its reference: random programs, requests, locks and limits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from cache_strategies import next_op, programs
from hypothesis import given, settings
from hypothesis import strategies as st

from nexus_lab.cache import Append, CacheProgram, OpKind, OpTree, Tier, TreeError
from nexus_lab.cache.tree_reference import ReferenceTree
from nexus_lab.cache.words import decode_words, encode_words

TIERS = st.sampled_from((Tier.LIVE, Tier.HOST, Tier.DISK))
DEEDS = ("insert", "insert", "insert", "match", "match", "remove", "lock", "unlock", "evict")


@st.composite
def relatives(draw: st.DrawFn, known: list[CacheProgram]) -> CacheProgram:
    """Return a program that shares its beginning with a known one, cut within an append or between."""
    if not known or draw(st.booleans()):
        return draw(programs())
    ops = list(draw(st.sampled_from(known)).canonical_ops)
    ops = ops[: draw(st.integers(0, len(ops)))]
    if ops and isinstance(ops[-1], Append) and draw(st.booleans()):
        ops[-1] = Append(ops[-1].tokens[: draw(st.integers(0, len(ops[-1].tokens)))])
    program = CacheProgram(ops)
    for _ in range(draw(st.integers(0, 3))):
        program = program.then(draw(next_op(program)))
    return program


def outcome(call: Any, *arguments: Any) -> Any:
    """What a call returns, or that it was refused."""
    try:
        return call(*arguments)
    except TreeError:
        return TreeError


def do(draw: st.DrawFn, trees: tuple[OpTree, ReferenceTree], known: list[CacheProgram]) -> None:
    deed = draw(st.sampled_from(DEEDS))
    program = draw(relatives(known))
    some = draw(st.sampled_from(known)).id if known else program.id
    tier = draw(TIERS)
    match deed:
        case "insert":
            known.append(program)
            results = [outcome(tree.insert, program, tier) for tree in trees]
        case "match":
            results = [tree.match(program) for tree in trees]
            assert results[0].prefix(program) == results[1].prefix(program)
            assert len(results[0].prefix(program).layout) == results[0].tokens
            results = [(item.ops, item.op_tokens, item.tokens, item.complete) for item in results]
        case "evict":
            results = [tree.evict() for tree in trees]
        case "remove":
            results = [outcome(tree.remove, some, tier) for tree in trees]
        case _:
            results = [outcome(getattr(tree, deed), some) for tree in trees]
    assert results[0] == results[1], deed


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_the_tree_does_what_its_reference_does(data: st.DataObject):
    limit = data.draw(st.sampled_from((12, 40, 10_000)))
    native, reference = OpTree(limit), ReferenceTree(limit)
    known: list[CacheProgram] = []
    for _ in range(data.draw(st.integers(1, 14))):
        do(data.draw, (native, reference), known)
        native.check_integrity()
        assert native.counters()["words"] <= limit
        for program in known:
            assert native.tiers(program.id) == reference.tiers(program.id)
    for node in native.survey():
        prefix = native.program(node.node)
        stop = node.start + node.tokens
        assert len(prefix.layout) == stop
        assert node.dropped == reference.dropped(prefix, node.start, stop)
        assert node.tiers == reference.tiers_of_rows(prefix, node.start, stop)


@given(programs())
def test_words_say_the_canonical_operations(program: CacheProgram):
    assert decode_words(program.words) == program.canonical_ops
    assert np.array_equal(encode_words(program.canonical_ops, program.layout.tokens), program.words)


@given(programs(), programs())
def test_words_are_equal_for_equal_programs_only(one: CacheProgram, two: CacheProgram):
    assert (one == two) == np.array_equal(one.words, two.words)


def test_how_tokens_were_batched_does_not_count_but_when_they_were_dropped_does():
    tree = OpTree()
    early = CacheProgram().append(range(6)).drop((1, 3)).append((7, 8))
    tree.insert(early, Tier.HOST)
    again = CacheProgram().append(range(3)).append((3, 4, 5)).drop((1, 2)).drop((2, 3)).append((7,))
    assert tree.match(again.append((8,))).complete
    late = CacheProgram().append((*range(6), 7, 8)).drop((1, 3))
    found = tree.match(late)
    assert (found.tokens, found.ops, found.op_tokens) == (6, 0, 6)
    tree.insert(late, Tier.LIVE)
    kinds = [node.kind for node in tree.survey()]
    assert kinds.count(OpKind.DROP) == 2
    assert {node.tokens for node in tree.survey() if node.dropped} == {2}


def test_a_source_only_grew_behind_what_matched():
    tree = OpTree()
    start = CacheProgram().append(range(9))
    tree.insert(start.drop((2, 4)).append((1, 2, 3)), Tier.HOST)
    found = tree.match(start.drop((2, 4)).append((1, 2, 9)))
    assert tree.source(found, Tier.HOST) == start.drop((2, 4)).append((1, 2, 3)).id
    assert tree.source(found, Tier.LIVE | Tier.DISK) is None
    assert tree.source(tree.match(start), Tier.HOST) is None  # behind the drop its rows are not all there
    tree.insert(start.append((9,)), Tier.HOST)
    assert tree.source(tree.match(start), Tier.HOST) == start.append((9,)).id


def test_what_matched_and_was_evicted_is_told():
    tree = OpTree()
    program = CacheProgram().append(range(9))
    tree.insert(program, Tier.HOST)
    found = tree.match(program)
    tree.evict()
    with pytest.raises(TreeError, match="gone"):
        tree.source(found, Tier.HOST)


def test_programs_can_be_walked_while_they_come_and_go():
    tree = OpTree()
    for number in range(9):
        tree.insert(CacheProgram().append((number, 1)), Tier.HOST)
    seen = []
    for program_id in tree:
        seen.append(program_id)
        tree.evict()
        tree.insert(CacheProgram().append((100 + len(seen), 1)), Tier.HOST)
    assert len(set(seen)) == 9


def test_what_is_not_there_is_refused_with_a_next_step():
    tree = OpTree(20)
    program = CacheProgram().append(range(4))
    tree.insert(program, Tier.HOST)
    for refused in (
        lambda: tree.remove(program.id, Tier.LIVE),
        lambda: tree.unlock(program.id),
        lambda: tree.lock("nobody"),
        lambda: tree.program(99),
        lambda: tree.insert(CacheProgram().append(range(21)), Tier.HOST),
        lambda: tree.insert(CacheProgram(), Tier.HOST),
    ):
        with pytest.raises(TreeError):
            refused()
    tree.check_integrity()


@pytest.mark.parametrize("kind", [OpTree, ReferenceTree])
def test_nothing_goes_for_what_would_not_fit_by_itself(kind: type[OpTree]):
    tree = kind(20)
    small = CacheProgram().append((7, 8))
    tree.insert(small, Tier.HOST)
    with pytest.raises(TreeError):
        tree.insert(CacheProgram().append(range(40)), Tier.HOST)
    assert tree.tiers(small.id) == Tier.HOST
    assert tree.insert(CacheProgram().append(range(20)), Tier.HOST) == (small.id,)
