"""Intervals over cells that belong together are as wide as the clusters are few."""

from __future__ import annotations

import numpy as np
import pytest

from nexus_lab.bench.base import proportion
from nexus_lab.bench.clusters import cluster_mean, cluster_ratio, cluster_share


def test_cells_that_repeat_their_cluster_narrow_nothing():
    rng = np.random.default_rng(0)
    by_tool = rng.normal(size=12)
    once = cluster_mean(by_tool, range(12), case={}, metric="x")
    often = cluster_mean(np.repeat(by_tool, 30), np.repeat(range(12), 30), case={}, metric="x")
    assert often.value == pytest.approx(once.value)
    assert (often.low, often.high) == (pytest.approx(once.low), pytest.approx(once.high))
    assert often.n == 360
    apart = cluster_mean(np.repeat(by_tool, 30), range(360), case={}, metric="x")
    assert apart.high - apart.low < (often.high - often.low) / 3


def test_a_paired_ratio_is_that_of_the_sums():
    peer = np.array([1.0, 2.0, 3.0, 10.0])
    exact = cluster_ratio(peer / 4, peer, ["a", "a", "b", "c"], case={}, metric="excess_ratio")
    assert (exact.value, exact.low, exact.high) == (0.25, 0.25, 0.25)
    alone = cluster_ratio([1.0], [2.0], ["a"], case={}, metric="excess_ratio")
    assert (alone.value, alone.low, alone.high) == (0.5, None, None)
    assert np.isnan(cluster_ratio([0.0], [0.0], ["a"], case={}, metric="excess_ratio").value)


def test_a_share_never_pretends_certainty_and_counts_clusters():
    certain = cluster_share([1.0] * 8, ["a", "b"] * 4, case={}, metric="top1")
    assert (certain.value, certain.high) == (1.0, 1.0)
    assert certain.low == pytest.approx(proportion(8, 8, case={}, metric="top1").low)
    whole = [float(number % 2) for number in range(10)]
    few = cluster_share(np.repeat(whole, 20), np.repeat(range(10), 20), case={}, metric="top1")
    ten = proportion(5, 10, case={}, metric="top1")
    assert few.low == pytest.approx(ten.low, abs=0.03)
    assert few.high == pytest.approx(ten.high, abs=0.03)
