"""``--adapter`` as a user meets it: blocks made without it are foreign, and what does not fit is told."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from tiny_adapters import write_lora
from tiny_models import write_kind
from typer.testing import CliRunner

from nexus_lab.cli._app import app
from nexus_lab.engine import AdapterMismatch
from nexus_lab.errors import NexusError

if TYPE_CHECKING:
    from pathlib import Path

TOOLS = {"tools": [{"name": "see", "description": "See it", "inputSchema": {"type": "object"}}]}


@pytest.fixture
def shell(tmp_path: Path, nexus_home: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Files of a registry, a model and its adapter, with a home of their own."""
    assert not nexus_home.exists()
    monkeypatch.setenv("COLUMNS", "240")
    (tmp_path / "tools.json").write_text(json.dumps(TOOLS))
    return {
        "tools": str(tmp_path / "tools.json"),
        "model": str(write_kind(tmp_path / "model.gguf", "plain")),
        "adapter": str(write_lora(tmp_path / "small.gguf")),
        "other": str(write_lora(tmp_path / "other.gguf", architecture="qwen2")),
    }


def run(*words: str) -> str:
    done = CliRunner().invoke(app, [*words])
    if done.exception is not None:
        raise done.exception
    return done.output


def test_blocks_built_with_an_adapter_are_foreign_without_it(shell: dict[str, str]):
    model = ("--model", shell["model"])
    adapter = ("--adapter", shell["adapter"])
    built = run("blocks", "build", shell["tools"], *model, *adapter, "--context", "none", "--threads", "1")
    assert built.strip().startswith("1 compiled, 0 there before")
    assert "foreign" not in run("blocks", "check", *model, *adapter)
    assert "fingerprint" in run("blocks", "check", *model)
    again = run("blocks", "build", shell["tools"], *model, "--context", "none", "--threads", "1")
    assert again.strip().startswith("1 compiled, 0 there before")


def test_an_adapter_of_another_model_is_told_before_anything_is_done(shell: dict[str, str]):
    with pytest.raises(AdapterMismatch, match="qwen2") as caught:
        run("blocks", "build", shell["tools"], "--model", shell["model"], "--adapter", shell["other"])
    assert caught.value.next_step


def test_an_endpoint_has_its_own(shell: dict[str, str]):
    words = ["--endpoint", "http://localhost:1/v1", "--endpoint-model", "m", "--adapter", shell["adapter"]]
    with pytest.raises(NexusError, match="takes no --adapter"):
        run("run", "Hello", "--command", "true", *words)
