"""Where the gate stands: tau, and the score under which no tool seems to fit, with where they come from."""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import asdict, dataclass, field
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import numpy as np

from nexus_lab.paths import atomic_write, config_dir
from nexus_lab.routing.abstain import READING_SIGNALS, STAGE_SIGNALS, NoTool
from nexus_lab.routing.base import CalibrationError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

__all__ = [
    "READER_WEIGHT",
    "Abstention",
    "Calibration",
    "RouterCalibration",
    "auroc",
    "calibrate_abstention",
    "calibrate_tau",
    "load_calibration",
    "save_calibration",
    "user_calibration_path",
]

_VERSION = 2
# Of a cross-encoder that was not calibrated: its lead of one nat outweighs most leads of the fused score.
READER_WEIGHT = 0.1


@dataclass(frozen=True, slots=True)
class Calibration:
    """The margin gate's threshold.

    Attributes
    ----------
    tau
        A decision whose margin reaches it stands by itself.
    percentile, n
        It is this percentile of so many run-time margins.
    source
        Whose margins.
    """

    tau: float
    percentile: float
    n: int
    source: str


@dataclass(frozen=True, slots=True)
class Abstention:
    """The threshold of "no tool fits", and how often it errs where it was calibrated.

    The best score of many tools is higher than that of few, so the threshold depends on their number.

    Attributes
    ----------
    threshold, n_tools
        A request whose best score is lower is answered with no tool; for a registry of so many tools.
    slope
        What the threshold gains when the number of tools grows e-fold.
    target
        Share of answerable requests that it was set to refuse.
    n, source
        Requests it was set on, and which.
    rates
        What it does on each group: ``{"group", "over", "n", "refused", "share"}``, and for a group that no
        tool fits ``auroc`` beside the answerable requests over the same tools. ``folds`` says of how many
        parts each was judged by what was fitted to the others; with 1 it was fitted to them all.
    """

    threshold: float
    n_tools: int
    slope: float
    target: float
    n: int
    source: str
    rates: tuple[dict[str, Any], ...] = ()

    def at(self, n_tools: int) -> float:
        """Return the threshold for a registry of `n_tools` tools."""
        return max(0.0, self.threshold + self.slope * math.log(max(n_tools, 1) / self.n_tools))


@dataclass(frozen=True, slots=True)
class RouterCalibration:
    """Both thresholds of a router, for one embedder and one way of scoring.

    Attributes
    ----------
    embedder
        Fingerprint of the embedder that the scores came from.
    scoring
        What the scores are, as the router names it.
    command
        How to make it again.
    reader, reader_weight
        Fingerprint of the cross-encoder, and what one unit of its score adds to a fused score.
    reader_weight_unknown
        The same over tools that have no examples; ``None`` where it was not calibrated apart.
    no_tool, no_tool_read
        Probability that no tool fits, before and after the cross-encoder was asked.
    curve
        Rows of the accuracy-escalation curve: ``{"share", "tau", "top1"}``.
    """

    gate: Calibration
    abstention: Abstention
    embedder: str
    scoring: str
    command: str
    settings: dict[str, Any] = field(default_factory=dict)
    reader: str | None = None
    reader_weight: float = READER_WEIGHT
    reader_weight_unknown: float | None = None
    no_tool: NoTool | None = None
    no_tool_read: NoTool | None = None
    curve: tuple[dict[str, Any], ...] = ()

    def to_json(self) -> str:
        """Return the calibration as the text of its file."""
        return json.dumps({"version": _VERSION, **asdict(self)}, indent=1) + "\n"


def calibrate_tau(margins: Sequence[float], percentile: float = 20.0, *, source: str = "") -> Calibration:
    """Return tau as a percentile of run-time margins (the Nexus paper, section 5.1, takes the 20th).

    Parameters
    ----------
    margins
        Top-1 minus top-2 of confusable requests, each routed over its whole registry.
    percentile
        In (0, 100); about this share of such requests will escalate.

    Raises
    ------
    CalibrationError
        When there are no margins, one is not finite, or the percentile is out of range.
    """
    values = np.asarray(list(margins), np.float64)
    if values.size == 0 or not np.isfinite(values).all():
        raise CalibrationError(
            f"tau cannot be calibrated on {values.size} margins",
            next_step="give at least one request whose right tool is in the registry",
        )
    if not 0 < percentile < 100:  # noqa: PLR2004 - percent
        raise CalibrationError(f"percentile = {percentile}", next_step="choose a value between 0 and 100")
    return Calibration(float(np.percentile(values, percentile)), percentile, int(values.size), source)


def calibrate_abstention(
    answerable: Mapping[int, Sequence[float]],
    *,
    target: float = 0.05,
    source: str = "",
    rates: Sequence[dict[str, Any]] = (),
) -> Abstention:
    """Return the threshold that refuses the share `target` of requests a tool does fit.

    Parameters
    ----------
    answerable
        Best scores of requests that a tool fits, by the number of tools they were routed over; a line
        through the quantiles over the logarithm of that number says how the threshold grows.
    target
        In (0, 1).
    """
    fits = {size: np.asarray(list(values), np.float64) for size, values in answerable.items() if size > 0}
    if not fits or any(values.size == 0 or not np.isfinite(values).all() for values in fits.values()):
        raise CalibrationError("abstention needs the scores of answerable requests", next_step="give some")
    if not 0 < target < 1:
        raise CalibrationError(f"target = {target}", next_step="choose a share between 0 and 1")
    largest = max(fits)
    quantiles = [float(np.quantile(values, target)) for values in fits.values()]
    slope, threshold = 0.0, quantiles[0]
    if len(fits) > 1:
        distances = [math.log(size / largest) for size in fits]
        slope, threshold = (float(value) for value in np.polyfit(distances, quantiles, 1))
    return Abstention(
        threshold, largest, max(0.0, slope), target, int(fits[largest].size), source, tuple(rates)
    )


def auroc(higher: Sequence[float], lower: Sequence[float]) -> float:
    """Return the chance that a value of `higher` exceeds one of `lower`, ties counted half.

    Raises
    ------
    CalibrationError
        When either is empty.
    """
    above, below = np.asarray(list(higher), np.float64), np.sort(np.asarray(list(lower), np.float64))
    if above.size == 0 or below.size == 0:
        raise CalibrationError("an AUROC needs values of both kinds", next_step="give both")
    wins = np.searchsorted(below, above, "left") + np.searchsorted(below, above, "right")
    return float(wins.sum() / (2 * above.size * below.size))


def user_calibration_path(embedder: str) -> Path:
    """File in which a user's own calibration for the embedder of this fingerprint is kept."""
    name = hashlib.sha256(embedder.encode()).hexdigest()[:16]
    return config_dir() / "calibration" / f"{name}.json"


def save_calibration(calibration: RouterCalibration, path: Path | None = None) -> Path:
    """Write `calibration` to `path`, or where routers of this user look for it, and return the file."""
    target = path or user_calibration_path(calibration.embedder)
    atomic_write(target, calibration.to_json().encode())
    return target


def load_calibration(embedder: str, scoring: str) -> tuple[RouterCalibration, str]:
    """Return the user's calibration for this embedder and scoring, else the one that comes with the package.

    Returns
    -------
    calibration
        The thresholds.
    origin
        ``user``, ``shipped``, or ``shipped for another embedder`` (a start only: its scores are not ours).
    """
    path = user_calibration_path(embedder)
    if path.is_file():
        own = _parse(path, str(path))
        if (own.embedder, own.scoring) == (embedder, scoring):
            return own, "user"
    packed = files("nexus_lab.routing").joinpath("calibration.json")
    shipped = _parse(packed, "the calibration in the package")
    same = (shipped.embedder, shipped.scoring) == (embedder, scoring)
    return shipped, "shipped" if same else "shipped for another embedder"


def _no_tool(values: dict[str, Any] | None, signals: Sequence[str]) -> NoTool | None:
    if values is None:
        return None
    weights = {str(name): float(weight) for name, weight in dict(values["weights"]).items()}
    unknown = sorted(weights.keys() - set(signals))
    if unknown:
        raise ValueError(f"there is no signal {unknown[0]!r}")
    return NoTool(**{**values, "weights": weights})


def _parse(file: Any, origin: str) -> RouterCalibration:
    try:
        return _calibration(json.loads(file.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise CalibrationError(
            f"{origin} cannot be read: {error}",
            next_step="delete it, and run nexus-lab route calibrate again",
        ) from error


def _calibration(values: Any) -> RouterCalibration:
    if values["version"] != _VERSION:
        raise ValueError(f"it is of version {values['version']}, not {_VERSION}")
    gate, abstention = Calibration(**values["gate"]), values["abstention"]
    unknown = values.get("reader_weight_unknown")
    return RouterCalibration(
        gate=gate,
        abstention=Abstention(**{**abstention, "rates": tuple(abstention["rates"])}),
        embedder=str(values["embedder"]),
        scoring=str(values["scoring"]),
        command=str(values["command"]),
        settings=dict(values.get("settings", {})),
        reader=values.get("reader"),
        reader_weight=float(values.get("reader_weight", READER_WEIGHT)),
        reader_weight_unknown=None if unknown is None else float(unknown),
        no_tool=_no_tool(values.get("no_tool"), STAGE_SIGNALS),
        no_tool_read=_no_tool(values.get("no_tool_read"), STAGE_SIGNALS + READING_SIGNALS),
        curve=tuple(values.get("curve", ())),
    )
