"""The INT8 index beside numpy."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nexus_lab.routing import RoutingError, View, ViewKind
from nexus_lab.routing.index import ToolIndex, clip_of, quantise

DIM = 64


def unit(rng: np.random.Generator, rows: int) -> np.ndarray:
    found = rng.standard_normal((rows, DIM)).astype(np.float32)
    return found / np.linalg.norm(found, axis=1, keepdims=True)


def views(count: int) -> list[View]:
    return [View(ViewKind.SENTENCE, f"view {place}") for place in range(count)]


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["put", "remove", "extend", "drop"]), st.sampled_from("abcde"), st.integers(1, 4)
    ),
    max_size=12,
)


@settings(deadline=None, max_examples=60)
@given(steps=STEPS, seed=st.integers(0, 2**16))
def test_any_sequence_of_changes_scores_as_numpy_does(steps: list[tuple[str, str, int]], seed: int):
    rng = np.random.default_rng(seed)
    index, twin = ToolIndex(DIM), dict[str, tuple[list[View], np.ndarray]]()
    for step, name, count in steps:
        vectors, made = (
            unit(rng, count),
            [View(ViewKind.SENTENCE, f"{rng.integers(2**40)}") for _ in range(count)],
        )
        if step == "put":
            twin.pop(name, None)
            twin[name] = (made, vectors)
            index.put(name, made, vectors)
        elif name not in twin:
            continue
        elif step == "remove":
            del twin[name]
            index.remove(name)
        elif step == "extend":
            known, rows = twin[name]
            twin[name] = (known + made, np.concatenate([rows, vectors]))
            index.extend(name, made, vectors)
        elif len(twin[name][0]) > 1:
            known, rows = twin[name]
            twin[name] = (known[:-1], rows[:-1])
            index.drop_view(name, known[-1])
    index.check_integrity()
    assert index.names == tuple(twin)
    assert index.n_vectors == sum(len(rows) for _, rows in twin.values())
    query = unit(rng, 1)[0]
    scan = index.scan(index.quantise_query(query))
    exact = np.array([(rows @ query).max() for _, rows in twin.values()])
    assert scan.scores.shape == exact.shape
    if len(twin):
        # Half a level of rounding in each of the two vectors, summed over the components at random.
        np.testing.assert_allclose(scan.scores, exact, atol=0.03)
        ranked = np.sort(scan.scores)[::-1]
        assert scan.margin == pytest.approx(ranked[0] - (ranked[1] if len(ranked) > 1 else 0), abs=1e-6)
        best = index.names[int(scan.scores.argmax())]
        known, rows = twin[best]
        quantised = quantise(rows, clip_of(DIM)).astype(np.int32) @ index.quantise_query(query).row.astype(
            np.int32
        )
        assert index.best_view(best, index.quantise_query(query))[0] == known[int(quantised.argmax())]


def test_quantising_clips_and_keeps_the_order():
    rows = np.array([[-2.0, -0.5, 0.0, 0.5, 2.0]], np.float32)
    assert quantise(rows, 1.0).tolist() == [[-127, -64, 0, 64, 127]]


def test_a_query_of_zeros_scores_zero():
    index = ToolIndex(DIM)
    index.put("a", views(1), unit(np.random.default_rng(0), 1))
    assert index.scan(index.quantise_query(np.zeros(DIM, np.float32))).scores.tolist() == [0.0]


def test_past_the_pool_the_rest_share_a_bound():
    rng = np.random.default_rng(0)
    index = ToolIndex(DIM)
    vectors = unit(rng, 4_200)
    for place, vector in enumerate(vectors):
        index.put(f"t{place}", views(1), vector[None])
    query = unit(rng, 1)[0]
    scan = index.scan(index.quantise_query(query))
    order = np.argsort(-(vectors @ query))
    assert set(order[:10]) == set(np.argsort(-scan.scores, kind="stable")[:10])
    assert (scan.scores == scan.scores.min()).sum() >= 4_200 - 4_096


def test_what_does_not_fit_is_refused():
    index = ToolIndex(DIM)
    with pytest.raises(RoutingError, match="no view"):
        index.put("a", [], np.zeros((0, DIM), np.float32))
    with pytest.raises(RoutingError, match="do not fit"):
        index.put("a", views(2), np.zeros((1, DIM), np.float32))
    with pytest.raises(RoutingError, match="no tool 'b'"):
        index.remove("b")


def test_the_last_view_of_a_tool_stays():
    index = ToolIndex(DIM)
    index.put("a", views(1), unit(np.random.default_rng(0), 1))
    with pytest.raises(RoutingError, match="to spare"):
        index.drop_view("a", views(1)[0])


@pytest.mark.parametrize("count", [1, 16, 17, 40])
def test_many_tools_go_at_once_as_they_would_one_by_one(count: int):
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((80, 64)).astype(np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    at_once, in_turn = ToolIndex(64), ToolIndex(64)
    for index in (at_once, in_turn):
        for number in range(40):
            views = [View(ViewKind.NAME, f"{number}"), View(ViewKind.DESCRIPTION, f"{number}, told")]
            index.put(f"t{number}", views, rows[2 * number : 2 * number + 2])
    gone = [f"t{number}" for number in rng.permutation(40)[:count]]
    at_once.discard([*gone, "none of them", gone[0]])
    for name in gone:
        in_turn.remove(name)
    at_once.check_integrity()
    assert at_once.names == in_turn.names
    query = at_once.quantise_query(rows[0])
    np.testing.assert_array_equal(at_once.scan(query).scores, in_turn.scan(query).scores)
    at_once.put("new", [View(ViewKind.NAME, "new")], rows[:1])
    assert at_once.scan(query).scores[-1] == pytest.approx(1.0, abs=0.02)
    at_once.check_integrity()
