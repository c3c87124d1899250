"""``nexus-lab blocks`` as a user meets it: build, stop, go on, list, check, clean."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tiny_models import _long_rope, write_model

from nexus_lab.cli import blocks as cli
from nexus_lab.errors import NexusError
from nexus_lab.splice import ToolBlock

pytestmark = pytest.mark.model

COMMAND = [sys.executable, "-c", "from nexus_lab.cli import main; main()", "blocks"]
TOOLS = [
    {
        "name": name,
        "description": f"The tool that is called {name}",
        "inputSchema": {"type": "object", "properties": {"what": {"type": "string"}}},
    }
    for name in ("find_train", "read_log", "book_table", "send_mail", "plan_route", "say_hello")
]


class Shell:
    """The command, with a home and a registry of its own."""

    def __init__(self, folder: Path) -> None:
        self.home, self.tools = folder / "home", folder / "tools.json"
        self.env = {**os.environ, "COLUMNS": "200", "NEXUS_LAB_HOME": str(self.home)}
        self.write(TOOLS)

    def write(self, tools: list[dict]) -> None:
        self.tools.write_text(json.dumps({"tools": tools}))

    def run(self, *words: object, code: int = 0) -> str:
        done = subprocess.run(
            [*COMMAND, *map(str, words)],
            capture_output=True,
            text=True,
            env=self.env,
            timeout=240,
            check=False,
        )
        assert done.returncode == code, done.stdout + done.stderr
        assert "Traceback" not in done.stderr
        return done.stdout + done.stderr

    def build(self, *words: object, code: int = 0) -> str:
        return self.run("build", self.tools, "--threads", 1, *words, code=code)

    def stopped_build(self, number: signal.Signals) -> tuple[int, str]:
        """Start a build, and send it a signal as soon as there is a first block.

        Returns its exit code and what it said.
        """
        process = subprocess.Popen(
            [*COMMAND, "build", str(self.tools), "--threads", "1"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env=self.env,
        )
        while not self.blocks() and process.poll() is None:
            time.sleep(0.002)
        process.send_signal(number)
        _, said = process.communicate(timeout=240)
        return process.returncode, said

    def blocks(self) -> list[Path]:
        return sorted(self.home.glob("data/blocks/*/*.atb"))


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell(tmp_path)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Shell:
    """A library that tests read, and leave as it is."""
    shell = Shell(tmp_path_factory.mktemp("built"))
    assert "6 compiled, 0 there before" in shell.build()
    return shell


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_build_that_was_stopped_leaves_whole_blocks_and_goes_on(shell: Shell, number: signal.Signals):
    code, said = shell.stopped_build(number)
    assert code == (130 if number is signal.SIGINT else -number)
    if number is signal.SIGINT:
        assert "the blocks compiled so far are kept" in said
        assert "next: give the same command again" in said
    there = shell.blocks()
    assert 0 < len(there) < len(TOOLS)
    for path in there:
        ToolBlock(path, verify=True)
    if number is signal.SIGINT:
        assert {path.suffix for path in there[0].parent.iterdir()} <= {".atb", ".json"}
    before = {path: path.stat().st_mtime_ns for path in there}
    assert f"{len(TOOLS) - len(there)} compiled, {len(there)} there before" in shell.build()
    assert len(shell.blocks()) == len(TOOLS)
    assert {path: path.stat().st_mtime_ns for path in there} == before
    assert "0 compiled, 6 there before" in shell.build()


def test_a_context_of_its_own_makes_blocks_of_their_own(shell: Shell):
    shell.write(TOOLS[:1])
    assert "1 compiled" in shell.build()
    assert "1 compiled" in shell.build("--context", "none")
    assert "1 compiled" in shell.build("--system", "Be brief.")
    assert "1 compiled" in shell.build("--flash-attention")
    listed = shell.run("list", "--registry", shell.tools)
    assert listed.count("find_train") == 4
    assert "4 blocks" in listed


def test_blocks_are_of_the_context_that_an_agent_has_where_keys_turn_by_it(shell: Shell, tmp_path: Path):
    path = write_model(tmp_path / "turns.gguf", *_long_rope(8192))
    shell.write(TOOLS[:1])
    assert "1 compiled" in shell.build("--model", path, "--n-ctx", 16384)
    assert "1 foreign" in shell.run("check", "--model", path)
    assert "1 whole" in shell.run("check", "--model", path, "--n-ctx", 16384)
    assert "removed 0 blocks" in shell.run("clean", "--foreign", "--model", path, "--n-ctx", 16384)


def test_conversations_of_ones_own_are_kept_and_make_blocks_of_their_own(shell: Shell, tmp_path: Path):
    shell.write(TOOLS[:1])
    talks = tmp_path / "talks.jsonl"
    turns = [{"role": "user", "content": "Where is my bag?"}, {"role": "assistant", "content": "In Oslo."}]
    talks.write_text("\n".join(json.dumps({"id": n, "messages": turns[: 1 + n % 2]}) for n in range(3)))
    said = shell.build("--context", "typical", "--conversations", talks)
    assert "2 conversations" in said
    assert "1 compiled" in said
    assert list(shell.home.rglob("conversations.jsonl"))
    assert "1 there before" in shell.build("--context", "typical")
    assert "1 compiled" in shell.build("--context", "typical", "--conversations", "samples")
    assert not list(shell.home.rglob("conversations.jsonl"))


def test_a_list_shows_what_each_block_is(built: Shell):
    listed = built.run("list", "--registry", built.tools)
    header, *rows = [line.split() for line in listed.splitlines() if line.strip()]
    assert header == ["tool", "tokens", "anchor", "size", "model", "last", "use", "block"]
    assert {row[0] for row in rows[:-1]} == {tool["name"] for tool in TOOLS}
    row = next(row for row in rows if row[0] == "book_table")
    block = next(path for path in built.blocks() if path.stem.startswith(row[-1]))
    opened = ToolBlock(block)
    assert row[1:3] == [str(opened.n_tokens), str(opened.anchor)]
    assert row[3:5] == [f"{opened.nbytes / 2**20:.1f}", "MiB"]
    assert row[5] == "SmolLM2-135M-Instruct.Q4_1"
    assert "find_train" not in built.run("list")


def test_a_check_names_what_is_damaged_and_foreign(built: Shell, tmp_path: Path):
    shell = Shell(tmp_path)
    subprocess.run(["cp", "-r", built.home, shell.home], check=True)
    assert "6 whole" in shell.run("check")
    flipped, cut, good, *_ = shell.blocks()
    data = flipped.read_bytes()
    flipped.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    cut.write_bytes(cut.read_bytes()[:-9])
    foreign = cut.parent.with_name("ab" * 16) / "moved.atb"
    foreign.parent.mkdir()
    foreign.write_bytes(good.read_bytes())
    said = shell.run("check", code=1)
    named = {line.split(": ")[1]: line for line in said.splitlines() if line.count(": ") > 1}
    assert named[str(flipped)].startswith("damaged: ")
    assert "payload_hash" in named[str(flipped)]
    assert named[str(cut)].startswith("damaged: ")
    assert "file_bytes" in named[str(cut)]
    assert named[str(foreign)].startswith("foreign: ")
    assert "fingerprint" in named[str(foreign)]
    assert "4 whole, 2 damaged, 1 foreign" in said

    assert "would remove 2 blocks" in shell.run("clean", "--damaged", "--dry-run")
    assert len(shell.blocks()) == 7
    assert "removed 3 blocks" in shell.run("clean", "--damaged", "--foreign")
    assert not any(path.exists() for path in (flipped, cut, foreign))
    assert len(shell.blocks()) == 4


def test_a_block_whose_tool_has_changed_is_stale(built: Shell, tmp_path: Path):
    shell = Shell(tmp_path)
    subprocess.run(["cp", "-r", built.home, shell.home], check=True)
    before = shell.blocks()
    shell.write([{**TOOLS[0], "description": "Another text"}, *TOOLS[1:]])
    said = shell.run("check", "--registry", shell.tools)
    (line,) = [line for line in said.splitlines() if line.startswith("stale: ")]
    stale = Path(line.split(": ")[1])
    assert stale in before
    assert "5 whole, 1 stale" in said
    assert "removed 1 block," in shell.run("clean", "--stale", "--registry", shell.tools)
    assert shell.blocks() == [path for path in before if path != stale]
    assert "1 compiled, 5 there before" in shell.build()


def test_a_clean_keeps_to_what_was_named(built: Shell, tmp_path: Path):
    shell = Shell(tmp_path)
    subprocess.run(["cp", "-r", built.home, shell.home], check=True)
    paths = shell.blocks()
    for age, path in enumerate(paths):
        os.utime(path, (1e9 + 1000 * age, path.stat().st_mtime))
    room = sum(path.stat().st_size for path in paths[2:])
    assert "removed 2 blocks" in shell.run("clean", "--quota", room)
    assert shell.blocks() == paths[2:]
    assert "removed 0 blocks" in shell.run("clean", "--of", "SomeOtherModel")
    assert "removed 0 blocks" in shell.run("clean", "--of", paths[0].parent.name[:3])  # too short to be meant
    # Another model of that name, as with an adapter.
    twin = paths[0].parent.with_name("ab" * 16)
    twin.mkdir()
    for path in (paths[2], paths[0].parent / "model.json"):
        (twin / path.name).write_bytes(path.read_bytes())
    refused = shell.run("clean", "--of", "SmolLM2-135M-Instruct.Q4_1", code=2)
    assert "2 models" in refused
    assert twin.name in refused
    assert len(shell.blocks()) == 5
    assert "removed 1 block," in shell.run("clean", "--of", twin.name[:8])
    assert "removed 4 blocks" in shell.run("clean", "--of", "SmolLM2-135M-Instruct.Q4_1")
    assert shell.blocks() == []
    assert "0 blocks" in shell.run("list")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("clean",), "--damaged"),
        (("clean", "--stale"), "--registry"),
        (("clean", "--quota", "much"), "4GiB"),
        (("build", "nowhere.json"), "nowhere.json"),
        (("build", "{tools}", "--quota", "1kB"), "larger quota"),
        (("build", "{tools}", "--conversations", "samples"), "--context typical"),
        (("build", "{tools}", "--context", "typical", "--conversations", "nowhere.jsonl"), "nowhere.jsonl"),
    ],
)
def test_a_mistake_is_a_sentence_and_a_next_step(shell: Shell, words: tuple[str, ...], expected: str):
    said = shell.run(*(word.format(tools=shell.tools) for word in words), code=2)
    assert expected in said
    assert "next:" in said
    assert shell.blocks() == []


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("4GiB", 4 * 2**30),
        ("500 MB", 500_000_000),
        ("1.5k", 1500),
        ("17", 17),
        ("2T", 2 * 10**12),
        ("none", None),
    ],
)
def test_sizes_are_read_as_they_are_written(text: str, size: int | None):
    assert cli._quota(text) == size


@pytest.mark.parametrize("text", ["", "GiB", "-1", "4 potatoes", "1e9", "9" * 400, "99999999999T"])
def test_what_is_no_size_is_refused(text: str):
    with pytest.raises(NexusError) as caught:
        cli._quota(text)
    assert caught.value.next_step
