"""What the Cache panel draws, from records made by hand."""

from __future__ import annotations

import json
import re
from dataclasses import fields, replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

import nexus_lab.lab
from nexus_lab.bench.base import Result, ResultFile, ResultsError
from nexus_lab.bench.cache_report import SETTINGS
from nexus_lab.bench.policy_proposers import Trial, front_of
from nexus_lab.bench.policy_search import PolicySearch
from nexus_lab.bench.sweep import JOURNAL
from nexus_lab.cache import CacheProgram, OpTree, Repos, Residency, StartKind, Tier
from nexus_lab.errors import Decline
from nexus_lab.lab.attention_figure import AttentionFigure, looked_of, read_looked
from nexus_lab.lab.axes import axis_for
from nexus_lab.lab.drawing import el, html_of, pattern, wire_of
from nexus_lab.lab.pareto import ParetoFront
from nexus_lab.lab.pareto_points import PolicyPoint, marked_front, points_of, read_points
from nexus_lab.lab.policy_form import OFFERED, chosen_policy, explicit, policy_fields, profile_policy
from nexus_lab.lab.policy_knobs import CAVEAT, Forgetting, PolicyKnobs
from nexus_lab.lab.residency_view import COUNTERS, ResidencyView
from nexus_lab.lab.restore_plan import Pass, RestoreDone, RestorePlan
from nexus_lab.lab.restore_view import RestoreView
from nexus_lab.lab.static_html import embedded, page
from nexus_lab.lab.tree_drawing import PLACE_LETTERS, TreeDrawing, thinned
from nexus_lab.lab.tree_shot import TreeShot, shoot, steps_of
from nexus_lab.policy_text import POLICIES, parse_policy
from nexus_lab.settings import Profile

HOSTILE = '<script>alert(1)</script>\u202e & "quoted"'
LAB = Path(nexus_lab.lab.__file__).parent


def branched():
    """A tree of three programs: the live one, one on disk, and one that is no longer there."""
    tree = OpTree()
    system = CacheProgram().append(range(20))
    live = system.append(range(20, 60)).append(range(60, 100)).drop((30, 50)).then(Repos())
    for prefix in live.prefixes():
        if prefix.ops:
            tree.insert(prefix, Tier.HOST)
    tree.insert(live, Tier.LIVE)
    tree.insert(system.append(range(500, 560)), Tier.DISK)
    gone = live.prefix(2).append(range(900, 940)).splice("block", range(40), anchor=3)
    steps = steps_of(live.append(range(200, 220)))
    return shoot(tree, tree.survey(), steps, 4, left=[("r-001", steps_of(gone))])


# -- elements ------------------------------------------------------------------------------------------------


def test_text_stays_text_on_a_page_and_on_the_wire():
    made = el("p", HOSTILE, el("b", "strong"), " and more", title=HOSTILE, hidden_=None)
    html = html_of(made)
    assert "<script" not in re.sub(r'"[^"]*"', "", html)
    assert "\u202e" not in html
    assert html.endswith("<b>strong</b> and more</p>")
    tag, attributes, text, inner, tail = wire_of(made)
    assert (tag, inner, tail) == ("p", ["b", {}, "strong"], " and more")
    assert text.startswith("<script>alert(1)</script>")
    assert set(attributes) == {"title"}


def test_switches_are_true_on_the_wire_and_bare_on_a_page():
    made = el("option", "x", value=3, selected=True, disabled=False)
    assert wire_of(made)[1] == {"value": "3", "selected": True}
    assert html_of(made) == '<option value="3" selected="">x</option>'


@pytest.mark.parametrize("tag", ["script", "iframe", "a", "img", "style", "object"])
def test_what_could_run_or_fetch_is_no_element_of_a_drawing(tag):
    with pytest.raises(ValueError, match=tag):
        el(tag)


def test_patterns_stay_in_their_box_and_differ():
    paths = {}
    for kind in ("append", "splice", "repair", "drop", "repos", "live", "host", "disk", "gone", "joined"):
        lines = [item.get("d") for item in pattern(kind, 0, 0, 40, 16) if item.tag == "path"]
        paths[kind] = lines[0] if lines else ""
        for x, y in re.findall(r"[ML](-?[\d.]+) (-?[\d.]+)", paths[kind]):
            assert 0 <= float(x) <= 40
            assert 0 <= float(y) <= 16
    assert [kind for kind, path in paths.items() if not path] == ["append", "live", "gone"]
    assert len({path for path in paths.values() if path}) == 7


def test_both_places_of_the_style_sheet_hold_the_same():
    shared = (LAB / "templates" / "drawn.css").read_text(encoding="utf-8")
    frontend = LAB / "frontend" / "src" / "style" / "drawn.css"
    assert frontend.read_text(encoding="utf-8") == shared
    known = (LAB / "templates" / "page.css").read_text(encoding="utf-8")
    wanted = set(re.findall(r"var\((--nl-[\w-]+)\)", shared))
    assert wanted - set(re.findall(r"(--nl-[\w-]+):", known)) == set()


# -- the tree ------------------------------------------------------------------------------------------------


def test_a_tree_says_what_is_shared_and_where_each_node_is():
    shot = branched()
    by_op = {branch.op: branch for branch in shot.branches if branch.op}
    assert by_op[1].places == ("live", "host", "disk")
    assert by_op[1].shared == 3
    assert (by_op[4].kind.value, by_op[4].tokens, by_op[4].here) == ("drop", 20, True)
    assert (by_op[5].kind.value, by_op[5].tokens) == ("repos", 50)
    assert by_op[5].places == ("live", "host")
    disk = [branch for branch in shot.branches if branch.places == ("disk",)]
    assert [branch.tokens for branch in disk] == [60]
    assert disk[0].name.startswith("program ")
    assert shot.programs == 3


def test_what_is_no_longer_there_hangs_where_it_was():
    shot = branched()
    gone = [branch for branch in shot.branches if branch.places == ("gone",)]
    assert [(item.kind.value, item.tokens, item.name) for item in gone] == [
        ("append", 20, "this conversation"),
        ("append", 40, ""),
        ("splice", 40, "r-001"),
    ]
    by_node = {branch.node: branch for branch in shot.branches}
    assert by_node[gone[0].parent].op == 5
    assert by_node[gone[1].parent].op == 2
    assert gone[0].own
    assert not gone[1].own


def test_a_tree_is_drawn_told_and_tabled():
    drawing = TreeDrawing(branched())
    html, text, frame = drawing.to_html(), drawing.to_text(), drawing.to_frame()
    for letter in PLACE_LETTERS.values():
        assert f">{letter}</text>" in html
    assert 'role="button"' not in html
    live = html_of(replace(drawing, live=True).element())
    assert live.count('role="button"') == 5  # states of the live program that are kept
    assert "3 programs in" in text
    assert "r-001" in text
    assert frame.height == len(drawing.shot.branches)
    assert frame.filter(here=True)["index"].to_list() == [4]
    assert "> . . D drop" in text
    assert html_of(TreeDrawing(TreeShot()).element()).startswith("<p")


def test_nodes_of_one_row_do_not_cover_each_other():
    svg = next(item for item in TreeDrawing(branched()).element().iter("svg"))
    corners = [
        (float(rect.get("x")), float(rect.get("y")))
        for rect in svg.iter("rect")
        if rect.get("class") == "dr-ground"
    ]
    assert len(set(corners)) == len(corners) == len(branched().branches)
    width, height = float(svg.get("width")), float(svg.get("height"))
    assert all(x + 40 <= width and y + 48 <= height for x, y in corners)


def test_a_long_tree_keeps_its_ends_its_cursor_and_where_programs_part():
    tree = OpTree()
    live = CacheProgram()
    for number in range(300):
        live = live.append([number])
        tree.insert(live, Tier.HOST)
    tree.insert(live.prefix(100).append([9999]), Tier.DISK)
    shot = shoot(tree, tree.survey(), steps_of(live), 150)
    drawn, gaps, hidden = thinned(shot, 40)
    assert len(drawn) <= 40
    ops = {branch.op for branch in drawn}
    assert {1, 100, 150, 300} <= ops
    assert len(drawn) + sum(gap.nodes for gap in gaps.values()) + hidden == len(shot.branches) == 301
    assert sum(branch.tokens for branch in drawn) + sum(gap.tokens for gap in gaps.values()) == 301
    numbers = {branch.node for branch in drawn}
    assert all(branch.parent == 0 or branch.parent in numbers for branch in drawn)
    assert "+" in html_of(TreeDrawing(shot, most=40).element())


def test_a_name_is_no_markup():
    known = branched().branches[0]
    branch = replace(known, name=HOSTILE)
    drawing = TreeDrawing(TreeShot(branches=(branch,)))
    document = page("tree", [drawing.to_html()])
    assert "<script" not in re.sub(r'"[^"]*"', "", document)
    assert "&lt;script&gt;" in document


# -- residency -----------------------------------------------------------------------------------------------


def residency(**changes):
    counters = {"l0_sequences_evicted": 2, "chunks_evicted": 3, "found": 7, "snapshots": 4, "disk_evicted": 1}
    made = Residency(
        nodes=(),
        programs={Tier.LIVE: 1, Tier.HOST: 4, Tier.DISK: 2},
        cells=512,
        max_cells=2048,
        host_bytes=3 * 2**20,
        max_host_bytes=12 * 2**20,
        disk_bytes=2**20,
        max_disk_bytes=2**30,
        counters=counters,
    )
    return replace(made, **changes)


def test_limits_and_counters_are_told_with_their_units():
    view = ResidencyView(residency())
    text, html = view.to_text(), view.to_html()
    for words in ("512 of 2,048 cells (25.0 %)", "3.00 MiB of 12.0 MiB (25.0 %)", "4 states"):
        assert words in html
    assert COUNTERS["chunks_evicted"] in text
    rows = {row["name"]: row for row in view.to_frame().iter_rows(named=True)}
    assert (rows["KV cells"]["value"], rows["KV cells"]["limit"]) == (512, 2048)
    assert rows["l0_sequences_evicted"]["value"] == 2
    assert "snapshots" not in rows


def test_without_a_disk_that_is_said():
    view = ResidencyView(residency(disk_bytes=0, max_disk_bytes=0, counters={}))
    assert "none kept on disk" in view.to_text()
    assert view.to_frame().filter(name="disk")["limit"].to_list() == [None]
    assert ResidencyView(None).to_frame().height == 0


# -- restore -------------------------------------------------------------------------------------------------


def plan(**changes):
    steps = (
        Pass(("append", "drop", "append"), 60, 20, 80),
        Pass(("repos",), 0, 0, 60),
        Pass(("append",), 10, 0, 70),
    )
    made = RestorePlan(
        op=6,
        of=9,
        state_id="abc",
        active=70,
        logical=90,
        cold=False,
        start=StartKind.SNAPSHOT,
        places=("host",),
        there=20,
        steps=steps,
        epochs=2,
        declined=None,
    )
    return replace(made, **changes)


def test_a_plan_says_passes_epochs_and_why_not():
    why = Decline("tensor_layout_unknown", "the graph of this build is not known", "segment by segment")
    view = RestoreView(
        ops=("append",) * 9, plan=plan(), cold=plan(cold=True, start=StartKind.EMPTY, declined=why)
    )
    text = view.to_text()
    assert (
        "computes 70 tokens in 3 passes, 1 of them several operations at once; 2 epochs between repos" in text
    )
    assert "Begins with a snapshot (host), which has 20 tokens" in text
    assert "The graph of this build is not known. Instead: segment by segment." in text
    html = view.to_html()
    assert "Instead: segment by segment" in html
    frame = view.to_frame()
    assert frame["joined"].to_list() == [True, False, False] * 2
    assert frame.filter(plan="as kept")["tokens"].sum() == 70


def test_what_a_restore_did_is_told_with_its_fallback():
    why = Decline("context_full", "no cells are free", "segment by segment")
    done = RestoreDone(
        op=6,
        at_once=True,
        start=StartKind.LIVE,
        there=20,
        ops=3,
        computed=70,
        passes=0,
        declined=why,
        seconds=0.25,
    )
    words = RestoreView(ops=("append",) * 9, done=done).to_text()
    assert "op 6 from the live sequence with 20 tokens; 3 operations run, 70 tokens computed" in words
    assert "step by step because no cells are free" in words
    assert "250 ms" in words


# -- knobs ---------------------------------------------------------------------------------------------------


def test_every_policy_can_be_chosen_with_each_of_its_knobs():
    for name in OFFERED:
        choice = chosen_policy({"policy": name}, Profile())
        assert choice.spec.name == name
        html = html_of(policy_fields(choice, Profile()))
        for knob in POLICIES[name].knobs:
            assert f'name="knob.{name}.{knob.name}"' in html
        assert parse_policy(choice.text).name == name


def test_fields_become_the_policy_and_wrong_ones_are_told():
    values = {
        "policy": "rolling_drop_repos",
        "knob.rolling_drop_repos.keep_last": "1",
        "knob.rolling_drop_repos.repos_every": "0",
        "knob.drop_both.keep_last": "5",
    }
    choice = chosen_policy(values, Profile())
    assert choice.text == "rolling_drop_repos(keep_last=1)"
    assert list(choice.faults) == ["repos_every"]
    assert "at least 1" in html_of(policy_fields(choice, Profile()))
    switched = chosen_policy({"policy": "drop_both", "knob.drop_both.repos": ""}, Profile())
    assert switched.spec.options["repos"] is False


def test_the_policy_of_a_profile_means_the_same_when_it_is_written_out():
    profile = Profile(policy="rolling_drop", repos=True, keep_responses=1)
    assert explicit(profile_policy(profile)) == "rolling_drop_repos(keep_last=1)"
    named = Profile(policy="trim(keep_last=3)", keep_responses=1)
    assert explicit(profile_policy(named)) == "trim(keep_last=3)"
    assert "keep_last=4" in explicit(profile_policy(Profile(policy="summarise", keep_responses=1)))


def test_a_view_cannot_choose_code():
    choice = chosen_policy({"policy": "python", "knob.python.function": "evil.py:f"}, Profile())
    assert choice.spec.name == "full"
    own = Profile(policy="python(function=mine.py:f)")
    kept = chosen_policy({"policy": "python", "knob.python.function": "evil.py:f"}, own)
    assert kept.text == "python(function=mine.py:f)"


def test_the_caveat_always_stands_there_with_what_forgetting_takes():
    choice = chosen_policy({"policy": "rolling_drop"}, Profile())
    view = PolicyKnobs(choice=choice, profile=Profile(), forgetting=Forgetting(863, 624))
    assert CAVEAT in view.to_text()
    assert "863 tokens are dropped; forgetting them for good prefills 624 tokens anew" in view.to_html()
    assert 'data-call="cache.forget"' in html_of(view.element())
    nothing = PolicyKnobs(choice=choice, profile=Profile())
    assert CAVEAT in nothing.to_html()
    assert 'data-call="cache.forget"' not in html_of(nothing.element())


# -- the front -----------------------------------------------------------------------------------------------


def point(policy, nll, cost, **changes):
    return PolicyPoint(policy=policy, nll=nll, cost=cost, **changes)


def test_the_front_is_that_of_the_search():
    figures = [(1.2, 50.0), (1.3, 30.0), (1.3, 40.0), (1.25, 45.0), (1.2, 60.0), (1.5, 10.0)]
    trials = [
        Trial(number=number, policy=f"trim(keep_last={number})", proposer="given", nll=nll, cost=cost)
        for number, (nll, cost) in enumerate(figures)
    ]
    search = PolicySearch(
        {"conversations": ["a", "b"]}, [*trials, Trial(number=9, policy="full", proposer="x")]
    )
    points = points_of(search)
    assert [item.policy for item in points if item.on_front] == [item.policy for item in front_of(trials)]
    assert [item.cost for item in points] == sorted(item.cost for item in points)
    assert {item.n for item in points} == {2}


def test_a_front_is_read_from_a_result_file_with_its_intervals(tmp_path):
    cases = [("full", 1.20, 5200.0), ("trim", 1.30, 4100.0), ("rolling_drop", 1.25, 4000.0)]
    results = []
    for policy, nll, cost in cases:
        case = {"policy": policy}
        results.append(
            Result(case=case, metric="nll_per_token", value=nll, low=nll - 0.1, high=nll + 0.1, n=9)
        )
        results.append(Result(case=case, metric="cost", value=cost, low=cost - 100, high=cost + 100, n=20))
        results.append(Result(case={**case, "peer": "full"}, metric="cost_ratio", value=0.5, n=20))
    file = ResultFile(
        name="eval cache", created="", versions={}, machine={}, settings={}, results=tuple(results)
    )
    points = read_points(file.write(tmp_path / "cache.json"))
    assert [item.policy for item in points] == ["rolling_drop", "trim", "full"]
    assert [item.policy for item in points if item.on_front] == ["rolling_drop", "full"]
    assert (points[0].nll_low, points[0].cost_high, points[0].n) == (1.15, 4100.0, 20)
    front = ParetoFront(points)
    svg = next(item for item in front.element().iter("svg"))
    assert sum(item.get("class") == "dr-interval" for item in svg.iter("path")) == 6
    assert "1.2500 [1.1500, 1.3500]" in front.to_text()
    assert front.to_frame()["on_front"].to_list() == [True, False, True]


ROW = {
    "tokens_decoded": 10,
    "cells_attended": 0,
    "cells_scanned": 0,
    "peak_cells": 1,
    "wall_s": 1.0,
    "ttft_s": [0.1],
    "turn_s": [0.2],
    "scored": 10,
    "declined": None,
    "declined_code": None,
    "dry": False,
    "input_tokens": 1,
}


def row(policy, talk, nll, prefilled):
    return {**ROW, "policy": policy, "trajectory": talk, "nll": nll, "tokens_prefilled": prefilled}


def lines(entries):
    return "".join(json.dumps({"key": key, "rows": rows, "seconds": 1.0}) + "\n" for key, rows in entries)


def test_a_front_is_read_from_the_folder_of_a_search(tmp_path):
    entries = [
        ("a", [row("full", "one", 10.0, 100)]),
        ("b", [row("full", "two", 12.0, 140)]),
        ("trial 12 0", [{"policy": "full", "proposer": "given", "why": ""}]),
        ("c", [row("trim", "one", 13.0, 60)]),
        ("d", [row("trim", "two", 14.0, 70)]),
        ("trial 12 1", [{"policy": "trim", "proposer": "optuna", "why": ""}]),
        ("e", [row("rolling_drop", "one", 13.0, 10)]),
        (
            "f",
            [{**row("rolling_drop", "two", 0.0, 0), "declined": "no room", "declined_code": "context_full"}],
        ),
    ]
    (tmp_path / JOURNAL).write_text(lines(entries))
    points = read_points(tmp_path)
    assert [(item.policy, item.proposer, item.n) for item in points] == [
        ("trim", "optuna", 2),
        ("full", "given", 2),
    ]
    assert points[0].nll == pytest.approx(1.35)
    assert points[0].cost == pytest.approx(65 + 40)
    assert points[0].cost_low <= points[0].cost <= points[0].cost_high


def test_a_front_is_read_from_the_folder_of_a_replay(tmp_path):
    (tmp_path / SETTINGS).write_text(json.dumps({"settings": {"dry": False}, "keys": ["a", "b"]}))
    (tmp_path / JOURNAL).write_text(
        lines([("a", [row("full", "one", 10.0, 100)]), ("b", [row("trim", "one", 9.0, 90)])])
    )
    points = read_points(tmp_path)
    assert [item.policy for item in points if item.on_front] == ["trim"]
    assert points[0].cost_low is None


@pytest.mark.parametrize("content", [None, "{}", "[]", "no json"])
def test_what_is_no_result_is_a_typed_error(tmp_path, content):
    path = tmp_path / "x.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ResultsError):
        read_points(path)
    with pytest.raises(ResultsError):
        read_looked(path)
    with pytest.raises(ResultsError):
        read_points(tmp_path / "empty" if content is None else tmp_path)


def test_a_policy_of_the_front_goes_into_the_knobs_unless_it_runs_code():
    code = point("python(function=evil.py:f)", 1.0, 1.0)
    points = marked_front([code, point("drop_both(keep_last=0,repos=no)", 0.9, 2.0)])
    html = html_of(ParetoFront(points, live=True).element())
    assert html.count(">Load</button>") == 1
    (told,) = re.findall(r'data-set="([^"]*)"', html)
    values = json.loads(told.replace("&quot;", '"'))
    choice = chosen_policy(values, Profile())
    assert choice.text == "drop_both(keep_last=0,repos=no)"


def test_an_axis_has_round_ticks_within_it():
    for values in ((0.0, 1.0), (1.2, 1.21), (3100.0, 5200.0), (7.0, 7.0), (-3.0, 5.0)):
        axis = axis_for(values, 0, 100, "x")
        assert 3 <= len(axis.ticks) <= 7
        assert axis.low <= min(values)
        assert axis.high >= max(values)
        assert len({axis.label(tick) for tick in axis.ticks}) == len(axis.ticks)
        assert all(0 <= axis.at(value) <= 100 for value in (*values, *axis.ticks))


# -- attention -----------------------------------------------------------------------------------------------


def looked(share, lift, *, role, age, n=12):
    case = {"role": role, "age": age}
    return [
        Result(case=case, metric="attention_share", value=share, low=share / 2, high=share * 2, n=n),
        Result(case=case, metric="attention_lift", value=lift, n=n),
    ]


def test_attention_is_drawn_by_role_and_age(tmp_path):
    results = [
        *looked(0.3, 39.0, role="sink", age="any"),
        *looked(0.05, 0.4, role="tool", age="1"),
        *looked(0.10, 0.9, role="user", age="0"),
        *looked(0.02, 0.2, role="tool", age="3-4"),
        *looked(0.9, 9.0, role="nobody", age="0"),
    ]
    file = ResultFile(
        name="eval attention",
        created="",
        versions={},
        machine={},
        settings={"model": "Smol", "policy": "full"},
        results=tuple(results),
    )
    found, settings = read_looked(file.write(tmp_path / "attention.json"))
    assert found == looked_of(results)
    assert [(item.role, item.age) for item in found] == [
        ("sink", "any"),
        ("user", "0"),
        ("tool", "1"),
        ("tool", "3-4"),
    ]
    assert settings["model"] == "Smol"
    figure = AttentionFigure(found, model="Smol", policy="full")
    html, text = figure.to_html(), figure.to_text()
    assert "user of age 0 gets most attention, 0.90 times the average" in text
    assert "tool of age 3-4 least, 0.20 times (Smol, policy full)" in text
    assert "5.0 % [2.5, 10.0]" in text
    svg = next(item for item in figure.element().iter("svg"))
    coloured = [item for item in svg.iter("rect") if item.get("fill")]
    assert len(coloured) == 4
    assert sum(item.get("class") == "dr-none" for item in svg.iter("rect")) == 3 * 4 - 4
    assert "0 to 10.0 % of the attention" in html  # the sink alone does not set the range
    assert set(figure.to_frame().columns) == {item.name for item in fields(found[0])}


class Fields(HTMLParser):
    """Counts what one could type into or press."""

    def __init__(self, html):
        super().__init__()
        self.inputs = 0
        self.feed(html)

    def handle_starttag(self, tag, _attrs):
        self.inputs += tag in {"input", "select", "button"}


def test_pages_hold_no_fields():
    drawings = [
        TreeDrawing(branched()),
        ResidencyView(residency()),
        RestoreView(ops=("append",), plan=plan(), live=False),
        PolicyKnobs(
            choice=chosen_policy({}, Profile()), profile=Profile(), forgetting=Forgetting(1, 1), live=False
        ),
        ParetoFront(marked_front([point("full", 1.0, 2.0)])),
        AttentionFigure(looked_of(looked(0.1, 1.0, role="user", age="0"))),
    ]
    assert Fields("".join(drawing.to_html() for drawing in drawings)).inputs == 0
    for drawing in drawings:
        assert drawing.title in drawing._repr_html_()
        assert "--op-append" in drawing._repr_html_()
        assert len(drawing._repr_html_()) < len(embedded(page("x", [drawing.to_html()]))) - 10_000
        assert repr(drawing) == str(drawing) == drawing.to_text()
