"""What this context can do, found out by doing it once when it is loaded."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

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

__all__ = ["Probed", "probe", "static_declines"]

_PROBE_POSITION = 37
# Far enough that slow pairs have turned, so that their factors and YaRN's ramp are seen, too.
_FAR_POSITION = 4001
# Keys are float16, with 11 significant bits; a wrong rotation is off by the size of the key itself.
_ROTATION_TOLERANCE = 5e-3
_HIDDEN_TOLERANCE = 2e-2


class Probed(NamedTuple):
    """What was found.

    Attributes
    ----------
    rope
        The rotation, layer by layer where layers differ; as the file has it when it was not found.
    """

    declines: dict[str, Decline]
    rope: RopeParameters | None


def static_declines(
    *,
    recurrent: bool,
    hybrid: bool,
    rope_type: int,
    kv_type: KvType,
    can_shift: bool,
    window: int = 0,
    chunked: bool = False,
    latent: bool = False,
) -> dict[str, Decline]:
    """Declines that the model's kind alone decides.

    Parameters
    ----------
    rope_type
        llama.cpp's number: -1 none, 0 norm, 2 neox, others several positions per token.
    window
        Positions that a sliding layer sees; 0 where none slides.
    chunked
        Some layers see the positions of their own chunk only.
    latent
        Keys and values are one latent vector per token (MLA).
    """
    reasons = {
        "hybrid": (recurrent or hybrid, "the model keeps a recurrent state, which cannot be cut at a token"),
        "m_rope": (rope_type not in (-1, 0, 2), "the model has several positions per token (M-RoPE)"),
        "no_rope": (rope_type == -1, "the model's keys carry no rotation that could be moved"),
        "quantized_k": (
            kv_type is KvType.Q8_0,
            "the cache keeps keys quantized, and mixed where a head is of whole 64s: they cannot be rotated",
        ),
        "latent_kv": (
            latent,
            "the cache keeps one latent vector per token in place of keys and values (MLA)",
        ),
        "chunked": (chunked, "some layers see one chunk of positions, which a moved block would not fit"),
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
    if window:
        reason = "the masks of full and of sliding layers bear one name, and the window goes by positions"
        declines["input_patches"] = Decline("sliding_window", reason, "step by step prefill")
        declines["attention_capture"] = Decline("sliding_window", reason, "no attention rows")
    return declines


def probe(
    runtime: Runtime,
    tokens: Sequence[int],
    ropes: Sequence[RopeParameters | None],
    *,
    flash_attention: bool,
    n_layer: int,
    n_ctx_train: int,
) -> Probed:
    """Try splice, input patches and attention capture on one or two tokens, and say what does not hold.

    A sequence of one token attends to itself alone, whatever its position; so between two positions its keys
    differ by the rotation and nothing else, in every layer. That checks base, factors, pairing and layers
    without rotation against the model itself.

    Parameters
    ----------
    ropes
        Rotations that a layer may have, the file's own first; empty when it is not known.
    """
    declines: dict[str, Decline] = {}
    there: SequenceState | None = None
    rope = ropes[0] if ropes else None
    if rope is None:
        declines["splice"] = Decline("no_rope", "the model's rotation is not known")
    else:
        places = (0, _PROBE_POSITION, max(_PROBE_POSITION + 1, min(_FAR_POSITION, n_ctx_train - 1)))
        try:
            here, there, far = (_one_token_state(runtime, [tokens[0]], place, None) for place in places)
        except StateMismatch as error:
            declines["splice"] = Decline("state_layout", error.problem)
        else:
            runtime.template = there.layout
            try:
                rope = _fit(here, (there, far), ropes)
            except StateMismatch as error:
                declines["splice"] = Decline("rope_mismatch", error.problem)
            else:
                declines.update(_block_declines(there))
    declines.update(_probe_bridge(runtime, tokens, there, flash_attention=flash_attention, n_layer=n_layer))
    return Probed(declines, rope)


def _block_declines(state: SequenceState) -> dict[str, Decline]:
    """Decline what block files, whose rows are of one width, do not hold."""
    if len({(layer.n_embd_k, layer.n_embd_v) for layer in state.layout.layers}) == 1:
        return {}
    return {
        "splice": Decline("uneven_rows", "the layers' rows have different widths, and a block's have one")
    }


def _one_token_state(
    runtime: Runtime, tokens: Sequence[int], start: int, plan: PatchPlan | None
) -> SequenceState:
    # Without a plan the bridge stays out of it: a broken one must not take the splice with it.
    armed = nullcontext() if plan is None else runtime.arm(plan=plan, report=PatchReport(), capture=None)
    with runtime.scratch() as seq, armed:
        runtime.prefill(seq, np.asarray(tokens, np.int32), start=start, logits="none")
        return runtime.save(seq)


def _fit(
    here: SequenceState, there: Sequence[SequenceState], ropes: Sequence[RopeParameters | None]
) -> RopeParameters | None:
    """Find each layer's rotation: the first that moves a token's keys to what the model computed there."""
    errors = np.array([_rotation_errors(here, there, rope) for rope in ropes])
    fits = errors <= _ROTATION_TOLERANCE
    if not fits.any(axis=0).all():
        layer = int(np.argmin(fits.any(axis=0)))
        off = errors[0, layer]
        told = f"off by {off:.0%}" if np.isfinite(off) else "which is no rotation"
        problem = f"the keys of layer {layer} do not turn as the model's metadata says ({told})"
        raise StateMismatch(problem, next_step="prefill the tokens instead")
    chosen = np.argmax(fits, axis=0)
    if not chosen.any() or ropes[0] is None:
        return ropes[0]
    return replace(ropes[0], by_layer=tuple(ropes[index] for index in chosen))


def _rotation_errors(
    here: SequenceState, there: Sequence[SequenceState], rope: RopeParameters | None
) -> list[float]:
    """For each layer the largest error of moving the keys from `here` to each of `there`.

    Infinite where the file's numbers are those of no rotation.
    """
    worst = np.zeros(here.n_layer)
    for target in there:
        try:
            moved = here if rope is None else here.moved(target.positions, rope)
        except ValueError:
            return [np.inf] * here.n_layer
        found = [_relative_error(moved, target, layer, row=0) for layer in range(here.n_layer)]
        worst = np.maximum(worst, found)
    return [float(error) for error in worst]


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
        except (PatchFailed, StateMismatch, ValueError) as error:
            problem = str(error) if isinstance(error, ValueError) else error.problem
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
