"""``nexus-lab registry``, as a user types it."""

from __future__ import annotations

import contextlib
import json
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from nexus_lab.cli.registry import app
from nexus_lab.registry import RegistryError, ServerStartFailed, load_registry

RAW = Path(__file__).parent / "raw_server.py"
TOOLS = [
    {
        "name": "make",
        "description": "Make [bold]it[/bold] \x1b[31mred\x1b[0m",
        "inputSchema": {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]},
        "server": "hub",
    },
    {"name": "a[red]b", "description": "[link=file:///etc]click[/link]", "inputSchema": {"type": "object"}},
]


@pytest.fixture
def file(tmp_path) -> Path:
    path = tmp_path / "tools.json"
    path.write_text(json.dumps(TOOLS))
    return path


def run(*words: object, code: int = 0) -> str:
    result = CliRunner(env={"COLUMNS": "200", "TERM": "dumb"}).invoke(app, [str(word) for word in words])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == code, result.output
    return result.output


def test_show_lists_tools_and_nothing_is_taken_as_markup(file):
    output = run("show", file)
    assert "(name: string)" in output
    assert "Make [bold]it[/bold] \\x1b[31mred" in output
    assert "a[red]b" in output
    assert "\x1b[31m" not in output
    assert "2 tools" in output


def test_show_one_tool(file):
    output = run("show", file, "--schema", "make")
    assert "make(name: string)" in output
    assert '"required"' in output
    assert "\x1b[31m" not in output
    with pytest.raises(RegistryError, match="no tool 'mke'"):
        run("show", file, "--schema", "mke")


def test_show_can_be_narrowed(file):
    assert "a[red]b" not in run("show", file, "--server", "hub")
    assert "1 more" in run("show", file, "--limit", "1")
    with pytest.raises(RegistryError) as caught:
        run("show", file, "--server", "none")
    assert "hub" in caught.value.next_step


def test_check_exits_by_what_it_finds(file, tmp_path):
    output = run("check", file)
    assert "warning" in output
    assert "0 errors" in output
    bad = tmp_path / "bad.json"
    bad.write_text(json.dumps([*TOOLS, {"name": "x", "inputSchema": []}, {"foo": 1}]))
    output = run("check", bad, code=1)
    assert "2 errors" in output
    assert output.index("error: x") < output.index("warning")


def test_check_finds_what_only_the_metaschema_knows(tmp_path):
    path = tmp_path / "tools.json"
    schema = {"type": "object", "properties": {"a": {"minLength": "long"}}}
    path.write_text(json.dumps([{"name": "x", "description": "y", "inputSchema": schema}]))
    assert "properties/a/minLength" in run("check", path)
    assert "minLength" not in run("check", path, "--no-deep")


def test_add_merges_files(file, tmp_path):
    target = tmp_path / "all.json"
    assert "0 tools before, 2 now" in run("add", target, "--file", file)
    more = tmp_path / "more.json"
    more.write_text(json.dumps([{"name": "other", "description": "z", "input_schema": {"type": "object"}}]))
    assert "2 tools before, 3 now" in run("add", target, "--file", more, "--name", "elsewhere")
    assert load_registry(target)["other"].server == "elsewhere"


def _command_lines() -> list[bytes]:
    """Command lines of all processes, where the system shows them."""
    lines = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            lines.append(entry.read_bytes())
    return lines


def test_add_starts_the_server_that_is_named_and_ends_it(tmp_path):
    target = tmp_path / "live.json"
    command = f"{sys.executable} {RAW} good --token hunter22"
    output = run("add", target, "--server", command, "--name", "raw", "--env", "API_KEY=sk-verysecret")
    assert "raw: 1 tool" in output
    assert load_registry(target)["raw.echo"].server == "raw"
    assert "hunter22" not in target.read_text() + output
    assert "sk-verysecret" not in target.read_text() + output
    assert "1 tool before, 1 now" in run("add", target, "--server", command, "--name", "raw")
    assert not [line for line in _command_lines() if b"hunter22" in line]


def test_add_starts_listed_servers_only_when_told(tmp_path):
    client = tmp_path / "client.json"
    client.write_text(json.dumps({"mcpServers": {"raw": {"command": sys.executable, "args": [str(RAW)]}}}))
    target = tmp_path / "all.json"
    assert "0 now" in run("add", target, "--file", client)
    assert "raw" in run("show", target)
    assert "1 now" in run("add", target, "--start", "raw")
    with pytest.raises(RegistryError) as caught:
        run("add", target, "--start", "other")
    assert "raw" in caught.value.next_step


def test_a_failed_add_leaves_the_file_as_it_was(file, tmp_path):
    target = tmp_path / "all.json"
    run("add", target, "--file", file)
    before = target.read_bytes()
    with pytest.raises(ServerStartFailed):
        run("add", target, "--server", f"{sys.executable} {RAW} exit")
    with pytest.raises(RegistryError, match="nothing to add"):
        run("add", target)
    with pytest.raises(RegistryError, match="cannot be read"):
        run("add", target, "--server", "'unclosed")
    assert target.read_bytes() == before
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []
