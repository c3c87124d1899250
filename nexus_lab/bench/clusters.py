"""Intervals over cells that belong together: several of one tool are not so many independent ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from nexus_lab.bench.base import LEVEL, RESAMPLES, Result, percentiles

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

__all__ = [
    "cluster_mean",
    "cluster_median",
    "cluster_ratio",
    "cluster_share",
    "percentile_interval",
    "resampled_clusters",
]


def resampled_clusters(n_clusters: int) -> NDArray[np.int64]:
    """Return how often each cluster is drawn in each resample, int64 [n_resamples, n_clusters]."""
    draws = np.random.default_rng(0).integers(0, n_clusters, (RESAMPLES, n_clusters))
    counts = np.zeros((RESAMPLES, n_clusters), np.int64)
    np.add.at(counts, (np.arange(RESAMPLES)[:, np.newaxis], draws), 1)
    return counts


def percentile_interval(samples: NDArray[np.float64]) -> tuple[float | None, float | None]:
    """Return the bounds of a bootstrap's 95 % interval; ``None`` where no sample is finite."""
    finite = samples[np.isfinite(samples)]
    return percentiles(finite) if finite.size else (None, None)


def cluster_ratio(
    numerator: Sequence[float] | NDArray[Any],
    denominator: Sequence[float] | NDArray[Any],
    clusters: Sequence[object],
    *,
    case: Mapping[str, Any],
    metric: str,
    unit: str = "",
) -> Result:
    """Return the ratio of two sums over the same cells, with a bootstrap interval over clusters of cells.

    Parameters
    ----------
    numerator, denominator
        One value of each for a cell, [n].
    clusters
        What each cell belongs to, [n]; whole clusters are drawn.

    Returns
    -------
    Result
        Without an interval when there is one cluster only. NaN when the denominator sums to 0.
    """
    place, n_clusters = _places(clusters)
    above = np.bincount(place, np.asarray(numerator, np.float64), n_clusters)
    below = np.bincount(place, np.asarray(denominator, np.float64), n_clusters)
    low = high = None
    with np.errstate(divide="ignore", invalid="ignore"):
        value = float(np.divide(above.sum(), below.sum()))
        if n_clusters > 1:
            counts = resampled_clusters(n_clusters)
            low, high = percentile_interval(np.divide(counts @ above, counts @ below))
    return Result(case=case, metric=metric, value=value, low=low, high=high, n=len(place), unit=unit)


def cluster_mean(
    values: Sequence[float] | NDArray[Any],
    clusters: Sequence[object],
    *,
    case: Mapping[str, Any],
    metric: str,
    unit: str = "",
) -> Result:
    """Return the mean over cells with a bootstrap interval over clusters of cells."""
    return cluster_ratio(values, np.ones(len(values)), clusters, case=case, metric=metric, unit=unit)


def cluster_median(
    values: Sequence[float] | NDArray[Any],
    clusters: Sequence[object],
    *,
    case: Mapping[str, Any],
    metric: str,
    unit: str = "",
) -> Result:
    """Return the median over cells with a bootstrap interval over clusters of cells.

    Returns
    -------
    Result
        Without an interval when there is one cluster only.
    """
    place, n_clusters = _places(clusters)
    order = np.argsort(np.asarray(values, np.float64))
    rising, owner = np.asarray(values, np.float64)[order], place[order]
    low = high = None
    if n_clusters > 1:
        low, high = percentile_interval(_repeated_medians(rising, resampled_clusters(n_clusters)[:, owner]))
    value = float(np.median(rising))
    return Result(case=case, metric=metric, value=value, low=low, high=high, n=len(place), unit=unit)


def _repeated_medians(rising: NDArray[np.float64], times: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the median of `rising`, [n], with each value as often as a row of `times`, [rows, n], says."""
    ends = times.cumsum(axis=1)
    middles = ((ends[:, -1:] - 1) // 2, ends[:, -1:] // 2)  # of an even number, the two in the middle
    below, above = (rising[(ends <= middle).sum(axis=1)] for middle in middles)
    medians: NDArray[np.float64] = (below + above) / 2
    return medians


def cluster_share(
    shares: Sequence[float] | NDArray[Any],
    clusters: Sequence[object],
    *,
    case: Mapping[str, Any],
    metric: str,
) -> Result:
    """Return the mean of shares, with Wilson's interval for the effective number of cells.

    A bootstrap of shares that are all 1 would pretend certainty. A cell counts as one trial, since its
    positions agree or differ together; where cells of a cluster do, too, the number of trials is divided by
    the design effect, the clusters' variance over that of as many independent cells. Shares that are all
    alike show none, and a cluster counts as one trial.
    """
    from scipy.stats import norm

    values = np.asarray(shares, np.float64)
    n, share, z = len(values), float(values.mean()), float(norm.ppf((1 + LEVEL) / 2))
    trials = n / _design_effect(values, clusters)
    scale, own = 1 + z * z / trials, z * z / (4 * trials * trials)
    centre = (share + z * z / (2 * trials)) / scale
    half = z / scale * float(np.sqrt(share * (1 - share) / trials + own))
    return Result(
        case=case, metric=metric, value=share, low=max(0.0, centre - half), high=min(1.0, centre + half), n=n
    )


def _places(clusters: Sequence[object]) -> tuple[NDArray[np.intp], int]:
    """Return the number of each cell's cluster, [n], and how many clusters there are."""
    _, place = np.unique(np.asarray(clusters, dtype=object).astype(str), return_inverse=True)
    return place, int(place.max()) + 1


def _design_effect(values: NDArray[np.float64], clusters: Sequence[object]) -> float:
    (place, n_clusters), n = _places(clusters), len(values)
    spread = float(values.var(ddof=1)) / n if n > 1 else 0.0
    if n_clusters < 2:  # noqa: PLR2004 - one cluster has no spread
        return 1.0
    if spread == 0:
        return n / n_clusters
    residuals = np.bincount(place, values - values.mean(), n_clusters)
    between = n_clusters / (n_clusters - 1) * float(residuals @ residuals) / n**2
    return max(1.0, between / spread)
