"""A negative result: the variance of the preceding keys does not tell how far a spliced key is off.

The source paper hoped for a gate that needs no reference: where the keys before a block vary much, its
rows should drift much. Nothing in the product looks at this proxy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from nexus_lab.bench.base import Result
from nexus_lab.bench.clusters import percentile_interval, resampled_clusters
from nexus_lab.splice import NoRepair, splice_block
from nexus_lab.splice.trials import left_as_it_was

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from nexus_lab.engine import Engine, SequenceState
    from nexus_lab.splice import ToolBlock

__all__ = ["preceding_variance", "proxy_and_drift", "rank_correlation"]

WINDOW = 64
"""Preceding tokens whose keys the proxy looks at."""


def proxy_and_drift(engine: Engine, seq: int, block: ToolBlock) -> dict[str, list[float]]:
    """Return the proxy and the true drift of a splice without repair behind the live tokens of `seq`.

    Returns
    -------
    dict of lists
        ``token_proxy`` and ``token_drift``, one value a token of the block: the variance of the 64 keys
        before it, and how far its own key is from the prefilled one, each the mean over layers and heads.
        ``head_proxy`` and ``head_drift``, one value for each layer and KV head: the variance of the keys of
        all preceding tokens, and the mean drift over the block's tokens.
    """
    n_past = engine.pos_max(seq) + 1
    with engine.turn(), left_as_it_was(engine, seq) as again:
        engine.prefill(seq, block.tokens, logits="none")
        truth = _keys(engine, seq)[:, n_past:]
        again()
        splice_block(engine, seq, block, strategy=NoRepair())
        spliced = _keys(engine, seq)
    drift = np.linalg.norm(spliced[:, n_past:] - truth, axis=-1)
    variance = preceding_variance(spliced, n_past, window=WINDOW)
    return {
        "token_proxy": variance.mean(axis=(0, 2)).tolist(),
        "token_drift": drift.mean(axis=(0, 2)).tolist(),
        "head_proxy": spliced[:, :n_past].var(axis=1).sum(axis=-1).ravel().tolist(),
        "head_drift": drift.mean(axis=1).ravel().tolist(),
    }


def preceding_variance(keys: NDArray[np.float64], start: int, *, window: int) -> NDArray[np.float64]:
    """Return the variance of the keys before each token from `start` on, summed over the head's dimensions.

    Parameters
    ----------
    keys
        float64 [n_layer, n_tokens, n_head, head_dim], tokens in position order.
    start
        First token that gets a value.
    window
        Keys before the token that count; fewer where there are fewer, and 0 for none.

    Returns
    -------
    numpy.ndarray
        float64 [n_layer, n_tokens - start, n_head].
    """
    stops = np.arange(start, keys.shape[1])
    firsts = np.maximum(0, stops - window)
    zero = np.zeros_like(keys[:, :1])
    sums = np.concatenate([zero, keys.cumsum(axis=1)], axis=1)
    squares = np.concatenate([zero, (keys**2).cumsum(axis=1)], axis=1)
    count = np.maximum(1, stops - firsts)[:, np.newaxis, np.newaxis]
    mean = (sums[:, stops] - sums[:, firsts]) / count
    variance = (squares[:, stops] - squares[:, firsts]) / count - mean**2
    result: NDArray[np.float64] = np.maximum(variance, 0).sum(axis=-1)
    return result


def rank_correlation(
    pairs: Iterable[tuple[Sequence[float], Sequence[float]]],
    clusters: Sequence[object],
    *,
    case: Mapping[str, Any],
) -> list[Result]:
    """Return Spearman's rho of proxy and truth, within cells and over all of them, with intervals.

    Parameters
    ----------
    pairs
        Proxies and true drifts of each cell.
    clusters
        What each cell belongs to; whole clusters are drawn for the interval.
    """
    from scipy.stats import rankdata

    cells = [(np.asarray(proxy), np.asarray(truth)) for proxy, truth in pairs]
    _, place = np.unique(np.asarray(clusters, dtype=object).astype(str), return_inverse=True)
    n_clusters = int(place.max()) + 1
    within = np.array([_rho(proxy, truth) for proxy, truth in cells])
    counts = resampled_clusters(n_clusters)
    weights = counts[:, place]
    means = (weights @ within) / np.maximum(1, weights.sum(axis=1))
    # Ranked once over all values: a resample then weighs them, which is cheap and as good.
    proxies, truths = (rankdata(np.concatenate(values)) for values in zip(*cells, strict=True))
    owner = np.repeat(place, [len(proxy) for proxy, _ in cells])
    over_all = _weighted_correlations(proxies, truths, owner, counts)
    whole = float(_weighted_correlations(proxies, truths, owner, np.ones((1, n_clusters)))[0])
    figures = [("within a cell", float(within.mean()), means)]
    if np.isfinite(whole):  # where nothing varies there is no correlation
        figures.append(("over all", whole, over_all))
    results = []
    for over, value, samples in figures:
        low, high = percentile_interval(samples) if n_clusters > 1 else (None, None)
        n = len(cells) if over == "within a cell" else len(owner)
        results.append(
            Result(case={**case, "over": over}, metric="spearman", value=value, low=low, high=high, n=n)
        )
    return results


def _rho(proxy: NDArray[np.float64], truth: NDArray[np.float64]) -> float:
    """Return Spearman's rho, 0 where one of them does not vary, which tells nothing."""
    from scipy.stats import spearmanr

    if np.ptp(proxy) == 0 or np.ptp(truth) == 0:
        return 0.0
    return float(spearmanr(proxy, truth).statistic)


def _weighted_correlations(
    x: NDArray[np.float64], y: NDArray[np.float64], owner: NDArray[np.int64], counts: NDArray[Any]
) -> NDArray[np.float64]:
    """Pearson's correlation under each row of cluster weights, float64 [n_rows]."""
    n = counts.shape[1]
    total, sx, sy, sxx, syy, sxy = (
        counts @ np.bincount(owner, values, n) for values in (np.ones_like(x), x, y, x * x, y * y, x * y)
    )
    with np.errstate(divide="ignore", invalid="ignore"):
        covariance = sxy / total - sx * sy / total**2
        spread = np.sqrt((sxx / total - (sx / total) ** 2) * (syy / total - (sy / total) ** 2))
        result: NDArray[np.float64] = covariance / spread
    return result


def _keys(engine: Engine, seq: int) -> NDArray[np.float64]:
    """Keys of a sequence in position order, float64 [n_layer, n_tokens, n_head_kv, head_dim]."""
    state: SequenceState = engine.save_state(seq)
    order = state.order()
    rows = [state.key(layer)[order].astype(np.float64) for layer in range(state.n_layer)]
    return np.stack(rows).reshape(state.n_layer, state.n_cells, engine.info.n_head_kv, -1)
