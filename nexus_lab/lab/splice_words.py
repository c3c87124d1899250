"""What a splice trial was asked for and what it led to, as every form of it shows them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from nexus_lab.lab.splice_parts import CONTEXTS
from nexus_lab.splice import RepairPath
from nexus_lab.trace.text import count, number, plural

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from nexus_lab.lab.splice_records import SpliceSettings, SpliceTrial
    from nexus_lab.splice import Calibration, Coverage

__all__ = ["ProfileFigure", "led_words", "profile_figure"]

_REACH = 10


@dataclass(frozen=True, slots=True)
class ProfileFigure:
    """A bar for each token of a block, as two SVG paths in a view box of ``n`` by 10.

    Attributes
    ----------
    n
        Tokens of the block.
    spliced, recomputed
        Bars of the tokens that were spliced, and of those computed again.
    words
        The same for who does not see it.
    """

    n: int
    spliced: str
    recomputed: str
    words: str


def profile_figure(sensitivity: NDArray[np.float32], recomputed: Sequence[int]) -> ProfileFigure:
    """Draw the sensitivity of each token, float32 [n_tokens]; `recomputed` are indices of tokens."""
    n, chosen = len(sensitivity), set(recomputed)
    most = max(float(sensitivity.max()), 1e-12)
    top = int(sensitivity.argmax())

    def bars(indices: Iterable[int]) -> str:
        reach = {index: round(_REACH * float(sensitivity[index]) / most, 2) for index in indices}
        return "".join(f"M{index} {_REACH}v{-high:g}h1V{_REACH}" for index, high in reach.items() if high)

    words = (
        f"Sensitivity of each of {plural(n, 'token')} to what stands before the block: median "
        f"{number(float(np.median(sensitivity)), 3)}, largest {number(float(sensitivity[top]), 3)} at token "
        f"{top}; dark: computed again"
    )
    return ProfileFigure(n, bars(i for i in range(n) if i not in chosen), bars(sorted(chosen)), words)


def led_words(trial: SpliceTrial) -> tuple[str, ...]:
    """Return what was asked, the path and plan it led to, and for ``bounded`` what it went by."""
    words = [_asked(trial.settings), _behind(trial), _done(trial)]
    if trial.repair_declined is not None:
        words.append(f"One pass declined: {trial.repair_declined.reason}; {trial.repair_declined.instead}.")
    # A decline for want of a calibration, or of a splice at all, has said so.
    told = trial.declined is not None and trial.calibration is None
    if trial.settings.contract == "bounded" and not told:
        words += _calibrated(trial.calibration)
    return tuple(words)


def _asked(settings: SpliceSettings) -> str:
    contract = settings.contract
    if contract == "bounded":
        contract = f"bounded({settings.epsilon:g})"
    elif contract == "fixed":
        budget = (
            f"R(n_past), K = {settings.k:g}" if settings.budget is None else f"{_percent(settings.budget)}"
        )
        contract = f"fixed, {settings.repair}" + (
            "" if settings.repair in ("none", "full") else f", {budget}"
        )
    return f"{settings.tool} at n_past {count(settings.n_past)}, contract {contract}"


def _behind(trial: SpliceTrial) -> str:
    what = CONTEXTS[trial.settings.context]
    if trial.settings.context != "none":
        what += f", at {count(trial.anchor)}"
    return f"Block compiled behind {what}{'; anchored here' if trial.anchored else ''}."


def _done(trial: SpliceTrial) -> str:
    if trial.declined is not None:
        return f"Path B, {trial.declined.instead} ({trial.declined.code}): {trial.declined.reason}."
    if trial.repaired == trial.n_tokens:
        return "Path B: the whole block was computed."
    if not trial.repaired:
        return "Path A: spliced, nothing computed again."
    if trial.repair_path == RepairPath.ONE_PASS:
        way = "in one pass"
    else:
        way = "stretch by stretch" if trial.repair_declined is not None else "in one stretch"
    share = f"{count(trial.repaired)} of {plural(trial.n_tokens, 'token')}"
    return f"Path A: spliced; {trial.plan} repair of {share}, {way}."


def _calibrated(calibration: Calibration | None) -> list[str]:
    if calibration is None:
        return ["No calibration of this model behind this compile context."]
    depths = calibration.depths
    lengths = f"{count(calibration.n_tokens_min)} to {plural(calibration.n_tokens_max, 'token')}"
    found = (
        f"Calibration: {calibration.strategy} repair, depths {count(depths[0])} to {count(depths[-1])}, "
        f"blocks of {lengths}, {100 * calibration.quantile:g} % quantile."
    )
    held = [_covered(row) for row in calibration.coverage]
    return [found, *(held or ["Its coverage was not measured."])]


def _percent(share: float, digits: int = 0) -> str:
    return f"{100 * share:.{digits}f} %"


def _covered(row: Coverage) -> str:
    held = _percent(row.covered / row.n, 1) if row.n else "–"
    return (
        f"Coverage at {number(row.epsilon)} nats, other conversations: {held} of {count(row.n)}; "
        f"{count(row.prefilled)} prefilled, {_percent(row.recomputed)} computed on average."
    )
