"""Drawings as a notebook shows them: whole, and with nothing in front of what has to be read."""

from __future__ import annotations

import re

from nexus_lab.lab.drawing import el, frame_height, html_of, note, table
from nexus_lab.lab.pareto import ParetoFront
from nexus_lab.lab.pareto_points import PolicyPoint, marked_front
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


def test_the_numbers_of_the_front_lie_above_other_points():
    points = [
        PolicyPoint(policy=name, nll=nll, cost=5.0) for name, nll in (("b", 1.0), ("c", 1.0), ("d", 2.0))
    ]
    points.append(PolicyPoint(policy="a", nll=0.5, cost=9.0))
    front = ParetoFront(points=marked_front(points), live=False)
    marks = re.findall(r'class="dr-point( dr-best)?"', html_of(front.element()))
    assert marks == ["", "", " dr-best", " dr-best"]
