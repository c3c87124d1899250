"""Programs: canonical form, identity, prefixes, JSON, and the fold against its naive twin."""

from __future__ import annotations

import json

import numpy as np
import pytest
from cache_strategies import next_op, programs
from hypothesis import given, settings
from hypothesis import strategies as st

from nexus_lab.cache import (
    Append,
    CacheProgram,
    Drop,
    IntegrityError,
    Origin,
    PositionRun,
    ProgramError,
    Repair,
    Repos,
    Splice,
    fold,
)
from nexus_lab.cache.ops import op_from_dict, op_to_dict
from nexus_lab.cache.reference import reference_fold
from nexus_lab.cache.words import decode_words

EMPTY = CacheProgram()
TEN = EMPTY.append(range(10))


@given(programs())
@settings(max_examples=70)
def test_fold_equals_the_naive_twin(program):
    state = fold(program)
    state.check_integrity()
    twin = reference_fold(program.ops)
    assert state.tokens.tolist() == [item.token for item in twin.tokens]
    assert state.active.tolist() == [item.position is not None for item in twin.tokens]
    assert [p for p in state.positions.tolist() if p >= 0] == [p for p, _ in twin.contents()]
    assert state.origin.tolist() == [item.origin for item in twin.tokens]
    assert state.next_position == twin.next_position


@given(programs())
@settings(max_examples=70)
def test_canonical_form_keeps_the_contents_of_every_row(program):
    canonical = program.canonical()
    assert reference_fold(canonical.ops).tokens == reference_fold(program.ops).tokens
    assert canonical.ops == canonical.canonical().ops
    assert canonical == program
    assert canonical.id == program.id
    assert fold(canonical) == fold(program)


@given(st.data())
@settings(max_examples=40)
def test_extending_changes_only_the_last_canonical_operation(data):
    program = data.draw(programs())
    longer = program.then(data.draw(next_op(program)))
    kept = len(program.canonical_ops) - 1
    assert longer.canonical_ops[: max(kept, 0)] == program.canonical_ops[: max(kept, 0)]
    assert len(longer.canonical_ops) in (kept + 1, kept + 2)
    assert longer == CacheProgram(longer.ops)


@given(programs(), programs())
@settings(max_examples=40)
def test_equal_programs_have_equal_ids_and_only_those(one, two):
    assert (one == two) == (one.id == two.id) == (one.canonical_ops == two.canonical_ops)
    if one == two:
        assert reference_fold(one.ops).tokens == reference_fold(two.ops).tokens


@given(programs())
@settings(max_examples=70)
def test_each_prefix_leads_to_the_program(program):
    for n, prefix in enumerate(program.prefixes()):
        assert prefix.ops == program.prefix(n).ops == program.ops[:n]
        rest = program.remainder(prefix)
        assert rest is not None
        assert prefix.then(*rest) == program
        contents = reference_fold((*prefix.ops, *rest)).contents()
        assert contents == reference_fold(program.ops).contents()


@given(programs(), programs())
@settings(max_examples=70)
def test_a_remainder_is_given_only_where_it_leads_to_the_program(program, other):
    rest = program.remainder(other)
    if rest is not None:
        assert other.then(*rest) == program


@given(programs())
@settings(max_examples=70)
def test_json_round_trip(program):
    again = CacheProgram.from_json(program.to_json())
    assert again.ops == program.ops
    assert again.id == program.id


@given(programs())
@settings(max_examples=70)
def test_runs_dropped_and_plain_length_describe_the_state(program):
    state = fold(program)
    placed = {run.start + i: run.position + i for run in state.runs() for i in range(run.count)}
    assert placed == {int(i): int(state.positions[i]) for i in state.active_indices()}
    lost = [i for start, stop in state.dropped() for i in range(start, stop)]
    assert lost == np.flatnonzero(~state.active).tolist()
    plain = state.plain_length()
    rows = reference_fold(program.ops).contents()[:plain]
    assert rows == reference_fold([Append(tuple(state.tokens[:plain].tolist()))]).contents()


def test_canonical_form_merges_and_removes():
    program = (
        EMPTY.append([1, 2])
        .append([])
        .append([3])
        .repos()
        .drop((2, 3), (0, 1))
        .drop((0, 1))
        .drop()
        .repair([])
    )
    assert program.canonical_ops == (Append((1, 2, 3)), Drop(((0, 1), (2, 3))))
    assert program.repos().repos().canonical_ops[-2:] == (Drop(((0, 1), (2, 3))), Repos())


def test_overlapping_ranges_are_one():
    assert Drop(((4, 6), (0, 2), (2, 3), (5, 9), (7, 7))).ranges == ((0, 3), (4, 9))
    assert TEN.drop((0, 4), (2, 6)) == TEN.drop((0, 3)).drop((1, 6))


def test_repairs_merge_only_where_order_does_not_matter():
    assert TEN.repair([0, 1]).repair([1, 2]) == TEN.repair([0, 1, 2])
    assert TEN.repair([5]).repair([0]) != TEN.repair([0, 5])


def test_a_repair_that_carries_is_another_operation_and_stays_one():
    block = TEN.splice("tool", range(20, 40), anchor=0)
    plain, carried = block.repair(range(10, 26)), block.repair(range(10, 26), carry=True)
    assert plain != carried
    assert plain.id != carried.id
    assert fold(plain).same_layout(fold(carried))
    assert decode_words(carried.words) == carried.canonical_ops
    assert op_from_dict(op_to_dict(carried.ops[-1])) == carried.ops[-1]
    assert "carry" not in op_to_dict(plain.ops[-1])
    twice = block.repair(range(10, 20), carry=True).repair(range(20, 26))
    assert len(twice.canonical_ops) == 4
    assert carried.repair([29]).canonical_ops[-2:] == (carried.ops[-1], Repair((29,)))
    with pytest.raises(ProgramError):
        op_from_dict({"op": "repair", "selection": [1], "carry": 1})


def test_history_is_part_of_the_identity():
    early = EMPTY.append(range(6)).drop((1, 3)).append(range(6, 10))
    late = TEN.drop((1, 3))
    assert fold(early).same_layout(fold(late))
    assert fold(early) != fold(late)
    assert early.id != late.id
    assert reference_fold(early.ops).contents() != reference_fold(late.ops).contents()


def test_drop_that_reaches_the_newest_token_moves_the_cursor_back():
    state = fold(TEN.drop((3, 5), (8, 10)))
    assert state.next_position == 8
    assert fold(TEN.drop((3, 5))).next_position == 10
    assert fold(TEN.drop((0, 10))).next_position == 0
    assert fold(TEN.drop((8, 10)).append([7])).positions.tolist() == [*range(8), -1, -1, 8]


def test_repos_packs_in_logical_order():
    state = fold(TEN.drop((0, 2), (5, 6)).repos().append([7]))
    assert state.positions.tolist() == [-1, -1, 0, 1, 2, -1, 3, 4, 5, 6, 7]
    assert state.runs() == (PositionRun(2, 3, 0), PositionRun(6, 5, 3))


def test_origins():
    state = fold(EMPTY.append([9]).splice("b", [1, 2, 3], anchor=0).repair([1]))
    assert state.origin.tolist() == [Origin.COMPUTED, Origin.REPAIRED, Origin.SPLICED, Origin.SPLICED]
    assert state.plain_length() == 1


def test_ids_do_not_change_between_versions():
    program = EMPTY.append([1, 2, 3]).splice("b", [4], anchor=7).repair([3]).drop((0, 2)).repos()
    assert EMPTY.id == "fb6ad2d0560d11f5c69c4fafd0514cbac84ceb61e8b84b0c09bb0be1a18034ea"
    assert program.id == "73cf6a8613372608a71b224482a99240427bc46cc40e1d6d44ef044e1b060e16"


def test_arrays_are_read_only():
    with pytest.raises(ValueError, match="read-only"):
        fold(TEN).positions[0] = 5


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: Append((1, -2)), "out of range"),
        (lambda: Append("abc"), "no sequence"),
        (lambda: Append((1.5,)), "no integer"),
        (lambda: Splice("", (1,), 0), "names no block"),
        (lambda: Drop(((3, 1),)), "no range"),
        (lambda: Drop(((1, 2, 3),)), "no range"),
        (lambda: TEN.drop((8, 11)), "token 10 does not exist"),
        (lambda: TEN.repair([10]), "token 10 does not exist"),
        (lambda: TEN.drop((2, 4)).repair([3]), "token 3 has been dropped"),
        (lambda: TEN.prefix(2), "no prefix"),
    ],
)
def test_nonsense_is_refused(build, words):
    with pytest.raises(ProgramError, match=words):
        build()


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        '{"format": "other", "version": 1, "ops": []}',
        '{"format": "nexus-cache-program", "version": 2, "ops": []}',
        '{"format": "nexus-cache-program", "version": 1, "ops": {}}',
        '{"format": "nexus-cache-program", "version": 1, "ops": [{"op": "jump"}]}',
        '{"format": "nexus-cache-program", "version": 1, "ops": [{"op": ["append"]}]}',
        '{"format": "nexus-cache-program", "version": 1, "ops": [3]}',
        '{"format": "nexus-cache-program", "version": 1, "ops": [{"op": "append"}]}',
        '{"format": "nexus-cache-program", "version": 1, "ops": [{"op": "append", "tokens": null}]}',
        '{"format": "nexus-cache-program", "version": 1, "ops": [{"op": "drop", "ranges": [[0, 1]]}]}',
    ],
)
def test_foreign_documents_are_refused(text):
    with pytest.raises(ProgramError):
        CacheProgram.from_json(text)


def test_json_names_are_stable():
    text = EMPTY.append([5]).splice("b", [6], anchor=2).repair([1]).drop((0, 1)).repos().to_json()
    assert json.loads(text)["ops"] == [
        {"op": "append", "tokens": [5]},
        {"op": "splice", "block_id": "b", "tokens": [6], "anchor": 2},
        {"op": "repair", "selection": [1]},
        {"op": "drop", "ranges": [[0, 1]]},
        {"op": "repos"},
    ]


def test_integrity_check_finds_a_broken_state():
    from dataclasses import replace

    state = fold(TEN.drop((2, 4)))
    for broken in (
        replace(state, next_position=9),
        replace(state, positions=np.where(state.active, state.positions, 3).astype(np.int32)),
        replace(state, positions=state.positions[::-1].copy()),
        replace(state, origin=np.full(10, 7, np.uint8)),
        replace(state, active=state.active[:5].copy()),
    ):
        with pytest.raises(IntegrityError):
            broken.check_integrity()


def test_a_repr_is_short():
    assert "10 tokens, 8 active" in repr(TEN.drop((0, 2)))
    assert Repair((3, 1, 3)).selection == (1, 3)
