"""Weights as they are kept: int8 rows, a card, a checksum."""

from __future__ import annotations

import json
from importlib.resources import files
from typing import TYPE_CHECKING

import numpy as np
import pytest

from nexus_lab.routing import weights
from nexus_lab.routing.weights import WeightsError, fill, pack, read_weights, unpack, write_weights

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def arrays() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    matrix = rng.standard_normal((6, 40)).astype(np.float32) * np.logspace(-6, 2, 6)[:, None]
    return {
        "layer.weight": matrix.astype(np.float32),
        "layer.bias": rng.standard_normal(6).astype(np.float32),
    }


def test_packing_costs_at_most_half_a_level_of_each_row(arrays: dict[str, np.ndarray]):
    packed = pack(arrays)
    assert packed["layer.weight"].dtype == np.int8
    assert packed["layer.bias"].dtype == np.float16
    whole = unpack(packed)
    matrix = arrays["layer.weight"]
    step = np.abs(matrix).max(axis=1, keepdims=True) / 127
    assert np.all(np.abs(whole["layer.weight"] - matrix) <= step * 0.5001)
    np.testing.assert_allclose(whole["layer.bias"], arrays["layer.bias"], rtol=1e-3)


def test_a_row_of_zeros_stays_one():
    whole = unpack(pack({"w": np.zeros((2, 3), np.float32)}))
    assert not whole["w"].any()


def test_what_was_written_is_read_with_its_card(tmp_path: Path, arrays: dict[str, np.ndarray]):
    path = write_weights(tmp_path, "some", arrays, {"command": "train"})
    assert weights.read_card(tmp_path, "some")["command"] == "train"
    np.testing.assert_array_equal(
        read_weights(tmp_path, "some")["layer.weight"], unpack(pack(arrays))["layer.weight"]
    )
    assert path.stat().st_size == weights.read_card(tmp_path, "some")["bytes"]


def test_damaged_or_missing_weights_are_refused(tmp_path: Path, arrays: dict[str, np.ndarray]):
    with pytest.raises(WeightsError, match="cannot be used"):
        read_weights(tmp_path, "some")
    path = write_weights(tmp_path, "some", arrays, {})
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(WeightsError, match="SHA-256"):
        read_weights(tmp_path, "some")
    (tmp_path / "some.json").write_text("{}")
    with pytest.raises(WeightsError, match="no SHA-256"):
        read_weights(tmp_path, "some")


def test_the_users_own_weights_come_first(nexus_home: Path, arrays: dict[str, np.ndarray]):
    assert weights.weights_folder("reader") == files("nexus_lab.routing").joinpath("weights")
    own = nexus_home / "data" / "gate"
    write_weights(own, "reader", arrays, {})
    assert weights.weights_folder("reader") == own


def test_a_kill_between_weights_and_card_leaves_the_old_ones_in_use(
    nexus_home: Path, arrays: dict[str, np.ndarray], monkeypatch: pytest.MonkeyPatch
):
    own = nexus_home / "data" / "gate"
    newer = {name: values + 1 for name, values in arrays.items()}
    write = weights.atomic_write

    def killed_before_the_card(path: Path, data: bytes) -> None:
        if path.suffix == ".json":
            raise KeyboardInterrupt
        write(path, data)

    with monkeypatch.context() as killed:
        killed.setattr(weights, "atomic_write", killed_before_the_card)
        with pytest.raises(KeyboardInterrupt):
            write_weights(own, "reader", arrays, {})
    assert weights.weights_folder("reader") == files("nexus_lab.routing").joinpath("weights")
    write_weights(own, "reader", arrays, {})
    with monkeypatch.context() as killed:
        killed.setattr(weights, "atomic_write", killed_before_the_card)
        with pytest.raises(KeyboardInterrupt):
            write_weights(own, "reader", newer, {})
    kept = read_weights(weights.weights_folder("reader"), "reader")
    np.testing.assert_array_equal(kept["layer.weight"], unpack(pack(arrays))["layer.weight"])
    path = write_weights(own, "reader", arrays, {"command": "again"})
    assert {file.name for file in own.iterdir()} == {"reader.json", path.name}


def test_weights_of_another_model_do_not_fit():
    import torch

    module = torch.nn.Linear(3, 2)
    bias = np.zeros(2, np.float32)
    fill(module, {"weight": np.ones((2, 3), np.float32), "bias": bias}, name="some")
    assert float(module.weight.detach().sum()) == 6
    with pytest.raises(WeightsError, match="do not fit the bundled model: bias"):
        fill(module, {"weight": np.ones((2, 3), np.float32)}, name="some")
    with pytest.raises(WeightsError, match="do not fit"):
        fill(module, {"weight": np.ones((3, 3), np.float32)}, name="some")
    with pytest.raises(WeightsError, match="do not fit"):
        fill(module, {"other": np.ones(2, np.float32)}, name="some")


@pytest.mark.parametrize(
    "arrays",
    [
        {"w": np.full((2, 3), np.nan, np.float32)},
        {"w": np.ones((2, 3), np.int8), "w.scale": np.full(2, np.inf, np.float32)},
        {"w": np.ones((2, 3), np.int8), "w.scale": np.ones(7, np.float32)},
        {"w": np.ones((2, 3), np.int8), "w.scale": np.array(1.0, np.float32)},
    ],
)
def test_weights_that_are_no_numbers_are_refused(tmp_path: Path, arrays: dict[str, np.ndarray]):
    from safetensors.numpy import save

    weights.write_with_card(tmp_path, "some", ".safetensors", save(arrays), {})
    with pytest.raises(WeightsError, match="cannot be used"):
        read_weights(tmp_path, "some")


@pytest.mark.parametrize("card", ["[" * 100_000, "{", "[]", '{"sha256": 5}', "\x00"])
def test_a_card_that_is_none_is_refused(tmp_path: Path, card: str):
    (tmp_path / "some.json").write_text(card, encoding="utf-8")
    with pytest.raises(WeightsError, match="cannot be used"):
        read_weights(tmp_path, "some")


@pytest.mark.parametrize("name", ["embedder", "reader"])
def test_the_package_says_how_its_weights_were_made(name: str):
    folder = files("nexus_lab.routing").joinpath("weights")
    card = json.loads(folder.joinpath(f"{name}.json").read_text())
    assert card["command"].startswith("nexus-lab train-gate")
    assert set(card["servers_kept_apart"]) == {"atlassian", "mongodb", "hubspot"}
    assert sum(part["requests"] for part in card["learned_from"]) > 4000
    assert all(np.isfinite(values).all() for values in read_weights(folder, name).values())
