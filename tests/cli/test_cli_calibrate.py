"""``nexus-lab eval calibrate`` as a user meets it."""

from __future__ import annotations

from typing import Any

import pytest
from typer.testing import CliRunner

from nexus_lab.bench import calibration
from nexus_lab.cli._app import app
from nexus_lab.errors import Cancelled


def test_a_stopped_calibration_says_what_is_kept_and_how_it_goes_on(monkeypatch: pytest.MonkeyPatch):
    def stopped(*_arguments: Any, on_progress: Any, **_options: Any) -> None:
        on_progress(1, 40)
        raise KeyboardInterrupt

    monkeypatch.setattr(calibration, "calibrate_agent", stopped)
    error = CliRunner().invoke(app, ["eval", "calibrate"]).exception
    assert isinstance(error, Cancelled)
    assert "kept" in error.problem
    assert "again" in error.next_step
