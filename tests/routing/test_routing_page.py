"""What the routing panel shows of a decision without a kernel."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from routing_tools import WordEmbedder, tool

from nexus_lab.lab.routing_page import routing_page
from nexus_lab.lab.routing_panel import RoutingPanel
from nexus_lab.lab.routing_records import of_box
from nexus_lab.lab.wire import to_json
from nexus_lab.registry import Registry
from nexus_lab.routing import Router
from nexus_lab.routing.calibration import shipped_calibration, user_calibration_path
from nexus_lab.routing.embedder import bundled_fingerprint

if TYPE_CHECKING:
    from nexus_lab.lab.routing_records import DecisionRow

HOSTILE = "<img src=x onerror=alert(1)> \u202e"


def shown(*rows: DecisionRow) -> str:
    part = {"tau": 0.1, "provenance": HOSTILE, "examples": 0, "decisions": [to_json(row) for row in rows]}
    return routing_page(part, shipped_calibration())


def test_which_text_was_nearest_is_told_and_harmless():
    registry = Registry.of([tool("send", f"Send a letter {HOSTILE}"), tool(f"x{HOSTILE}", "Burn a letter")])
    router = Router(registry, WordEmbedder(), threshold=0.0, tau=0.0)
    router.add_example("Post this to Ann", "send")
    row = of_box(router.route("Post this to Bob"))
    first = row.candidates[0]
    assert (first["view"], first["matched"]) == ("example", "Post this to Ann")
    page = shown(row, of_box(router.route(f"Burn a letter {HOSTILE}")))
    assert "example: Post this to Ann" in page
    assert "<img" not in page
    assert "&lt;img src=x" in page
    for candidate in row.candidates:
        assert "\u202e" not in candidate["matched"]


def test_a_broken_calibration_is_told_by_the_panel_and_does_not_hide_it(nexus_home: Any):
    file = user_calibration_path(bundled_fingerprint())
    assert file.is_relative_to(nexus_home)
    file.parent.mkdir(parents=True)
    file.write_text('{"version": 2, "gate":', encoding="utf-8")
    panel: Any = SimpleNamespace(_calibration=None)
    calibration, origin = RoutingPanel._calibrated(panel)
    assert calibration == shipped_calibration()
    assert str(file) in origin
    assert "nexus-lab route calibrate" in origin
    # Once it is gone the panel needs no restart.
    file.unlink()
    assert RoutingPanel._calibrated(panel)[1] == "shipped"
