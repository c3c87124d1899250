"""Intervals over cells that belong together are as wide as the clusters are few."""

from __future__ import annotations

import numpy as np
import pytest

from nexus_lab.bench.base import proportion
from nexus_lab.bench.clusters import (
    cluster_mean,
    cluster_median,
    cluster_ratio,
    cluster_share,
    percentile_interval,
    resampled_clusters,
)
from nexus_lab.bench.splice_figures import _times


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


def test_a_median_draws_whole_clusters():
    values, tools = np.array([3.0, 1.0, 4.0, 1.5, 9.0, 2.0]), np.array([0, 1, 2, 0, 1, 2])
    found = cluster_median(values, tools, case={}, metric="ttft_ratio")
    drawn = [np.median(np.repeat(values, counts[tools])) for counts in resampled_clusters(3)]
    assert (found.value, found.n) == (2.5, 6)
    assert (found.low, found.high) == percentile_interval(np.array(drawn))
    often = cluster_median(np.repeat(values, 30), np.repeat(range(6), 30), case={}, metric="ttft_ratio")
    once = cluster_median(values, range(6), case={}, metric="ttft_ratio")
    assert (often.value, often.low, often.high) == (once.value, once.low, once.high)
    alone = cluster_median([1.0, 2.0], ["a", "a"], case={}, metric="ttft_ratio")
    assert (alone.value, alone.low, alone.high) == (1.5, None, None)


def test_times_of_a_sweep_are_clustered_by_tool():
    clocks = {"prefill_ttft_s": 1.0, "prefill_block_s": 1.0, "block_s": 0.1}
    rows = [{**clocks, "tool": tool, "ttft_s": 1 / ratio} for tool, ratio in (("a", 2.0), ("b", 4.0)) * 50]
    ttft, block = _times(rows, {})
    assert (ttft.metric, ttft.value, ttft.n) == ("ttft_ratio", 3.0, 100)
    assert (ttft.low, ttft.high) == (2.0, 4.0), "two tools that differ tell no more than that"
    assert block.low == block.high == pytest.approx(10.0)


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
    assert certain.low == pytest.approx(proportion(2, 2, case={}, metric="top1").low)
    whole = [float(number % 2) for number in range(10)]
    few = cluster_share(np.repeat(whole, 20), np.repeat(range(10), 20), case={}, metric="top1")
    ten = proportion(5, 10, case={}, metric="top1")
    assert few.low == pytest.approx(ten.low, abs=0.03)
    assert few.high == pytest.approx(ten.high, abs=0.03)
