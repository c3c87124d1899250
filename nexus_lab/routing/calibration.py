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
    "shipped_calibration",
    "user_calibration_path",
]

_VERSION = 2
# Of a cross-encoder that was not calibrated: what the package's own was found to be worth.
READER_WEIGHT = 0.05
_LARGEST = 1e6


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
    # A request that names the lower of two tools has a margin below 0, which is no tau.
    tau = max(0.0, float(np.percentile(values, percentile)))
    return Calibration(tau, percentile, int(values.size), source)


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
    shipped = shipped_calibration()
    same = (shipped.embedder, shipped.scoring) == (embedder, scoring)
    return shipped, "shipped" if same else "shipped for another embedder"


def shipped_calibration() -> RouterCalibration:
    """Return the calibration that comes with the package."""
    packed = files("nexus_lab.routing").joinpath("calibration.json")
    return _parse(packed, "the calibration in the package")


def _no_tool(values: dict[str, Any] | None, signals: Sequence[str]) -> NoTool | None:
    if values is None:
        return None
    weights = {str(name): _number(weight, name) for name, weight in dict(values["weights"]).items()}
    unknown = sorted(weights.keys() - set(signals))
    if unknown:
        raise ValueError(f"there is no signal {unknown[0]!r}")
    return NoTool(
        weights,
        _number(values["intercept"], "intercept"),
        _number(values["limit"], "limit", most=1.0, least=0.0),
        int(_number(values["n"], "n")),
        int(_number(values["n_none"], "n_none")),
        str(values.get("source", "")),
    )


def _number(value: Any, name: str, *, least: float = -_LARGEST, most: float = _LARGEST) -> float:
    """Return a number of the file; whatever else stands there would fail far from here, or never."""
    # Compared as it is: an integer of a thousand digits is no float.
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        raise ValueError(f"its {name} is no number that can be used")
    return float(value)


def _gate(values: dict[str, Any]) -> Calibration:
    return Calibration(
        _number(values["tau"], "tau", least=0.0),
        _number(values["percentile"], "percentile"),
        int(_number(values["n"], "n")),
        str(values["source"]),
    )


def _abstention(values: dict[str, Any]) -> Abstention:
    return Abstention(
        _number(values["threshold"], "threshold"),
        int(_number(values["n_tools"], "n_tools", least=1.0)),
        _number(values["slope"], "slope"),
        _number(values["target"], "target"),
        int(_number(values["n"], "n")),
        str(values["source"]),
        tuple(_rate(one) for one in values["rates"]),
    )


def _point(values: dict[str, Any]) -> dict[str, Any]:
    return {name: _number(values[name], name) for name in ("share", "tau", "top1")}


def _rate(values: dict[str, Any]) -> dict[str, Any]:
    counts = {name: int(_number(values[name], name)) for name in ("n", "refused", "folds") if name in values}
    shares = {name: _number(values[name], name) for name in ("share", "auroc") if name in values}
    found: dict[str, Any] = {"group": str(values["group"]), "over": str(values["over"])} | counts | shares
    missing = {"n", "refused", "share"} - found.keys()
    if missing:
        raise ValueError(f"a rate has no {min(missing)}")
    return {name: found[name] for name in values if name in found}


def _parse(file: Any, origin: str) -> RouterCalibration:
    try:
        return _calibration(json.loads(file.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        why = f"it has no {error}" if isinstance(error, KeyError) else error
        raise CalibrationError(
            f"{origin} cannot be read: {why}",
            next_step="delete it, and run nexus-lab route calibrate again",
        ) from error


def _calibration(values: Any) -> RouterCalibration:
    if values["version"] != _VERSION:
        raise ValueError(f"it is of version {values['version']}, not {_VERSION}")
    unknown, reader = values.get("reader_weight_unknown"), values.get("reader")
    return RouterCalibration(
        gate=_gate(values["gate"]),
        abstention=_abstention(values["abstention"]),
        embedder=str(values["embedder"]),
        scoring=str(values["scoring"]),
        command=str(values["command"]),
        settings=dict(values.get("settings", {})),
        reader=None if reader is None else str(reader),
        reader_weight=_number(values.get("reader_weight", READER_WEIGHT), "reader_weight"),
        reader_weight_unknown=None if unknown is None else _number(unknown, "reader_weight_unknown"),
        no_tool=_no_tool(values.get("no_tool"), STAGE_SIGNALS),
        no_tool_read=_no_tool(values.get("no_tool_read"), STAGE_SIGNALS + READING_SIGNALS),
        curve=tuple(_point(row) for row in values.get("curve", ())),
    )
