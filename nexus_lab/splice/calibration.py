"""Measured bounds on D_KL by depth and repair budget, kept per model in a small JSON file."""

from __future__ import annotations

import glob
import json
import math
import re
from dataclasses import asdict, dataclass
from dataclasses import fields as dataclass_fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard

import numpy as np

from nexus_lab.errors import Decline, NexusError
from nexus_lab.paths import atomic_write, home
from nexus_lab.splice.base import RepairKind

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

__all__ = [
    "PREFILL",
    "Calibration",
    "CalibrationCell",
    "CalibrationError",
    "CalibrationSample",
    "Coverage",
    "calibrated_rotations",
    "least_samples",
    "load_calibration",
    "save_calibration",
]

PREFILL = 1.0
"""The share of a block that a prefill computes."""

_VERSION = 1
_MOST_TOKENS = 2**31
_MOST = 1e300
# Quantiles are short decimals: what is left of a product beyond this digit is float noise.
_DIGITS = 9
# What `RopeParameters.context_factors` gives; it is a part of the file's name.
_ROTATION = re.compile(r"(?:[0-9a-f]{16})?")
_SHIPPED = Path(__file__).parent / "calibrations"


class CalibrationError(NexusError):
    """A calibration file that cannot be read."""


def least_samples(quantile: float) -> int:
    """Return how few samples say anything of `quantile`, a number between 0 and 1.

    Raises
    ------
    CalibrationError
        When `quantile` is no such number.
    """
    if not 0 < quantile < 1:
        raise CalibrationError(f"no samples tell of a quantile of {quantile!r}", next_step="give one below 1")
    return math.ceil(round(quantile / (1 - quantile), _DIGITS))


@dataclass(frozen=True, slots=True)
class CalibrationCell:
    """D_KL measured at one depth with one repair budget.

    Attributes
    ----------
    depth
        Tokens before the block.
    budget
        Fraction of the block recomputed.
    dkl_upper, dkl_mean
        Upper quantile and mean of D_KL over the measured blocks and contexts, in nats.
    n
        Measurements behind them.
    """

    depth: int
    budget: float
    dkl_upper: float
    dkl_mean: float
    n: int

    @classmethod
    def from_samples(
        cls, depth: int, budget: float, samples: Sequence[float], quantile: float
    ) -> CalibrationCell:
        """Summarise `samples`.

        The upper value is the observed one that a further sample stays under with a probability of
        `quantile`, whatever their distribution: the ``ceil((n + 1) * quantile)``-th smallest.

        Raises
        ------
        CalibrationError
            When there are too few for that.
        """
        needed = least_samples(quantile)
        if len(samples) < needed:
            raise CalibrationError(
                f"{len(samples)} samples tell nothing of a quantile of {quantile:g}",
                next_step=f"measure {needed} at least",
            )
        rank, ordered = math.ceil(round((len(samples) + 1) * quantile, _DIGITS)), sorted(samples)
        return cls(depth, budget, float(ordered[rank - 1]), float(np.mean(samples)), len(samples))


@dataclass(frozen=True, slots=True)
class CalibrationSample:
    """One block behind one conversation.

    Attributes
    ----------
    depth
        Tokens before the block.
    n_tokens
        Length of the block.
    dkl
        Mean D_KL over a forced answer, in nats, by repair budget.
    tool
        Name of the block's tool.
    """

    depth: int
    n_tokens: int
    dkl: Mapping[float, float]
    tool: str = ""


@dataclass(frozen=True, slots=True)
class Coverage:
    """How a bound held on conversations that had no part in the calibration.

    Attributes
    ----------
    epsilon
        The bound, in nats.
    n, covered
        Splices and prefills that the contract led to, and how many of them stayed at or under the bound.
    prefilled
        How many of them were prefills.
    recomputed
        Mean share of a block that was computed, prefills with 1.
    """

    epsilon: float
    n: int
    covered: int
    prefilled: int
    recomputed: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """Measured D_KL of one model, one compile context and one repair strategy.

    Unlike a block it names no build of llama.cpp. A block claims the last bit, which a build changes; a bound
    is a quantile over conversations, of a D_KL far above the noise floor that such bits make, so that it goes
    on holding, and what ships or took hours to measure stays of use.

    Attributes
    ----------
    fingerprint
        Model and tokenizer, hex.
    context_hash
        Hash of the tokens the measured blocks were compiled behind, hex.
    flash_attention
        The attention kernel measured.
    strategy
        Repair strategy measured.
    quantile
        Quantile that `CalibrationCell.dkl_upper` holds.
    noise_floor
        D_KL between two exact computations of the same tokens, in nats.
    n_tokens_min, n_tokens_max
        Lengths of the blocks measured.
    cells
        One cell for each depth and budget.
    coverage
        How some bounds held on conversations kept apart.
    rotation
        `nexus_lab.engine.RopeParameters.context_factors` of the context measured in: which of its two
        rotations a model with LongRoPE had there. Empty for others.
    """

    fingerprint: str
    context_hash: str
    flash_attention: bool
    strategy: str
    quantile: float
    noise_floor: float
    n_tokens_min: int
    n_tokens_max: int
    cells: tuple[CalibrationCell, ...]
    coverage: tuple[Coverage, ...] = ()
    rotation: str = ""

    @classmethod
    def measured(cls, samples: Sequence[CalibrationSample], **facts: Any) -> Calibration:
        """Summarise samples.

        Parameters
        ----------
        facts
            The fields but lengths and cells.

        Raises
        ------
        CalibrationError
            When there are no samples, or a depth has too few.
        """
        if not samples:
            raise CalibrationError(
                "no block was spliced under the repair to calibrate",
                next_step="choose one that the blocks allow: profile needs several conversations behind them",
            )
        by_cell: dict[tuple[int, float], list[float]] = {}
        for sample in samples:
            for budget, dkl in sample.dkl.items():
                by_cell.setdefault((sample.depth, budget), []).append(dkl)
        lengths = [sample.n_tokens for sample in samples]
        return cls(
            n_tokens_min=min(lengths),
            n_tokens_max=max(lengths),
            cells=tuple(
                CalibrationCell.from_samples(depth, budget, found, facts["quantile"])
                for (depth, budget), found in sorted(by_cell.items())
            ),
            **facts,
        )

    def covered(self, samples: Sequence[CalibrationSample], epsilon: float) -> Coverage:
        """Hold the bound `epsilon` to samples that had no part in the calibration."""
        held, shares = zip(*(self.outcome(sample, epsilon) for sample in samples), strict=True)
        n = len(samples)
        return Coverage(epsilon, n, sum(held), shares.count(PREFILL), sum(shares) / n)

    def outcome(self, sample: CalibrationSample, epsilon: float) -> tuple[bool, float]:
        """Return whether the bound `epsilon` holds for a sample, and what share of its block is computed.

        The share is `PREFILL` where nothing less is covered.
        """
        budget = self.budget_for(epsilon, n_tokens=sample.n_tokens, n_past=sample.depth)
        if isinstance(budget, Decline):
            return True, PREFILL
        return sample.dkl[budget] <= epsilon, budget

    @property
    def depths(self) -> tuple[int, ...]:
        """Depths measured, ascending."""
        return tuple(sorted({cell.depth for cell in self.cells}))

    def budget_for(self, epsilon: float, *, n_tokens: int, n_past: int) -> float | Decline:
        """Smallest measured budget whose D_KL stays at or under `epsilon` on both sides of `n_past`.

        Returns
        -------
        float or Decline
            A fraction below 1, or why nothing short of a full prefill is covered.
        """
        outside = self._outside(n_tokens, n_past)
        if outside is not None:
            return outside
        around = self._around(n_past)
        for budget in sorted({cell.budget for cell in self.cells}):
            uppers = [cell.dkl_upper for cell in self.cells if cell.budget == budget and cell.depth in around]
            if len(uppers) == len(around) and max(uppers) <= epsilon:
                return budget
        return Decline(
            "bound_not_reached",
            f"no measured {self.strategy} budget keeps D_KL at or under {epsilon:g} nats at depth {n_past} "
            f"(noise floor {self.noise_floor:.2g})",
        )

    def _outside(self, n_tokens: int, n_past: int) -> Decline | None:
        low, high = self.depths[0], self.depths[-1]
        if not low <= n_past <= high:
            return Decline("outside_calibration", f"depth {n_past} lies outside the measured {low} to {high}")
        low, high = self.n_tokens_min, self.n_tokens_max
        if not low <= n_tokens <= high:
            return Decline(
                "outside_calibration",
                f"a block of {n_tokens} tokens lies outside the measured {low} to {high}",
            )
        return None

    def _around(self, n_past: int) -> set[int]:
        return {
            max(depth for depth in self.depths if depth <= n_past),
            min(depth for depth in self.depths if depth >= n_past),
        }

    def to_dict(self) -> dict[str, Any]:
        """Return the calibration as JSON values; a rotation only where there are two."""
        values = {"version": _VERSION, **asdict(self)}
        if not self.rotation:
            del values["rotation"]
        return values

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Calibration:
        """Read what `to_dict` wrote.

        Raises
        ------
        CalibrationError
            When a field is missing, unknown or of another version.
        """
        fields = dict(values)
        version = fields.pop("version", None)
        try:
            if version != _VERSION:
                raise ValueError(f"version {version!r}")  # noqa: TRY301 - one message for every bad file
            cells = tuple(CalibrationCell(**cell) for cell in fields.pop("cells"))
            coverage = tuple(Coverage(**row) for row in fields.pop("coverage", ()))
            found = cls(cells=cells, coverage=coverage, **fields)
            _check(found)
        except (KeyError, TypeError, ValueError) as error:
            raise CalibrationError(
                f"calibration cannot be read: {error}", next_step="delete the file and calibrate again"
            ) from error
        return found


def _check(calibration: Calibration) -> None:
    """Raise ValueError unless every field holds what it is for, and the fields agree with each other."""
    if not calibration.cells:
        raise ValueError("no cells")
    records: tuple[Calibration | CalibrationCell | Coverage, ...]
    records = (calibration, *calibration.cells, *calibration.coverage)
    for record in records:
        for item in dataclass_fields(record):
            value = getattr(record, item.name)
            if item.name in _HOLDS and not _HOLDS[item.name](value):
                raise ValueError(f"{item.name} is {value!r:.60}")
    if calibration.n_tokens_min > calibration.n_tokens_max:
        raise ValueError("n_tokens_min lies above n_tokens_max")
    if len({(cell.depth, cell.budget) for cell in calibration.cells}) < len(calibration.cells):
        raise ValueError("a cell is there twice")
    fewest, needed = min(cell.n for cell in calibration.cells), least_samples(calibration.quantile)
    if fewest < needed:
        raise ValueError(f"n is {fewest}, and a quantile of {calibration.quantile:g} takes {needed} at least")
    if any(max(row.covered, row.prefilled) > row.n for row in calibration.coverage):
        raise ValueError("more is covered than was measured")


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _MOST_TOKENS


def _is_measure(value: object) -> TypeGuard[float]:
    # Compared, not asked whether it is finite: an integer may be too long for a float.
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < _MOST


def _is_share(value: object) -> bool:
    return _is_measure(value) and value <= 1


_HOLDS: dict[str, Callable[[object], bool]] = {
    "fingerprint": _is_text,
    "context_hash": _is_text,
    "flash_attention": lambda value: isinstance(value, bool),
    "strategy": lambda value: _is_text(value) and value in set(RepairKind),
    "quantile": lambda value: _is_measure(value) and 0 < value < 1,
    "noise_floor": _is_measure,
    "n_tokens_min": _is_whole,
    "n_tokens_max": _is_whole,
    "depth": _is_whole,
    "budget": _is_share,
    "dkl_upper": _is_measure,
    "dkl_mean": _is_measure,
    "n": _is_whole,
    "epsilon": _is_measure,
    "covered": _is_whole,
    "prefilled": _is_whole,
    "recomputed": _is_share,
    "rotation": lambda value: isinstance(value, str) and _ROTATION.fullmatch(value) is not None,
}


def _path(fingerprint: str, context_hash: str, *, flash_attention: bool, rotation: str = "") -> Path:
    kernel = "flash" if flash_attention else "plain"
    turned = f"-{rotation}" if rotation else ""
    return home() / "calibration" / f"{fingerprint}-{context_hash[:16]}-{kernel}{turned}.json"


def save_calibration(calibration: Calibration, *, folder: Path | None = None) -> Path:
    """Store a calibration for its model, compile context, attention kernel and rotation; return the file.

    Parameters
    ----------
    folder
        Where; by default the package's data folder, where `load_calibration` looks first.
    """
    path = _path(
        calibration.fingerprint,
        calibration.context_hash,
        flash_attention=calibration.flash_attention,
        rotation=calibration.rotation,
    )
    path = path if folder is None else folder / path.name
    atomic_write(path, (json.dumps(calibration.to_dict(), indent=1) + "\n").encode())
    return path


def calibrated_rotations(fingerprint: str, context_hash: str, *, flash_attention: bool) -> frozenset[str]:
    """Return under which rotations a model was measured behind a compile context; one untold is empty."""
    path = _path(fingerprint, context_hash, flash_attention=flash_attention)
    found = (
        file.stem
        for folder in (path.parent, _SHIPPED)
        for file in folder.glob(f"{glob.escape(path.stem)}*.json")
    )
    return frozenset(stem.removeprefix(path.stem).removeprefix("-") for stem in found)


def load_calibration(
    fingerprint: str, context_hash: str, *, flash_attention: bool, rotation: str = ""
) -> Calibration | None:
    """Read the calibration of a model behind a compile context; ``None`` when none was measured.

    One of the user's own goes before the one that ships for the bundled model.

    Parameters
    ----------
    rotation
        `nexus_lab.engine.RopeParameters.context_factors` of the running model.

    Raises
    ------
    CalibrationError
        When the file is there and cannot be read, or is of something else.
    """
    path = _path(fingerprint, context_hash, flash_attention=flash_attention, rotation=rotation)
    if not path.exists():
        path = _SHIPPED / path.name
    if not path.exists():
        return None
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        found = Calibration.from_dict(values if isinstance(values, dict) else {})
        _check_asked(
            found,
            fingerprint=fingerprint,
            context_hash=context_hash,
            flash_attention=flash_attention,
            rotation=rotation,
        )
    except (OSError, ValueError, RecursionError, CalibrationError) as error:
        told = (
            error.problem if isinstance(error, CalibrationError) else f"calibration cannot be read: {error}"
        )
        raise CalibrationError(f"{path}: {told}", next_step="delete it and calibrate again") from error
    return found


def _check_asked(found: Calibration, **asked: object) -> None:
    """Raise ValueError unless the bounds are those of what was asked for: files can be copied and renamed."""
    for name, wanted in asked.items():
        if getattr(found, name) != wanted:
            raise ValueError(f"{name} is {getattr(found, name)!r:.60}, and {wanted!r:.60} was asked for")
