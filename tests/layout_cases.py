"""Cache layouts that the splice tests go through, and the table that is made of the same list.

``python tests/layout_cases.py`` writes the table; a test compares it with the committed one.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from tiny_models import KINDS, write_kind

import nexus_lab
from nexus_lab.engine import Engine, EngineError

if TYPE_CHECKING:
    from collections.abc import Iterable

TABLE = Path(nexus_lab.__file__).parent / "splice" / "LAYOUTS.md"
FIRST_LAYER_BOUND = 1e-3
"""Largest relative error of moved keys in the model's first layer, against a prefill behind the context."""
ALL_LAYERS_BOUND = 5e-3
"""The same in every layer, against the block computed at that position with nothing before it."""


@dataclass(frozen=True)
class Case:
    """A model in a cache layout.

    Attributes
    ----------
    kind
        Name in `tiny_models.KINDS`.
    what
        What the table calls it.
    flash
        Flash attention on, which lays V out in rows; off, V is transposed.
    declined
        Code of the expected decline of a splice, or name of the error that loading ends with.
    """

    kind: str
    what: str
    flash: bool = False
    kv_type: str = "f16"
    declined: str | None = None

    @property
    def id(self) -> str:
        return f"{self.kind}-{self.kv_type}-{'rows' if self.flash else 'transposed'}"

    @property
    def architecture(self) -> str:
        return KINDS[self.kind][0]

    def load(self, folder: Path) -> Engine:
        """Write the model into `folder` and load it."""
        path = folder / f"{self.kind}.gguf"
        if not path.exists():
            write_kind(path, self.kind)
        return Engine.load(
            path, n_ctx=512, n_ubatch=64, threads=1, flash_attention=self.flash, kv_type=self.kv_type
        )


_WORK = {
    "plain": "NORM pairing",
    "neox": "NEOX pairing",
    "partial_norm": "NORM pairing, half of a head rotates",
    "partial_neox": "NEOX pairing, half of a head rotates",
    "linear": "linear scaling",
    "yarn": "YaRN",
    "factors": "frequency factors (Llama 3)",
    "long_rope_short": "LongRoPE, n_ctx within the original context",
    "long_rope_long": "LongRoPE, n_ctx beyond the original context",
    "some_layers_unrotated": "every fourth layer without rotation",
    "sliding": "soft-capped attention; sliding and full layers by turns",
    "sliding_two_bases": "sliding layers with a rope base and scale of their own",
    "sliding_full_unrotated": "sliding layers, full ones without rotation",
    "sliding_all": "every layer slides",
    "window_ignored": "a window in the file that llama.cpp leaves out",
}
_DECLINED = {
    "uneven_heads": ("KV heads differ from layer to layer", "uneven_rows"),
    "m_rope": ("M-RoPE", "m_rope"),
    "learned_positions": ("learned positions, no rotation", "no_rope"),
    "latent": ("MLA", "latent_kv"),
    "latent_expanded": ("MLA expanded into heads (old files)", "rope_mismatch"),
    "recurrent": ("recurrent", "hybrid"),
    "hybrid": ("recurrent and attention layers", "hybrid"),
}
_REFUSED = {
    "encoder_decoder": "encoder and decoder",
    "diffusion": "diffusion",
}
CASES: tuple[Case, ...] = (
    *(Case(kind, what, flash) for kind, what in _WORK.items() for flash in (False, True)),
    *(
        Case(kind, what, flash, declined=code)
        for kind, (what, code) in _DECLINED.items()
        for flash in (False, True)
    ),
    # Rows of whole blocks of 32; a head of a whole 64 is mixed (Hadamard) besides.
    Case("wide", "quantized KV", flash=True, kv_type="q8_0", declined="quantized_k"),
    Case("whole_64s", "quantized and mixed KV", flash=True, kv_type="q8_0", declined="quantized_k"),
    Case("wide", "quantized V without flash attention", kv_type="q8_0", declined="ModelLoadFailed"),
    Case("plain", "float32 KV", kv_type="f32", declined="kv_type"),
    *(Case(kind, what, declined="UnsupportedModel") for kind, what in _REFUSED.items()),
)
SPLICED = tuple(case for case in CASES if case.declined is None)
DECLINED = tuple(case for case in CASES if case.declined is not None and case.declined[0].islower())
REFUSED = tuple(case for case in CASES if case.declined is not None and case.declined[0].isupper())

_HEAD = f"""# Cache layouts

Made by `python tests/layout_cases.py` from the cases that the tests go through, each on a small random \
model of its architecture; a test compares this file with what they find. `tests/splice/test_layouts.py` \
holds each row marked "yes" to the following, inside and beyond the sliding window where there is one: a \
full repair and an anchored splice give the prefill's rows and logits bit for bit; a block moved to another \
position has keys within the stated error of those computed there (relative, Euclidean); a saved state comes \
back bit for bit and continues as before. Everything else is declined with the reason given: the block is \
prefilled as text, and the answer is as right as without blocks.

The error stands for the model's first layer against a prefill behind the context (at most \
{FIRST_LAYER_BOUND:g}), and for every layer against the block computed there with nothing before it (at most \
{ALL_LAYERS_BOUND:g}). What the deeper layers lose because the block has not seen its context is the drift \
that `nexus-lab eval splice` measures on a real model.

Contexts are made with the full-size sliding-window cache (`swa_full`), so that a sequence can be cut back \
beyond the window; the smaller one is not offered.

V stands transposed in the cache without flash attention, in rows with it. With input patches several \
stretches are computed in one pass, without them step by step; attention rows are what a capture of the \
attention reads. A word `in this type` is the code of the decline, as sessions record it.

| architecture | layout | V | KV | splice | moved keys, error | input patches | attention rows | why not |
| --- | --- | --- | --- | --- | --- | --- | --- | --- |
"""


def table() -> str:
    """Load every case and return the table, as markdown."""
    with TemporaryDirectory() as folder:
        rows = [_row(case, Path(folder)) for case in CASES]
    return _HEAD + "".join(f"| {' | '.join(row)} |\n" for row in rows)


def _row(case: Case, folder: Path) -> Iterable[str]:
    start = (case.architecture, case.what, "rows" if case.flash else "transposed", case.kv_type)
    try:
        with case.load(folder) as engine:
            return (*start, *_findings(engine))
    except EngineError as error:
        words = error.problem.replace(f"{case.kind}.gguf ", "").replace(str(folder), "")
        return (*start, "not loaded", "", "", "", words)


def _findings(engine: Engine) -> tuple[str, ...]:
    splice = engine.declines.get("splice")
    error = f"{FIRST_LAYER_BOUND:g} / {ALL_LAYERS_BOUND:g}"
    others = [engine.declines.get(name) for name in ("input_patches", "attention_capture")]
    # How far off keys are is a number of the machine's.
    reason = "" if splice is None else splice.reason.partition(" (off by")[0]
    return (
        "yes" if splice is None else f"declined: `{splice.code}`",
        error if splice is None else "",
        *("yes" if decline is None else f"`{decline.code}`" for decline in others),
        reason,
    )


def main(*_arguments: Any) -> None:
    """Write the table."""
    TABLE.write_text(table(), encoding="utf-8")


if __name__ == "__main__":
    main()
