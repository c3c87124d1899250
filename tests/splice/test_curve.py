"""The paper's repair curve and the strategies built on it."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nexus_lab.settings import Profile
from nexus_lab.splice.base import RepairKind, RepairPlan, RepairStrategy
from nexus_lab.splice.curve import CurveError, repair_count, repair_fraction
from nexus_lab.splice.strategies import Full, Leading, NoRepair, Scattered, StrategyError, Trailing, strategy

ks = st.floats(1.01, 64)
ms = st.integers(1, 4096)
bases = st.floats(0, 1)
depths = st.integers(0, 100_000)


def test_the_paper_s_curve_at_points_worked_by_hand():
    # M = 256, R_base = 5 %, K = 4: the slope is 95 % over 768 tokens.
    assert repair_fraction(0, k=4) == 0.05
    assert repair_fraction(256, k=4) == 0.05
    assert repair_fraction(640, k=4) == pytest.approx(0.05 + 0.95 / 2)
    assert repair_fraction(1024, k=4) == pytest.approx(1.0)
    assert repair_fraction(4096, k=4) == 1.0
    assert repair_fraction(1024, k=8) == pytest.approx(0.05 + 0.95 * 3 / 7)


@given(depths, ks, ms, bases)
def test_the_curve_is_a_fraction_flat_to_m_and_full_from_k_m_on(n_past: int, k: float, m: int, r_base: float):
    value = repair_fraction(n_past, k=k, m=m, r_base=r_base)
    assert r_base <= value <= 1
    if n_past <= m:
        assert value == r_base
    if n_past >= k * m * (1 + 1e-9):
        assert value == pytest.approx(1.0)


@given(depths, depths, ks, ms, bases)
def test_the_curve_never_falls_with_depth(first: int, second: int, k: float, m: int, r_base: float):
    low, high = sorted((first, second))
    at_low, at_high = (repair_fraction(n, k=k, m=m, r_base=r_base) for n in (low, high))
    assert at_low <= at_high + 1e-12


@given(depths, ks, ks, ms, bases)
def test_a_larger_k_never_repairs_more(n_past: int, first: float, second: float, m: int, r_base: float):
    small, large = sorted((first, second))
    assert (
        repair_fraction(n_past, k=large, m=m, r_base=r_base)
        <= repair_fraction(n_past, k=small, m=m, r_base=r_base) + 1e-12
    )


@pytest.mark.parametrize("k", [1, 1.0, 0.5, 0, -3, math.nan, math.inf])
def test_a_k_that_leaves_the_curve_undefined_is_refused_with_the_formula(k: float):
    with pytest.raises(
        CurveError, match=r"R\(n_past\) = r_base \+ \(n_past - m\) / \(m \(k - 1\)\)"
    ) as caught:
        repair_fraction(10, k=k)
    assert "k > 1" in caught.value.next_step


@pytest.mark.parametrize("values", [{"m": 0}, {"r_base": -0.1}, {"r_base": 1.1}, {"r_base": math.nan}])
def test_other_nonsense_is_refused(values: dict[str, float]):
    with pytest.raises(CurveError):
        repair_fraction(10, k=4, **values)
    with pytest.raises(CurveError):
        repair_fraction(-1, k=4)


@given(st.integers(0, 5000), st.integers(0, 100))
def test_a_count_is_the_exact_ceiling_of_a_percentage(n_tokens: int, percent: int):
    # Integers decide: in floats 100 * 0.07 is 7.000000000000001, whose ceiling is 8.
    assert repair_count(n_tokens, percent / 100) == -(-n_tokens * percent // 100)


@given(st.integers(0, 600), depths, st.one_of(st.none(), st.floats(0, 1)))
def test_plans_hold_what_their_kind_says(n_tokens: int, n_past: int, budget: float | None):
    for chosen in (NoRepair(), Full(), Leading(), Trailing(), Scattered()):
        assert isinstance(chosen, RepairStrategy)
        plan = chosen.plan(n_tokens, n_past, budget)
        assert list(plan.recomputed) == sorted(set(plan.recomputed))
        assert set(plan.recomputed) <= set(range(n_tokens))
        runs = plan.runs()
        assert [i for run in runs for i in range(run.start, run.stop)] == list(range(n_tokens))
        assert [i for run in runs if run.recomputed for i in range(run.start, run.stop)] == [*plan.recomputed]
        if plan.kind is RepairKind.LEADING:
            assert plan.recomputed == tuple(range(plan.count))
        if plan.kind is RepairKind.TRAILING:
            assert plan.recomputed == tuple(range(n_tokens - plan.count, n_tokens))
        if plan.kind is RepairKind.SCATTERED:
            gaps = {b - a for a, b in pairwise((*plan.recomputed, n_tokens))}
            assert plan.recomputed[0] == 0
            assert max(gaps) - min(gaps) <= 1
        if plan.kind is RepairKind.NONE:
            assert plan.count == 0
        if plan.kind is RepairKind.FULL:
            assert plan.fraction == (1.0 if n_tokens else 0.0)


def test_scattered_spends_the_budget_that_a_contiguous_repair_spends():
    for budget in (0.0, 0.1, 0.25, 0.6, 1.0):
        counts = {chosen.plan(37, 0, budget).count for chosen in (Scattered(), Leading(), Trailing())}
        assert len(counts) == 1
    assert Scattered().plan(37, 0, 0.0).kind is RepairKind.NONE
    assert Scattered().plan(37, 0, 1.0) == Full().plan(37, 0)
    assert len(Scattered().plan(40, 0, 0.25).runs()) == 20


def test_runs_cut_any_selection_into_the_fewest_stretches():
    plan = RepairPlan(RepairKind.LEADING, 6, (0, 2, 3))
    assert plan.runs() == ((0, 1, True), (1, 2, False), (2, 4, True), (4, 6, False))
    assert RepairPlan(RepairKind.NONE, 0).runs() == ()


def test_trailing_without_a_budget_follows_the_curve_and_with_one_the_budget():
    assert Trailing(k=4).plan(200, 640).count == 105
    assert Trailing(k=4).plan(200, 5000).kind is RepairKind.FULL
    assert Trailing(k=4).plan(200, 640, 0.25).count == 50
    assert Leading().plan(200, 640, 0.25).recomputed[-1] == 49


def test_strategies_by_name_take_the_profile_s_constants():
    profile = Profile(k=8, m=128, r_base=0.1, repair_budget=0.4)
    assert strategy("trailing", profile) == Trailing(8, 128, 0.1)
    assert strategy("leading", profile).plan(10, 0).count == 4
    assert strategy("none").name == "none"
    assert strategy("full").name == "full"
    assert strategy("scattered", profile).plan(10, 0).recomputed == (0, 2, 5, 7)
    assert strategy("scattered").plan(8, 0).recomputed == (0, 4)
    with pytest.raises(StrategyError, match="sensitive"):
        strategy("sensitive")
    with pytest.raises(StrategyError, match="budget"):
        strategy("leading").plan(10, 0, 1.5)
