"""Splices measured and calibrated with an adapter: other keys, other blocks, another fingerprint."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from tiny_adapters import pairs, write_lora
from tiny_models import Kind, write_model
from typer.testing import CliRunner

from nexus_lab.agent import SYSTEM_PROMPT
from nexus_lab.agent.blocks import block_recipes
from nexus_lab.bench import splice_sweep
from nexus_lab.bench.base import ResultsError
from nexus_lab.bench.calibration import calibrate_agent
from nexus_lab.bench.splice_grid import EngineSettings
from nexus_lab.bench.splice_tools import SpliceCase
from nexus_lab.bench.sweep import JOURNAL
from nexus_lab.bench.worker import worker_engine
from nexus_lab.cli._app import app
from nexus_lab.engine import AdapterMismatch, Engine
from nexus_lab.registry import Registry, ToolSpec
from nexus_lab.splice import load_calibration, save_calibration

if TYPE_CHECKING:
    from pathlib import Path

TOOL = ToolSpec(
    "see",
    "See what is there, and tell of it.",
    {"type": "object", "properties": {"what": {"type": "string"}}},
)
CASE = SpliceCase(TOOL, "See the cat", '{"name": "see", "arguments": {"what": "the cat"}}')
LEAST = {
    "registry": Registry.of([TOOL], name="one"),
    "depths": (16,),
    "prefixes": 1,
    "contexts": ("none",),
    "strategies": ("none",),
    "decisions": (),
    "repeats": 1,
}
CALIBRATED = {
    "cases": [CASE],
    "context": "none",
    "depths": (256,),
    "budgets": (0.0,),
    "prefixes": 2,
    "quantile": 0.5,
}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A small model with room, two adapters for it, and one of another architecture."""
    folder = tmp_path_factory.mktemp("sweeps")
    return {
        "model": write_model(folder / "model.gguf", "llama", Kind({"context_length": 4096})),
        "adapter": write_lora(folder / "small.gguf"),
        "second": write_lora(folder / "second.gguf", pairs(seed=6)),
        "other": write_lora(folder / "other.gguf", architecture="qwen2"),
    }


def _sweep(files: dict[str, Path], work: Path, adapter: str | None = None):
    with ThreadPoolExecutor(1) as executor:
        given = None if adapter is None else files[adapter]
        return splice_sweep(files["model"], adapter=given, executor=executor, work=work, **LEAST)


def test_a_sweep_with_an_adapter_is_another_and_names_it(files: dict[str, Path], tmp_path: Path):
    plain, adapted = _sweep(files, tmp_path), _sweep(files, tmp_path, "adapter")
    assert plain.settings["adapter"] is None
    assert adapted.settings["adapter"]["name"] == "small"
    assert adapted.settings["model_sha256"] == plain.settings["model_sha256"]
    (before,), (after,) = plain.cells, adapted.cells
    assert before["dkl_mean"] != after["dkl_mean"]
    lines = (tmp_path / JOURNAL).read_text().splitlines()
    # Neither run took the other's tasks for its own; and a second adapter's are others again.
    assert len({json.loads(line)["key"] for line in lines}) == len(lines)
    assert _sweep(files, tmp_path, "second").cells[0]["dkl_mean"] != after["dkl_mean"]
    assert _sweep(files, tmp_path, "adapter").cells == adapted.cells


@pytest.mark.usefixtures("nexus_home")
def test_a_calibration_is_of_the_model_with_its_adapter(files: dict[str, Path], tmp_path: Path):
    def calibrated(name: str | None):
        given = None if name is None else files[name]
        with ThreadPoolExecutor(1) as executor:
            return calibrate_agent(
                files["model"], adapter=given, executor=executor, work=tmp_path, **CALIBRATED
            )

    plain, adapted = calibrated(None), calibrated("adapter")
    assert plain.settings["adapter"] is None
    assert adapted.settings["adapter"]["name"] == "small"
    assert plain.calibration.cells != adapted.calibration.cells
    save_calibration(adapted.calibration)
    found = {}
    for name in (None, "adapter", "second"):
        given = None if name is None else files[name]
        with Engine.load(files["model"], n_ctx=512, threads=1, adapter=given) as engine:
            (recipe,) = block_recipes(engine, [TOOL], system=SYSTEM_PROMPT, context="none")
            found[name] = load_calibration(
                engine.info.fingerprint, recipe.context.hash.hex(), flash_attention=False
            )
            if name == "adapter":
                assert adapted.calibration.fingerprint == engine.info.fingerprint
    assert found == {None: None, "adapter": adapted.calibration, "second": None}


def test_a_worker_that_has_another_adapter_says_so(files: dict[str, Path]):
    with Engine.load(files["model"], n_ctx=512, threads=1, adapter=files["adapter"]) as engine:
        settings = EngineSettings.of(engine, files["model"], n_ctx=256)
    assert (settings.adapter, len(settings.adapter_sha256)) == (str(files["adapter"]), 64)
    assert worker_engine(settings).info.adapter.sha256 == settings.adapter_sha256
    for wrong in (
        EngineSettings(
            model=settings.model,
            sha256=settings.sha256,
            n_ctx=256,
            adapter=str(files["second"]),
            adapter_sha256=settings.adapter_sha256,
        ),
        EngineSettings(
            model=settings.model, sha256=settings.sha256, n_ctx=256, adapter_sha256=settings.adapter_sha256
        ),
    ):
        with pytest.raises(ResultsError, match="is another adapter here"):
            worker_engine(wrong)


@pytest.mark.parametrize("command", ["splice", "calibrate"])
def test_the_commands_load_the_adapter_and_refuse_one_of_another_model(
    files: dict[str, Path], command: str, nexus_home: Path
):
    words = ["eval", command, "--model", str(files["model"]), "--adapter", str(files["other"])]
    done = CliRunner().invoke(app, words)
    assert isinstance(done.exception, AdapterMismatch)
    assert not (nexus_home / "calibration").exists()


def test_the_command_writes_which_adapter_was_measured(files: dict[str, Path], tmp_path: Path):
    tools = tmp_path / "tools.json"
    shown = {"name": TOOL.name, "description": TOOL.description, "inputSchema": dict(TOOL.input_schema)}
    tools.write_text(json.dumps({"tools": [shown]}))
    words = {
        "--model": files["model"],
        "--adapter": files["adapter"],
        "--registry": tools,
        "--depths": 16,
        "--strategies": "none",
        "--contexts": "none",
        "--prefixes": 1,
        "--decisions": "no",
        "--workers": 1,
        "--work": tmp_path / "work",
        "--json": tmp_path / "out.json",
    }
    done = CliRunner().invoke(
        app, ["eval", "splice", *(str(word) for pair in words.items() for word in pair)]
    )
    assert done.exception is None, done.output
    assert json.loads((tmp_path / "out.json").read_text())["settings"]["adapter"]["name"] == "small"
