"""A calibration as if it had been measured."""

from __future__ import annotations

from collections.abc import Mapping

from nexus_lab.splice import Calibration, CalibrationCell


def calibration_of(uppers: Mapping[int, Mapping[float, float]]) -> Calibration:
    """Return the calibration whose upper D_KL by depth and budget is `uppers`; its means are half of that."""
    return Calibration(
        fingerprint="ab" * 16,
        context_hash="cd" * 16,
        flash_attention=False,
        strategy="leading",
        quantile=0.95,
        noise_floor=0.004,
        n_tokens_min=100,
        n_tokens_max=300,
        cells=tuple(
            CalibrationCell(depth, budget, upper, upper / 2, 20)
            for depth, row in uppers.items()
            for budget, upper in row.items()
        ),
    )
