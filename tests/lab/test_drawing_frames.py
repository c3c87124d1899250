"""Drawings as a notebook shows them: whole, and with nothing in front of what has to be read."""

from __future__ import annotations

import json
import re

from nexus_lab.bench.cache_report import SETTINGS
from nexus_lab.bench.sweep import JOURNAL
from nexus_lab.lab.drawing import el, frame_height, html_of, note, table
from nexus_lab.lab.pareto import ParetoFront
from nexus_lab.lab.pareto_points import PolicyPoint, marked_front, read_points
from nexus_lab.lab.policy_form import PolicyChoice
from nexus_lab.lab.policy_knobs import CAVEAT, PolicyKnobs
from nexus_lab.policy_text import parse_policy
from nexus_lab.settings import Profile


def lines(number):
    return table(("a", "b"), [("row", "x")] * number, label="Lines")


def test_a_frame_is_as_high_as_what_is_in_it():
    few, many = (frame_height(el("div", lines(number))) for number in (8, 18))
    assert many - few == 10 * 29
    drawn = el("svg", width=10, height=100)
    assert frame_height(el("div", lines(8), drawn)) > few + 100
    one, ten = (frame_height(el("div", lines(8), note("warn", "word " * 20 * n))) for n in (1, 10))
    assert ten - one > 8 * 19
    folded = el("details", el("summary", "All"), lines(50))
    assert few < frame_height(el("div", lines(8), folded)) < few + 60
    unfolded = el("details", el("summary", "All"), lines(10), open=True)
    assert frame_height(el("div", lines(8), unfolded)) > few + 10 * 29
    assert frame_height(el("div", lines(500))) == 960
    assert frame_height(el("p", "nothing")) == 140


def test_a_drawing_in_a_notebook_has_a_frame_of_its_height():
    drawing = PolicyKnobs(choice=PolicyChoice(parse_policy("trim")), profile=Profile(), live=False)
    html = drawing._repr_html_()
    assert CAVEAT in drawing.to_text()
    assert CAVEAT in html
    assert f'height="{frame_height(drawing.element())}"' in html


def row(policy, conversation, nll, prefilled):
    counts = {"tokens_decoded": 0, "cells_attended": 0, "cells_scanned": 0, "peak_cells": 1}
    times = {"wall_s": 1.0, "ttft_s": [0.5], "turn_s": [1.0], "active": [1]}
    return {
        "policy": policy, "trajectory": conversation, "dry": False, "declined": None, "declined_code": None,
        "nll": nll, "scored": 10, "input_tokens": prefilled, "tokens_prefilled": prefilled, **counts, **times,
    }  # fmt: skip


def test_a_folder_shows_the_search_that_went_on_last(tmp_path):
    def trial(policy, *tasks):
        return [{"policy": policy, "proposer": "given", "why": "", "tasks": list(tasks)}]

    entries = [
        ("a", [row("full", "one", 10.0, 100)]),
        ("trial few 0", trial("full", "a")),
        ("b", [row("full", "one", 40.0, 400)]),  # more replies of the same conversation
        ("trial many 0", trial("full", "b")),
        ("c", [row("trim", "one", 50.0, 300)]),
        ("trial many 1", trial("trim", "c")),
    ]

    def points(n):
        lines = ({"key": key, "rows": rows, "seconds": 1.0} for key, rows in entries[:n])
        (tmp_path / JOURNAL).write_text("".join(json.dumps(line) + "\n" for line in lines))
        return {item.policy: (item.nll, item.cost) for item in read_points(tmp_path)}

    assert points(2) == points(3) == {"full": (1.0, 100.0)}
    assert points(6) == {"full": (4.0, 400.0), "trim": (5.0, 300.0)}
    entries.append(("trial few 1", trial("full", "a")))
    assert points(7) == {"full": (1.0, 100.0)}


def test_policies_of_a_replay_stand_over_the_same_conversations(tmp_path):
    hard = {**row("full", "long", 0.0, 0), "declined": "too long", "declined_code": "context_full"}
    rows = [row("full", "one", 10.0, 100), hard, row("trim", "one", 11.0, 90), row("trim", "long", 1.0, 900)]
    keys = [str(number) for number in range(len(rows))]
    (tmp_path / SETTINGS).write_text(json.dumps({"settings": {"dry": False}, "keys": keys}))
    lines = ({"key": key, "rows": [item], "seconds": 1.0} for key, item in zip(keys, rows, strict=True))
    (tmp_path / JOURNAL).write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = {item.policy: (item.nll, item.cost, item.n) for item in read_points(tmp_path)}
    assert found == {"full": (1.0, 100.0, 1), "trim": (1.1, 90.0, 1)}


def test_the_numbers_of_the_front_lie_above_other_points():
    points = [
        PolicyPoint(policy=name, nll=nll, cost=5.0) for name, nll in (("b", 1.0), ("c", 1.0), ("d", 2.0))
    ]
    points.append(PolicyPoint(policy="a", nll=0.5, cost=9.0))
    front = ParetoFront(points=marked_front(points), live=False)
    marks = re.findall(r'class="dr-point( dr-best)?"', html_of(front.element()))
    assert marks == ["", "", " dr-best", " dr-best"]
