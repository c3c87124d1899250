"""The command line as a user meets it: exit codes, errors that name the next step, nothing raw."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from nexus_lab.agent import ApprovalRefused, Turn
from nexus_lab.cli import main
from nexus_lab.cli._app import app
from nexus_lab.cli._output import plain
from nexus_lab.cli._turn_line import TurnLine
from nexus_lab.cli.profile import _meanings
from nexus_lab.cli.run import _approve, _chosen, _converse, _Declines
from nexus_lab.errors import NexusError
from nexus_lab.registry import ToolSpec
from nexus_lab.settings import Profile, save_profile


def run(*words: str, **env: str) -> subprocess.CompletedProcess[str]:
    code = "from nexus_lab.cli import main; main()"
    return subprocess.run(
        [sys.executable, "-c", code, *words],
        capture_output=True,
        text=True,
        env={**os.environ, "COLUMNS": "200", **env},
        timeout=240,
        check=False,
    )


def test_help_names_every_group():
    result = run("--help")
    assert result.returncode == 0
    for group in (
        "demo",
        "blocks",
        "registry",
        "route",
        "run",
        "eval",
        "bench",
        "export",
        "doctor",
        "profile",
    ):
        assert group in result.stdout


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("export", "nowhere.nexus"), "nowhere.nexus"),
        (("registry", "check", "nowhere.json"), "nowhere.json"),
        (("profile", "show", "nobody"), "nobody"),
        (("profile", "set", "mine", "k=1"), "r_base"),
        (("profile", "set", "mine", "shadow"), "KEY=VALUE"),
        (("doctor", "--models", "nowhere"), "nowhere"),
        (("run", "hello"), "--command"),
        (("run", "hello", "--command", ""), "--command ''"),
        (("run", "hello", "--command", "server 'open"), "open"),
        (("eval", "attention", "--trajectories", "nowhere", "--layers", "0,a"), "'0,a'"),
    ],
)
def test_a_mistake_is_a_sentence_and_a_next_step(words, expected, tmp_path):
    result = run(*words, NEXUS_LAB_HOME=str(tmp_path))
    assert result.returncode == 2
    assert expected in result.stderr
    assert "next:" in result.stderr
    assert "Traceback" not in result.stderr


COUNTS = [
    ("eval", "cache", "--trajectories", "x", "--limit"),
    ("eval", "cache", "--trajectories", "x", "--turns"),
    ("eval", "attention", "--trajectories", "x", "--limit"),
    ("eval", "attention", "--trajectories", "x", "--turns"),
    ("eval", "arguments", "--cases", "x", "--limit"),
    ("eval", "routing", "--registry", "x", "--queries", "x", "--size"),
    ("eval", "sidecar", "--registry", "x", "--limit"),
    ("eval", "sidecar", "--registry", "x", "--depth"),
    ("eval", "splice", "--workers"),
    ("eval", "splice", "--tools"),
    ("eval", "splice", "--prefixes"),
    ("eval", "calibrate", "--prefixes"),
    ("eval", "routing", "--registry", "x", "--queries", "x", "--threads"),
    ("run", "--n-ctx"),
    ("blocks", "list", "--threads"),
    ("search", "policy", "--trajectories", "x", "--work", "x", "--limit"),
    ("search", "policy", "--trajectories", "x", "--work", "x", "--turns"),
    ("search", "policy", "--trajectories", "x", "--work", "x", "--trials"),
    ("search", "policy", "--trajectories", "x", "--work", "x", "--seed"),
]


@pytest.mark.parametrize("words", COUNTS, ids=" ".join)
def test_a_count_that_takes_from_the_end_is_refused(words):
    result = CliRunner().invoke(app, [*words, "-1"])
    assert result.exit_code == 2
    assert words[-1] in result.output
    assert "Invalid value" in result.output


def test_a_folder_that_cannot_be_written_is_a_sentence(tmp_path):
    (tmp_path / "file").touch()
    result = run("profile", "set", "mine", "k=5", NEXUS_LAB_HOME=str(tmp_path / "file"))
    assert result.returncode == 2
    assert "cannot be written" in result.stderr
    assert "next:" in result.stderr
    assert "Traceback" not in result.stderr


def test_a_failure_of_the_system_is_a_sentence_too(monkeypatch, capsys):
    def failing(**_options: object) -> None:
        raise PermissionError(13, "Permission denied", "/a[red]b")

    monkeypatch.setattr("nexus_lab.cli._app.app", failing)
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert "/a[red]b" in said
    assert "next:" in said


def test_where_nobody_can_be_asked_nothing_is_approved(monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    with pytest.raises(ApprovalRefused, match="delete may change something") as caught:
        _approve(TurnLine(), yes=False)(ToolSpec("delete", "", {}), {})
    assert "--yes" in caught.value.next_step


@pytest.mark.parametrize(("everything", "lines"), [(False, 2), (True, 3)])
def test_a_request_for_too_much_is_told_each_time_and_a_decline_of_an_endpoint_once(
    capsys, everything, lines
):
    observer = _Declines(everything=everything)
    for code in ("too_many_things", "remote_no_splice", "remote_no_splice", "too_many_things"):
        said = {"code": code, "reason": "because", "instead": "something else"}
        observer.on_event(SimpleNamespace(status="declined", attributes=said))
    observer.on_event(SimpleNamespace(status="ok", attributes={"code": "too_many_things"}))
    assert len(capsys.readouterr().out.splitlines()) == lines


def test_ctrl_c_stops_the_turn_that_was_typed_and_goes_on_asking(monkeypatch, capsys):
    asked = []

    def ask(request, on_turn, **_told):
        asked.append(request)
        if len(asked) == 1:
            raise KeyboardInterrupt
        turn = Turn(number=2, request=request, schema_mode="full", settings={}, answer="Noon.")
        on_turn(turn)
        return turn

    monkeypatch.setattr(sys, "stdin", io.StringIO("What time is it?\n\nAnd now?\n"))
    assert _converse(SimpleNamespace(ask=ask), [], TurnLine())
    assert asked == ["What time is it?", "And now?"]
    shown = capsys.readouterr().out
    assert "× stopped" in shown
    assert "Noon." in shown
    with pytest.raises(KeyboardInterrupt):
        _converse(
            SimpleNamespace(ask=lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt)),
            ["One"],
            TurnLine(),
        )


@pytest.mark.parametrize(
    ("entries", "problem", "next_step"),
    [
        ({"a": {"command": 5}}, "server 'a' of servers.json: 'command' is not a text", "mend"),
        ({"b": {"command": "x"}}, "servers.json lists no server 'a'", "it lists b"),
        ({}, "servers.json lists no server 'a'", "registry check servers.json"),
    ],
)
def test_a_server_that_cannot_be_started_is_told_with_its_fault(
    tmp_path, monkeypatch, entries, problem, next_step
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "servers.json").write_text(json.dumps({"mcpServers": entries}))
    with pytest.raises(NexusError) as caught:
        _chosen(Path("servers.json"), ["a"], [])
    assert caught.value.problem == problem
    assert next_step in caught.value.next_step


def test_two_servers_of_one_launcher_have_names_of_their_own():
    one, two = _chosen(None, [], ["uvx mcp-server-git --repository a", "uvx mcp-server-git --repository b"])
    assert (one.name, two.name) == ("git", "git2")
    assert (one.command, two.args) == ("uvx", ("mcp-server-git", "--repository", "b"))


def test_a_profile_can_be_changed_and_shown(tmp_path):
    home = str(tmp_path)
    assert run("profile", "set", "deep", "k=6", "tau=0.02", NEXUS_LAB_HOME=home).returncode == 0
    shown = run("profile", "show", "deep", NEXUS_LAB_HOME=home).stdout
    assert "0.02" in shown
    assert run("profile", "list", NEXUS_LAB_HOME=home).stdout.split() == ["deep", "default"]


def test_yes_and_no_are_what_they_say(tmp_path):
    home = str(tmp_path)
    assert (
        run("profile", "set", "mine", "shadow=yes", "repos=no", "repair=none", NEXUS_LAB_HOME=home).returncode
        == 0
    )
    stored = json.loads((tmp_path / "config" / "profiles" / "mine.json").read_text())
    assert (stored["shadow"], stored["repos"], stored["repair"]) == (True, False, "none")
    refused = run("profile", "set", "mine", "shadow=maybe", NEXUS_LAB_HOME=home)
    assert refused.returncode == 2
    assert "choose yes or no" in refused.stderr


def test_a_profile_is_shown_with_what_each_setting_is():
    meanings = _meanings()
    assert set(meanings) == {field.name for field in fields(Profile)}
    assert all(meanings.values())


def test_a_session_is_not_recorded_over_another_and_nothing_is_started_for_it(tmp_path):
    (tmp_path / "today.nexus").mkdir()
    (tmp_path / "today.nexus" / "manifest.json").write_text("{}")
    words = ("run", "hello", "--command", "no-such-server", "--session", str(tmp_path / "today"))
    done = run(*words, NEXUS_LAB_HOME=str(tmp_path))
    assert done.returncode == 2
    assert "today.nexus holds a session already" in done.stderr.replace("\n", "")
    assert "no-such-server" not in done.stdout + done.stderr


def test_what_the_policy_of_a_profile_imports_is_told_before_it_is(nexus_home):
    code = "policies.py:mine"
    save_profile(Profile(name="mine", policy=f"python(function={code})"))
    done = run("run", "hello", "--profile", "mine", NEXUS_LAB_HOME=str(nexus_home))
    assert f"profile mine: its cache policy imports and runs {code}" in done.stdout + done.stderr
    assert "no server to start" in done.stderr  # and nothing has been imported


@pytest.mark.model
def test_the_doctor_says_what_is_here():
    result = run("doctor")
    assert result.returncode == 0, result.stderr
    for word in ("scan kernel", "llama-cpp-python", "SmolLM2-135M-Instruct.Q4_1.gguf", "splice", "✓ works"):
        assert word in result.stdout


@pytest.mark.model
def test_a_model_that_is_none_is_refused(tmp_path):
    path = tmp_path / "notes.gguf"
    path.write_text("these are my notes")
    result = run("demo", "--model", str(path), "--output", str(tmp_path / "out"))
    assert result.returncode == 2
    assert "Traceback" not in result.stderr
    assert "next:" in result.stderr


def test_untrusted_text_is_printed_without_markup_or_control():
    shown = plain("[bold]x[/bold]\x1b[31m\nend")
    assert shown.plain == "[bold]x[/bold] [31m end"
    assert not shown.spans
    assert plain("abcdef", limit=4).plain == "abc…"
