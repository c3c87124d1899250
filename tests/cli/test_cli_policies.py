"""The policies on the command line."""

from __future__ import annotations

from typer.testing import CliRunner

from nexus_lab.cli._app import app
from nexus_lab.policy_text import POLICIES


def test_every_policy_is_listed_with_its_knobs():
    told = CliRunner().invoke(app, ["policies"], env={"COLUMNS": "200"}).output
    for kind in POLICIES.values():
        assert kind.name in told
        assert all(knob.name in told for knob in kind.knobs)


def test_a_wrong_policy_is_refused_with_the_names_there_are(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    result = CliRunner().invoke(app, ["run", "hello", "--policy", "forget", "--command", "true"])
    assert "rolling_drop_repos" in result.exception.next_step
