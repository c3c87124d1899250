"""Pages and fragments that need neither a kernel, nor a script, nor the network.

A page carries a content policy that allows its own style sheet and nothing else. Every value goes through the
templates' escaping; only fragments, which panels have made the same way, are put in as they are.
"""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from html import escape
from importlib import resources
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from nexus_lab.lab.heat import heat_figure, heat_range
from nexus_lab.trace.text import count, duration, nats, number, size, visible

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from jinja2 import Environment

    from nexus_lab.cache import CacheState
    from nexus_lab.errors import Decline
    from nexus_lab.lab.drawing import Drawing
    from nexus_lab.lab.splice_records import SpliceTrial

__all__ = ["cache_fragment", "embedded", "page", "session_fragment", "splice_fragment"]

_LAB, _REPORT = "nexus_lab.lab", "nexus_lab.trace.report"
# Where the report's tokens and base style end.
_HEAD = "/* Head */"
# Assets of the report that pages here share: tokens and base style, and the patterns.
_SHARED = ("report.css", "defs.html.j2")
_LETTERS = {"append": "A", "splice": "S", "repair": "R", "drop": "D", "repos": "P"}
_SIGNS = {"ok": "✓", "warn": "!", "bad": "×", "none": ""}
_STATES = ("computed", "spliced", "repaired", "dropped")
# For readers without the style sheet; the letters of the legend say the same.
_INK = {
    "computed": 'fill="#b9bfc5"',
    "spliced": 'fill="#8f86d6"',
    "repaired": 'fill="#dd9a4f"',
    "dropped": 'fill="none" stroke="#757575" stroke-dasharray="3 2"',
}


def page(title: str, fragments: Iterable[str], *, theme: str | None = None, small: bool = False) -> str:
    """Return one self-contained HTML document.

    Parameters
    ----------
    title
        Any text.
    fragments
        HTML that panels made with `to_html`; put in as it is.
    theme
        ``light`` or ``dark``; ``None`` follows the reader's system.
    small
        With the styles of drawings only.
    """
    report = _asset("report.css").split(_HEAD)[0] if small else _asset("report.css")
    style = report + _asset("page.css") + _asset("drawn.css")
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    return _render(
        "page.html.j2",
        title=title,
        theme=theme if theme in ("light", "dark") else None,
        fragments=tuple(fragments),
        style=style,
        policy=policy,
    )


def embedded(document: str, *, height: int = 480) -> str:
    """Return a page as a frame for a notebook's output, apart from the styles of what is around it."""
    return (
        f'<iframe sandbox="" srcdoc="{escape(document, quote=True)}" width="100%" height="{int(height)}" '
        'style="border:1px solid #e0e0e0" title="nexus_lab"></iframe>'
    )


def cache_fragment(
    part: Mapping[str, Any], state: CacheState | None, drawings: Iterable[Drawing] = ()
) -> str:
    """Return the cache program with the tokens at the cursor, and drawings of what else is known of it."""
    from nexus_lab.trace.report.figures import strip

    figure = strip(_segments(state)) if state is not None and len(state) else None
    from markupsafe import Markup

    drawn = [Markup(drawing.to_html()) for drawing in drawings]  # noqa: S704 - a drawing escapes what is in it
    return _render("cache.html.j2", part=part, strip=figure, drawings=drawn)


def splice_fragment(
    trial: SpliceTrial | None, last: Sequence[Mapping[str, Any]], unavailable: Decline | None
) -> str:
    """Return a splice trial: its measures, its steps, and the drift after the last of them."""
    figures, means, floors = [], None, {}
    if trial is not None and trial.drift is not None:
        means = {tensor: _means(trial, tensor) for tensor in ("k", "v")}
        found = {tensor: trial.floor(tensor, "relative") for tensor in ("k", "v")}
        floors = {tensor: number(float(floor.mean())) for tensor, floor in found.items() if floor is not None}
        for tensor in ("k", "v"):
            frames = np.asarray(trial.frames(tensor, "relative"))
            limits = heat_range(frames[_first_in_cache(trial) :], signed=False)
            label = f"{tensor.upper()} drift after step {len(frames)}, relative to the prefill"
            figures.append((label, heat_figure(frames[-1], signed=False, limits=limits, head="KV head")))
        signed = np.asarray(trial.frames("k", "signed"))[-1]
        figures.append(
            ("K drift after the last step, signed", heat_figure(signed, signed=True, head="KV head"))
        )
    if trial is not None and trial.attention_drift is not None:
        values = np.asarray(trial.frames("attention", "signed"))[-1]
        label = "Attention on the block, spliced minus prefill"
        figures.append((label, heat_figure(values, signed=True, head="head")))
    return _render(
        "splice.html.j2",
        trial=trial,
        figures=figures,
        means=means,
        floors=floors,
        last=last,
        unavailable=unavailable,
    )


def session_fragment(part: Mapping[str, Any]) -> str:
    """Return the list of runs."""
    return _render("session.html.j2", part=part)


def _first_in_cache(trial: SpliceTrial) -> int:
    """Return the first step after which the rows are in the cache; before it, keys are not turned yet."""
    names = [step.name for step in trial.steps]
    return names.index("write") if "write" in names else 0


def _means(trial: SpliceTrial, tensor: str) -> list[str]:
    frames = trial.frames(tensor, "relative")
    if frames is None:
        return []
    real = [frame[np.isfinite(frame)] for frame in frames]
    return [number(float(values.mean())) if values.size else "–" for values in real]


def _segments(state: CacheState) -> list[Any]:
    from nexus_lab.trace.report.programs import Segment, TokenState

    names = np.where(state.active, state.origin, len(_STATES) - 1)
    positions = np.where(state.active, state.positions, 0)
    breaks = np.flatnonzero((np.diff(names) != 0) | (np.diff(positions) != 1) & state.active[1:]) + 1
    edges = [0, *breaks.tolist(), len(state)]
    return [
        Segment(start, stop, TokenState(_STATES[int(names[start])]), int(positions[start]))
        for start, stop in pairwise(edges)
    ]


def _render(template: str, **values: Any) -> str:
    return _environment().get_template(template).render(**values).strip()


@cache
def _environment() -> Environment:
    from jinja2 import Environment, FunctionLoader, StrictUndefined

    made = Environment(
        loader=FunctionLoader(_asset),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_finalize,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {
        "count": count,
        "number": number,
        "nats": nats,
        "size": size,
        "seconds": lambda value: duration(None if value is None else value * 1e9),
        "ms": lambda value: duration(None if value is None else value * 1e6),
        "shown": _shown,
    }
    from markupsafe import Markup

    ink = {state: Markup(attributes) for state, attributes in _INK.items()}  # noqa: S704 - literals above
    made.globals |= {"letters": _LETTERS, "signs": _SIGNS, "state_ink": ink}
    return made


def _shown(text: str) -> str:
    """Return a token's text with what cannot be seen spelled out."""
    return text.replace("\n", "↵").replace("\t", "⇥").replace(" ", "␣") or "(nothing)"


def _finalize(value: object) -> object:
    return visible(value) if type(value) is str else value


@cache
def _asset(name: str) -> str:
    folder = resources.files(_REPORT) if name in _SHARED else resources.files(_LAB) / "templates"
    return (folder / name).read_text(encoding="utf-8")
