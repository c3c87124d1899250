"""The one form of a result file, and the intervals that stand in it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import numpy as np

from nexus_lab.errors import NexusError
from nexus_lab.paths import atomic_write
from nexus_lab.trace.text import clip, visible

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from nexus_lab.engine import Engine

__all__ = [
    "LEVEL",
    "RESAMPLES",
    "Result",
    "ResultFile",
    "ResultsError",
    "adapter_facts",
    "bootstrap",
    "insist_plausible",
    "insist_positive",
    "median_interval",
    "proportion",
]

LEVEL = 0.95
"""Level of every interval."""
RESAMPLES = 2000
"""Resamples of every bootstrap."""
_LARGEST = 1e100  # no measurement is larger, and differences and products of such figures are still finite
_SHOWN = 300


class ResultsError(NexusError):
    """Results that cannot be made or read."""


def adapter_facts(engine: Engine | None) -> dict[str, Any] | None:
    """Return what results say of the adapter that a model runs with; ``None`` without one."""
    adapter = engine.info.adapter if engine is not None else None
    return None if adapter is None else adapter.to_dict()


def insist_positive(**counts: int | None) -> None:
    """Refuse counts below 1, which a slice would take from the end; None is for all.

    Raises
    ------
    ResultsError
        When there is one.
    """
    for name, value in counts.items():
        if value is not None and value < 1:
            raise ResultsError(f"{name} = {value}", next_step="give at least 1")


def insist_plausible(result: Result) -> None:
    """Refuse a figure whose parts are of other types than `Result` says, or larger than any measurement.

    A figure that is not finite passes: some statistics have no other value.

    Raises
    ------
    TypeError, ValueError
        With what is wrong.
    """
    if not isinstance(result.case, Mapping):
        raise TypeError(f"case is {_kind(result.case)}, no object")
    for name in ("metric", "unit"):
        if not isinstance(getattr(result, name), str):
            raise TypeError(f"{name} is {_kind(getattr(result, name))}, no text")
    for name in ("value", "low", "high", "n"):
        value = getattr(result, name)
        if value is None and name != "value":
            continue
        if not isinstance(value, int if name == "n" else int | float) or isinstance(value, bool):
            raise TypeError(f"{name} is {_kind(value)}, no {'whole ' if name == 'n' else ''}number")
        if _LARGEST < abs(value) < float("inf"):
            raise ValueError(f"{name} is beyond ±{_LARGEST:g}, which nothing measures")


def _kind(value: object) -> str:
    words = {"NoneType": "null", "dict": "an object", "list": "a list", "str": "a text"}
    name = type(value).__name__
    return words.get(name, f"a {name}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One figure.

    Attributes
    ----------
    case
        What was measured, by key; a ratio names its peer here.
    metric
        Name of the figure.
    value
        The figure, in `unit`.
    low, high
        Its 95 % interval; ``None`` where none applies.
    n
        Observations behind it.
    """

    case: Mapping[str, Any]
    metric: str
    value: float
    low: float | None = None
    high: float | None = None
    n: int | None = None
    unit: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return the figure as JSON values; an interval that does not apply is left out."""
        values = asdict(self)
        return {key: value for key, value in values.items() if value is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultFile:
    """All figures of one command, with what one needs to repeat it."""

    name: str
    created: str
    versions: Mapping[str, str]
    machine: Mapping[str, Any]
    settings: Mapping[str, Any]
    results: tuple[Result, ...] = field(repr=False)

    @classmethod
    def now(
        cls,
        name: str,
        results: Sequence[Result],
        *,
        settings: Mapping[str, Any] | None = None,
        threads: int | None = None,
    ) -> ResultFile:
        """Return the file of results that have just been measured on this machine."""
        from nexus_lab.engine import machine_facts

        machine = machine_facts(threads=threads)
        return cls(
            name=name,
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            versions=machine.pop("versions"),
            machine=machine,
            settings=dict(settings or {}),
            results=tuple(results),
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the file as JSON values."""
        return {
            "name": self.name,
            "created": self.created,
            "versions": dict(self.versions),
            "machine": dict(self.machine),
            "settings": dict(self.settings),
            "results": [result.to_dict() for result in self.results],
        }

    def to_json(self) -> str:
        """Return the file as JSON.

        Raises
        ------
        ResultsError
            When something in it is infinite or no number, which JSON cannot say.
        """
        try:
            return json.dumps(self.to_dict(), indent=1, ensure_ascii=False, allow_nan=False) + "\n"
        except ValueError as error:
            odd = [one for one in self.results if not _is_json(one.to_dict())]
            where = f"{odd[0].metric} of {dict(odd[0].case)}" if odd else "its settings"
            raise ResultsError(
                f"{self.name}: {where} cannot be written: {error}", next_step="report this, with the command"
            ) from error

    def write(self, path: Path) -> Path:
        """Write the file as JSON, whole or not at all.

        Raises
        ------
        ResultsError
            When something in it is infinite or no number, which JSON cannot say.
        """
        atomic_write(path, self.to_json().encode())
        return path

    @classmethod
    def read(cls, path: Path) -> ResultFile:
        """Read what `write` wrote.

        Raises
        ------
        ResultsError
            When the file is none of these, with what is wrong.
        """
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
            return cls._of(values)
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            told = clip(visible(f"{path} is no result file: {error}"), _SHOWN + len(str(path)))
            raise ResultsError(told, next_step="pass a file that --json wrote") from error

    @classmethod
    def _of(cls, values: dict[str, Any]) -> ResultFile:
        """Return the file that JSON values are."""
        results = []
        for number, facts in enumerate(values.pop("results"), start=1):
            try:
                result = Result(**facts)
                insist_plausible(result)
            except (ValueError, TypeError) as error:
                raise ValueError(f"result {number}: {error}") from error
            results.append(result)
        file = cls(**values, results=tuple(results))
        for name in ("versions", "machine", "settings"):
            if not isinstance(getattr(file, name), Mapping):
                raise TypeError(f"{name} is {_kind(getattr(file, name))}, no object")
        return file


def _is_json(value: object) -> bool:
    try:
        json.dumps(value, allow_nan=False)
    except ValueError:
        return False
    return True


def proportion(successes: int, n: int, *, case: Mapping[str, Any], metric: str) -> Result:
    """Return a share with its Wilson interval.

    Raises
    ------
    ResultsError
        When `n` is 0 or less than `successes`.
    """
    if not 0 <= successes <= n or n == 0:
        raise ResultsError(f"{successes} of {n} is no share", next_step="count at least one case")
    from scipy.stats import binomtest

    interval = binomtest(successes, n).proportion_ci(confidence_level=LEVEL, method="wilson")
    return Result(
        case=case,
        metric=metric,
        value=successes / n,
        low=float(interval.low),
        high=float(interval.high),
        n=n,
    )


def percentiles(samples: NDArray[Any]) -> tuple[float, float]:
    """Return the bounds that leave out equal shares of resampled statistics at both ends."""
    tail = (1 - LEVEL) / 2
    low, high = np.quantile(samples, [tail, 1 - tail])
    return float(low), float(high)


def bootstrap(
    values: Sequence[float] | NDArray[Any],
    statistic: Callable[..., Any],
    *,
    case: Mapping[str, Any],
    metric: str,
    unit: str = "",
) -> Result:
    """Return a statistic of a sample with its bootstrap percentile interval.

    Parameters
    ----------
    statistic
        Takes an array and ``axis``, as ``numpy.mean`` does.

    Raises
    ------
    ResultsError
        When there are no values.
    """
    sample = np.asarray(values, dtype=np.float64)
    if sample.size == 0:
        raise ResultsError(f"{metric}: no values", next_step="measure at least one case")
    value, low, high = float(statistic(sample, axis=0)), None, None
    if sample.size > 1:
        draws = np.random.default_rng(0).integers(0, sample.size, (RESAMPLES, sample.size))
        resampled = statistic(sample[draws], axis=1)
        low, high = percentiles(resampled)
    return Result(case=case, metric=metric, value=value, low=low, high=high, n=int(sample.size), unit=unit)


def median_interval(
    values: Sequence[float] | NDArray[Any], *, case: Mapping[str, Any], metric: str, unit: str = ""
) -> Result:
    """Return the median of a sample with its bootstrap interval."""
    return bootstrap(values, np.median, case=case, metric=metric, unit=unit)
