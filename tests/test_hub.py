"""The hub: nothing is tried where there is no way, and the libraries' own lines stay off the terminal."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from nexus_lab.hub import quiet_libraries, why_offline

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.mark.usefixtures("no_proxy")
def test_a_hub_that_cannot_be_found_is_told_unless_a_proxy_may_know_it(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "https://hub.invalid")
    assert why_offline() == "hub.invalid cannot be found from here"
    monkeypatch.setenv("https_proxy", "http://proxy.invalid:3128")
    assert why_offline() is None
    monkeypatch.delenv("https_proxy")
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:1")
    assert why_offline() is None
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert why_offline() == "HF_HUB_OFFLINE is set"


def test_libraries_are_mute_until_the_last_block_ends(monkeypatch: pytest.MonkeyPatch):
    root, asked = logging.getLogger("huggingface_hub"), logging.getLogger("transformers")
    monkeypatch.setattr(root, "level", logging.WARNING)
    monkeypatch.setattr(asked, "level", logging.INFO)
    child = logging.getLogger("huggingface_hub.utils._http")
    first, second = quiet_libraries(), quiet_libraries()
    with first:
        second.__enter__()
        assert not child.isEnabledFor(logging.CRITICAL)
        assert asked.isEnabledFor(logging.INFO)  # who wants more than warnings gets it
    assert not child.isEnabledFor(logging.CRITICAL)
    second.__exit__(None, None, None)
    assert (root.level, asked.level) == (logging.WARNING, logging.INFO)


@pytest.mark.parametrize("asked", [{"HF_HUB_OFFLINE": "1"}, {"HF_ENDPOINT": "https://hub.invalid"}])
def test_routing_with_an_embedder_of_the_hub_without_a_network_says_one_error(
    tmp_path: Path, asked: dict[str, str]
):
    tools = tmp_path / "tools.json"
    tools.write_text(json.dumps([{"name": "now", "description": "Tell the time", "inputSchema": {}}]))
    gone = ("PROXY", "HF_")
    kept = {key: value for key, value in os.environ.items() if not any(part in key.upper() for part in gone)}
    found = subprocess.run(
        [
            sys.executable,
            "-c",
            "from nexus_lab.cli import main; main()",
            *("route", str(tools), "What time is it?", "--embedder", "hf:some-owner/some-embedder"),
        ],
        env={**kept, **asked, "HF_HOME": str(tmp_path), "COLUMNS": "300"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 2
    assert found.stdout == ""
    problem, next_step = found.stderr.splitlines()
    assert problem.startswith("× hf:some-owner/some-embedder cannot be fetched: ")
    assert problem.endswith(", and it was not fetched before")
    assert next_step == "  next: check the name; a model from the hub needs the network the first time"
