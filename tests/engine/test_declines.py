from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from nexus_lab.engine import Engine, KvType, PatchFailed, PatchPlan, StateMismatch, native
from nexus_lab.engine.probe import static_declines
from nexus_lab.errors import Cancelled

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def test_metadata_that_lies_about_the_rotation_is_found_out(
    tiny_path: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
):
    from dataclasses import replace

    from nexus_lab.engine import loader

    honest = loader.rope_from_gguf
    lies = ({"base": 9000.0}, {"pairing": "neox"}, {"n_rot": 14}, {"scale": 0.97})
    no_rotations = ({"base": 1.0}, {"factors": (1.0,)}, {"factors": (0.0,) * 8}, {"factors": (np.nan,) * 8})
    for change in (*lies, *no_rotations):

        def lying(*arguments: Any, _change: dict[str, Any] = change, **options: Any) -> Any:
            return replace(honest(*arguments, **options), **_change)

        monkeypatch.setattr(loader, "rope_from_gguf", lying)
        with Engine.load(tiny_path("plain"), n_ctx=256, threads=1) as engine:
            assert engine.declines["splice"].code == "rope_mismatch", change
            assert "input_patches" not in engine.declines


def test_states_that_cannot_be_read_are_refused_and_the_model_runs(
    tiny_path: Callable[[str], Path], tiny_tokens: np.ndarray
):
    with Engine.load(tiny_path("m_rope"), n_ctx=256, threads=1) as engine:
        assert set(engine.declines) == {"splice", "shift", "input_patches"}
        seq = engine.acquire_sequence()
        logits = engine.prefill(seq, tiny_tokens[:70])
        assert len(engine.generate(seq, logits, max_tokens=5).tokens) <= 5
        engine.release_sequence(seq)
        with pytest.raises(StateMismatch):
            engine.save_state(_filled(engine, tiny_tokens))


def test_each_layer_has_its_own_rotation(tiny_path: Callable[[str], Path]):
    """The two bases of sliding and full layers, and layers without one, are found by trying."""
    with Engine.load(tiny_path("sliding_two_bases"), n_ctx=256, threads=1) as engine:
        found = [engine.info.rope.of_layer(layer) for layer in range(engine.info.n_layer)]
        assert [(rope.base, rope.scale) for rope in found] == [(1e6, 0.125)] * 2 + [(1e4, 1.0)] * 3
    with Engine.load(tiny_path("some_layers_unrotated"), n_ctx=256, threads=1) as engine:
        assert [rope is None for rope in engine.info.rope.by_layer] == [False, False, False, True, False]
    with Engine.load(tiny_path("plain"), n_ctx=256, threads=1) as engine:
        assert engine.info.rope.by_layer == ()


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({}, None),
        ({"recurrent": True}, "hybrid"),
        ({"hybrid": True}, "hybrid"),
        ({"rope_type": 8}, "m_rope"),
        ({"rope_type": -1}, "no_rope"),
        ({"kv_type": KvType.Q8_0}, "quantized_k"),
        ({"kv_type": KvType.F32}, "kv_type"),
        ({"can_shift": False}, "cannot_shift"),
        ({"latent": True}, "latent_kv"),
        ({"chunked": True}, "chunked"),
    ],
)
def test_what_the_kind_of_model_decides(change: dict[str, Any], code: str | None):
    facts = {"recurrent": False, "hybrid": False, "rope_type": 0, "kv_type": KvType.F16, "can_shift": True}
    declines = static_declines(**{**facts, **change})
    assert (declines["splice"].code if declines else None) == code
    assert ("shift" in declines) == (code == "cannot_shift")


def _filled(engine: Engine, tokens: np.ndarray) -> int:
    seq = engine.acquire_sequence()
    engine.prefill(seq, tokens[:5], logits="none")
    return seq


def test_quantized_keys_decline_the_splice_only(tiny_path: Callable[[str], Path], tiny_tokens: np.ndarray):
    # Quantized values need flash attention, and rows of whole blocks.
    with Engine.load(tiny_path("wide"), n_ctx=256, threads=1, kv_type="q8_0", flash_attention=True) as engine:
        assert engine.declines["splice"].code == "quantized_k"
        seq = _filled(engine, tiny_tokens)
        with pytest.raises(StateMismatch):
            engine.save_state(seq)
        assert engine.prefill(seq, tiny_tokens[5:20]).shape == (engine.info.n_vocab,)


@pytest.mark.parametrize("change", ["another answer", "no answer"])
def test_another_tensor_layout_declines_patches_and_leaves_the_splice(
    change: str, tiny_path: Callable[[str], Path], tiny_tokens: np.ndarray, monkeypatch: pytest.MonkeyPatch
):
    """A getter that answers for another member stands for a library whose struct has changed."""
    addresses = native.function_addresses()
    if change == "another answer":
        addresses["ggml_nelements"] = addresses["ggml_nbytes"]
    else:
        del addresses["ggml_nelements"]
    monkeypatch.setattr("nexus_lab.engine.loader.function_addresses", lambda: addresses)
    with Engine.load(tiny_path("plain"), n_ctx=256, threads=1) as engine:
        assert set(engine.declines) == {"input_patches", "attention_capture"}
        assert {decline.code for decline in engine.declines.values()} == {"tensor_layout"}
        seq, other = engine.acquire_sequence(), engine.acquire_sequence()
        engine.prefill(seq, tiny_tokens[:30])
        state = engine.save_state(seq)
        engine.restore_state(state.moved(state.positions + 9, engine.info.rope), other)
        assert engine.positions(other).tolist() == list(range(9, 39))
        with pytest.raises(PatchFailed, match="layout"), engine.input_patches(PatchPlan(n_tokens=1)):
            pass
        with engine.turn():
            engine.cancel()
            with pytest.raises(Cancelled):
                engine.prefill(seq, tiny_tokens[:3])


def test_memory_that_is_not_the_hosts_declines_patches_only(
    tiny_path: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
):
    """ggml's answer for a device buffer is `false`; a function that gives it stands in for the device."""
    import ctypes

    never = ctypes.CFUNCTYPE(ctypes.c_bool, ctypes.c_void_p)(_HostAtLoad().answer)
    addresses = native.function_addresses()
    addresses["ggml_backend_buffer_is_host"] = ctypes.cast(never, ctypes.c_void_p).value
    monkeypatch.setattr("nexus_lab.engine.loader.function_addresses", lambda: addresses)
    with Engine.load(tiny_path("plain"), n_ctx=256, threads=1) as engine:
        assert engine.declines["input_patches"].code == "graph_inputs"
        assert "host memory" in engine.declines["input_patches"].reason
        assert "splice" not in engine.declines


class _HostAtLoad:
    """Says yes to the probe's own buffer, and no to those of the graph."""

    def __init__(self) -> None:
        self.asked = 0

    def answer(self, _buffer: int | None) -> bool:
        self.asked += 1
        return self.asked == 1
