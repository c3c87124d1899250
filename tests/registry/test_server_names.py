"""What a server is called that was given as a command alone."""

from __future__ import annotations

import shlex

import pytest

from nexus_lab.registry.server_names import free_name, name_of_command, name_of_url


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("mcp-server-git --repository .", "git"),
        ("uvx mcp-server-time", "time"),
        ("uvx mcp-server-git@latest --repository /tmp/x", "git"),
        ("uv --directory /srv/app run mcp-server-fetch", "fetch"),
        ("uv run weather.py", "weather"),
        ("python -m mcp_server_sqlite --db-path a.db", "sqlite"),
        ("/usr/bin/python3.12 /opt/tools/notes_server.py", "notes"),
        ("npx -y @modelcontextprotocol/server-filesystem /home", "filesystem"),
        ("npx -y @playwright/mcp@0.0.30", "playwright"),
        ("docker run -i --rm ghcr.io/github/github-mcp-server", "github"),
        ("docker run -i mcp/time:latest", "time"),
        ("node build/index.js", "index"),
        ("./server", "server"),
        ("python", "python"),
        ("-x", "-x"),
    ],
)
def test_a_command_is_called_by_its_program(command: str, name: str):
    assert name_of_command(shlex.split(command)) == name


def test_a_name_that_is_taken_gets_a_number():
    assert free_name("git", ()) == "git"
    assert free_name("git", ["git", "git2"]) == "git3"
    assert name_of_url("https://mcp.example.org:8080/v1") == "mcp.example.org"
