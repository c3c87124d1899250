"""The HTML report of a session: one file that needs nothing else, not even JavaScript.

Every text passes through the template's escaping; figures are numbers only. The page carries a content
policy that forbids the network and allows exactly its own style sheet and script, by their hashes.
"""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING

from nexus_lab.paths import atomic_write
from nexus_lab.trace.report.limits import Limits
from nexus_lab.trace.text import visible

if TYPE_CHECKING:
    from pathlib import Path

    from jinja2 import Environment

    from nexus_lab.trace.selection import Selection

__all__ = ["Limits", "render_html", "write_html"]


def write_html(selection: Selection, out: Path) -> None:
    """Write the report of `selection`."""
    atomic_write(out, render_html(selection).encode("utf-8", "replace"))


def render_html(selection: Selection, *, limits: Limits | None = None) -> str:
    """Return the report of `selection` as one HTML document."""
    from nexus_lab.trace.report.model import build_report

    style, script = _asset("report.css"), _asset("report.js")
    policy = (
        f"default-src 'none'; style-src '{_hash(style)}'; script-src '{_hash(script)}'; "
        "base-uri 'none'; form-action 'none'"
    )
    return (
        _environment()
        .get_template("report.html.j2")
        .render(report=build_report(selection, limits or Limits()), style=style, script=script, policy=policy)
    )


@cache
def _environment() -> Environment:
    from jinja2 import Environment, FunctionLoader, StrictUndefined

    return Environment(
        loader=FunctionLoader(_asset),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_finalize,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _finalize(value: object) -> object:
    return visible(value) if type(value) is str else value


@cache
def _asset(name: str) -> str:
    return (resources.files(__name__) / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
