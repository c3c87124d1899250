"""The demonstration's servers: installed whole or not at all, and really answering."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing

import pytest

from nexus_lab.demo.scratch import ScratchError, make_scratch_database, make_scratch_repository
from nexus_lab.demo.servers import (
    DEMO_SERVERS,
    ServerPackage,
    demo_server_commands,
    install_servers,
    missing_servers,
)
from nexus_lab.registry import ServerInstallFailed, connect

LAST_COMMIT = "e8147070e37920e02bf9d08dcd8d5acd256e6013"


def git(folder, *words: str) -> str:
    return subprocess.run(["git", *words], cwd=folder, capture_output=True, text=True, check=True).stdout


def test_the_repository_is_the_same_every_time(tmp_path, monkeypatch):
    home = tmp_path / "home"
    home.mkdir()
    (home / ".gitconfig").write_text("[user]\n\tname = Somebody Else\n[commit]\n\tgpgsign = true\n")
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere"))
    monkeypatch.setenv("GIT_AUTHOR_NAME", "Nobody")
    folder = make_scratch_repository(tmp_path / "repo")
    monkeypatch.delenv("GIT_DIR")
    assert git(folder, "rev-parse", "HEAD").strip() == LAST_COMMIT
    assert git(folder, "log", "--format=%s|%an|%ad", "--date=iso-strict").splitlines() == [
        "Add a total|Ada Example|2026-01-01T02:00:00+00:00",
        "Count the buckets too|Ada Example|2026-01-01T01:00:00+00:00",
        "Start the inventory|Ada Example|2026-01-01T00:00:00+00:00",
    ]
    assert git(folder, "branch", "--format=%(refname:short)").split() == ["add-prices", "main"]
    assert git(folder, "status", "--porcelain") == " M README.md\n"
    assert (home / ".gitconfig").read_text().startswith("[user]\n\tname = Somebody Else")
    make_scratch_repository(folder)
    assert git(folder, "rev-parse", "HEAD").strip() == LAST_COMMIT


def test_other_peoples_files_are_left_alone(tmp_path):
    (tmp_path / "thesis.txt").write_text("ten years of work")
    with pytest.raises(ScratchError, match="other files"):
        make_scratch_repository(tmp_path)
    assert (tmp_path / "thesis.txt").exists()


def test_without_git_the_error_says_so(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ScratchError, match="git was not found"):
        make_scratch_repository(tmp_path / "repo")


def test_the_database_has_two_small_tables(tmp_path):
    path = make_scratch_database(tmp_path / "folder" / "shop.db")
    make_scratch_database(path)
    with closing(sqlite3.connect(path)) as database:
        assert database.execute("SELECT count(*), sum(stock) FROM products").fetchone() == (4, 8)
        assert database.execute("SELECT count(*), sum(quantity) FROM orders").fetchone() == (3, 4)


def test_every_server_is_pinned():
    assert [server.name for server in DEMO_SERVERS] == ["time", "git", "sqlite"]
    for server in DEMO_SERVERS:
        assert all("==" in requirement for requirement in server.requirements)


@pytest.mark.usefixtures("nexus_home")
def test_what_is_not_installed_is_named(tmp_path):
    assert missing_servers() == DEMO_SERVERS
    with pytest.raises(
        ServerInstallFailed, match="mcp-server-time, mcp-server-git, mcp-server-sqlite"
    ) as caught:
        demo_server_commands(tmp_path, tmp_path / "x.db")
    assert "--setup" in caught.value.next_step


def _fake_environment(server: ServerPackage, requirements: list[str]) -> None:
    bin_folder = server.folder / "bin"
    bin_folder.mkdir(parents=True)
    (bin_folder / "python").symlink_to(sys.executable)
    server.program.write_text("")
    (server.folder / "ready.json").write_text(json.dumps({"requirements": requirements}))


@pytest.mark.usefixtures("nexus_home")
def test_half_or_outdated_environments_are_not_ready():
    server = DEMO_SERVERS[0]
    _fake_environment(server, list(server.requirements))
    assert server.ready
    (server.folder / "ready.json").write_text(
        json.dumps({"requirements": ["mcp-server-time==1.0", "mcp==1.0"]})
    )
    assert not server.ready
    (server.folder / "ready.json").write_text('{"requ')
    assert not server.ready
    (server.folder / "ready.json").unlink()
    assert not server.ready
    (server.folder / "bin" / "python").unlink()
    assert not server.ready


@pytest.fixture
def offline(monkeypatch):
    """A pip that reaches no index."""
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_RETRIES", "0")


@pytest.mark.usefixtures("nexus_home", "offline")
def test_offline_the_error_is_clear_and_nothing_looks_ready():
    server = ServerPackage("time", "mcp-server-time", "2026.10.19", "mcp==2.3.0")
    lines: list[str] = []
    with pytest.raises(ServerInstallFailed, match="could not be installed") as caught:
        server.install(lines.append)
    assert "check the network" in caught.value.next_step
    assert lines[0] == "mcp-server-time 2026.10.19: making its environment"
    assert not server.ready


@pytest.mark.usefixtures("nexus_home")
def test_a_killed_install_leaves_nothing_that_looks_ready():
    code = (
        "from nexus_lab.demo.servers import DEMO_SERVERS\n"
        "DEMO_SERVERS[0].install(lambda line: print(line, flush=True))"
    )
    # An address that accepts and never answers keeps pip waiting.
    listen = (
        "import socket, time; s = socket.create_server(('127.0.0.1', 0)); "
        "print(s.getsockname()[1], flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", listen], stdout=subprocess.PIPE, text=True) as silent:
        port = silent.stdout.readline().strip()
        environment = {key: value for key, value in os.environ.items() if not key.startswith("PIP_")}
        environment |= {"PIP_CONFIG_FILE": os.devnull, "PIP_INDEX_URL": f"http://127.0.0.1:{port}/simple"}
        process = subprocess.Popen(
            [sys.executable, "-c", code],
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
            start_new_session=True,
        )
        assert "making its environment" in process.stdout.readline()
        folder = DEMO_SERVERS[0].folder
        deadline = time.monotonic() + 60
        while not (folder / "bin" / "python").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()
        silent.kill()
    assert folder.exists()
    assert not DEMO_SERVERS[0].ready


@pytest.fixture(scope="module")
def demo_box(tmp_path_factory):
    """The real servers, running; skipped where their environments were not made."""
    missing = missing_servers()
    if missing:
        names = ", ".join(server.package for server in missing)
        pytest.skip(f"not installed: {names}; run `nexus-lab demo --setup`")
    folder = tmp_path_factory.mktemp("demo")
    repository = make_scratch_repository(folder / "repo")
    database = make_scratch_database(folder / "shop.db")
    with connect(*demo_server_commands(repository, database)) as box:
        yield box, repository


@pytest.mark.servers
def test_the_real_servers_answer(demo_box):
    box, repository = demo_box
    assert {tool.server for tool in box.registry} == {"time", "git", "sqlite"}
    assert box.registry.errors == ()
    assert len(box.registry) >= 18
    assert "UTC" in box.call("get_current_time", {"timezone": "UTC"}).raise_for_error().text
    log = box.call("git_log", {"repo_path": str(repository), "max_count": 1}).raise_for_error().text
    assert LAST_COMMIT in log
    assert "README.md" in box.call("git_status", {"repo_path": str(repository)}).text
    query = "SELECT name FROM products WHERE stock = 0"
    assert "hose" in box.call("read_query", {"query": query}).raise_for_error().text
    assert box.call("get_current_time", {"timezone": "Mars/Olympus"}).is_error


@pytest.mark.servers
@pytest.mark.usefixtures("demo_box")
def test_installed_servers_need_no_network(monkeypatch):
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    lines: list[str] = []
    assert len(install_servers(lines.append)) == 3
    assert lines == []
