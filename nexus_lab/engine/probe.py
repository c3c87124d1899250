"""What this context can do, found out by doing it once when it is loaded."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING

import numpy as np

from nexus_lab.engine.base import KvType
from nexus_lab.engine.errors import PatchFailed, StateMismatch
from nexus_lab.engine.patches import AttentionCapture, HiddenBlock, PatchPlan, PatchReport
from nexus_lab.errors import Decline

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nexus_lab.engine.rope import RopeParameters
    from nexus_lab.engine.runtime import Runtime
    from nexus_lab.engine.state import SequenceState

__all__ = ["probe", "static_declines"]

_PROBE_POSITION = 37
# Keys are float16, with 11 significant bits; a wrong rotation is off by the size of the key itself.
_ROTATION_TOLERANCE = 5e-3
_HIDDEN_TOLERANCE = 2e-2


def static_declines(
    *, recurrent: bool, hybrid: bool, rope_type: int, kv_type: KvType, can_shift: bool
) -> dict[str, Decline]:
    """Declines that the model's kind alone decides.

    Parameters
    ----------
    rope_type
        llama.cpp's number: -1 none, 0 norm, 2 neox, others several positions per token.
    """
    reasons = {
        "hybrid": (recurrent or hybrid, "the model keeps a recurrent state, which cannot be cut at a token"),
        "m_rope": (rope_type not in (-1, 0, 2), "the model has several positions per token (M-RoPE)"),
        "no_rope": (rope_type == -1, "the model's keys carry no rotation that could be moved"),
        "quantized_k": (
            kv_type is KvType.Q8_0,
            "the cache keeps keys quantized and mixed (Hadamard), so that they cannot be rotated",
        ),
        "kv_type": (kv_type is KvType.F32, "only float16 keys and values are read back"),
        "cannot_shift": (not can_shift, "llama.cpp answers that positions of this cache cannot change"),
    }
    declines = {}
    if not can_shift:
        declines["shift"] = Decline("cannot_shift", reasons["cannot_shift"][1], "a new prefill")
    for code, (applies, reason) in reasons.items():
        if applies:
            declines["splice"] = Decline(code, reason)
            break
    return declines


def probe(
    runtime: Runtime,
    tokens: Sequence[int],
    rope: RopeParameters | None,
    *,
    flash_attention: bool,
    n_layer: int,
) -> dict[str, Decline]:
    """Try splice, input patches and attention capture on one or two tokens, and say what does not hold.

    A sequence of one token attends to itself alone, whatever its position; so between two positions its keys
    differ by the rotation and nothing else, in every layer. That checks base, factors, pairing and layers
    without rotation against the model itself.
    """
    declines: dict[str, Decline] = {}
    there: SequenceState | None = None
    if rope is None:
        declines["splice"] = Decline("no_rope", "the model's rotation is not known")
    else:
        try:
            here = _one_token_state(runtime, [tokens[0]], 0, None)
            there = _one_token_state(runtime, [tokens[0]], _PROBE_POSITION, None)
        except StateMismatch as error:
            declines["splice"] = Decline("state_layout", error.problem)
        else:
            runtime.template = there.layout
            declines.update(_probe_rotation(here, there, rope))
    declines.update(_probe_bridge(runtime, tokens, there, flash_attention=flash_attention, n_layer=n_layer))
    return declines


def _one_token_state(
    runtime: Runtime, tokens: Sequence[int], start: int, plan: PatchPlan | None
) -> SequenceState:
    # Without a plan the bridge stays out of it: a broken one must not take the splice with it.
    armed = nullcontext() if plan is None else runtime.arm(plan=plan, report=PatchReport(), capture=None)
    with runtime.scratch() as seq, armed:
        runtime.prefill(seq, np.asarray(tokens, np.int32), start=start, logits="none")
        return runtime.save(seq)


def _probe_rotation(here: SequenceState, there: SequenceState, rope: RopeParameters) -> dict[str, Decline]:
    """Move the keys of a token to where the model has computed them too, and compare."""
    moved = here.moved(np.array([_PROBE_POSITION], np.int32), rope)
    for layer in range(there.n_layer):
        error = _relative_error(moved, there, layer, row=0)
        if error > _ROTATION_TOLERANCE:
            reason = (
                f"the keys of layer {layer} do not turn as the model's metadata says (off by {error:.0%})"
            )
            return {"splice": Decline("rope_mismatch", reason)}
    return {}


def _relative_error(left: SequenceState, right: SequenceState, layer: int, row: int) -> float:
    """Distance of the left state's `row`, in position order, from the right one's first, over its norm."""
    a = left.key(layer)[left.order()[row]].astype(np.float64)
    b = right.key(layer)[0].astype(np.float64)
    return float(np.linalg.norm(a - b) / max(float(np.linalg.norm(b)), 1e-6))


def _probe_bridge(
    runtime: Runtime,
    tokens: Sequence[int],
    there: SequenceState | None,
    *,
    flash_attention: bool,
    n_layer: int,
) -> dict[str, Decline]:
    declines: dict[str, Decline] = {}
    if runtime.bridge.layout_problem:
        problem = f"this llama.cpp has another tensor layout: {runtime.bridge.layout_problem}"
        return {
            "input_patches": Decline("tensor_layout", problem, "step by step prefill"),
            "attention_capture": Decline("tensor_layout", problem, "no attention rows"),
        }
    if there is None:
        declines["input_patches"] = Decline(
            "unverified",
            "patched inputs can only be checked on a state that can be read",
            "step by step prefill",
        )
    else:
        try:
            _probe_patches(runtime, tokens, there)
        except PatchFailed as error:
            declines["input_patches"] = Decline("graph_inputs", error.problem, "step by step prefill")
    if flash_attention:
        declines["attention_capture"] = Decline(
            "flash_attention",
            "flash attention never forms the attention rows",
            "load without flash attention",
        )
    else:
        try:
            _probe_capture(runtime, tokens, n_layer)
        except (PatchFailed, ValueError) as error:
            problem = error.problem if isinstance(error, PatchFailed) else str(error)
            declines["attention_capture"] = Decline("graph_nodes", problem, "no attention rows")
    return declines


def _probe_patches(runtime: Runtime, tokens: Sequence[int], there: SequenceState) -> None:
    """Check that a token turned and secluded by patches has the keys of the probe position."""
    plan = PatchPlan(
        n_tokens=2,
        positions=np.array([0, _PROBE_POSITION], np.int32),
        hidden=(HiddenBlock(1, 2, 0, 1),),
    )
    patched = _one_token_state(runtime, [tokens[1], tokens[0]], 0, plan)
    for layer in range(there.n_layer):
        error = _relative_error(patched, there, layer, row=1)
        if error > _HIDDEN_TOLERANCE:
            raise PatchFailed(f"a patched input had no effect on layer {layer} (off by {error:.0%})")
    rewritten = _rewritten_state(runtime, tokens)
    for layer in range(there.n_layer):
        error = _relative_error(rewritten, there, layer, row=0)
        if error > _HIDDEN_TOLERANCE:
            raise PatchFailed(f"a row written in place is another on layer {layer} (off by {error:.0%})")


def _rewritten_state(runtime: Runtime, tokens: Sequence[int]) -> SequenceState:
    """Put another token at the probe position, and then compute the probe's token over it."""
    with runtime.scratch() as seq:
        runtime.prefill(seq, np.asarray(tokens[1:2], np.int32), start=_PROBE_POSITION, logits="none")
        runtime.recompute(seq, np.asarray(tokens[:1], np.int32), np.array([_PROBE_POSITION], np.int32))
        return runtime.save(seq)


def _probe_capture(runtime: Runtime, tokens: Sequence[int], n_layer: int) -> None:
    capture = AttentionCapture((n_layer - 1,), None)
    with runtime.scratch() as seq, runtime.arm(plan=None, report=None, capture=capture):
        runtime.prefill(seq, np.asarray(tokens[:2], np.int32), start=0, logits="none")
    rows = capture.rows(n_layer - 1)
    if not np.all(np.isfinite(rows)) or rows[:, 0, 1].any():
        raise PatchFailed("the captured rows are not causal attention")
