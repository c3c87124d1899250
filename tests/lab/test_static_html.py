"""Pages without a script, their heatmaps, and the plotly charts."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest

from nexus_lab.cache import CacheProgram, Drop, Repair, Repos, Splice, fold
from nexus_lab.errors import Decline
from nexus_lab.lab.cache_ops import Breakpoints, OpBook
from nexus_lab.lab.figures import drift_heatmap, margin_histogram, repair_curve
from nexus_lab.lab.heat import VIK, VIRIDIS, colour_at, heat_figure, heat_range
from nexus_lab.lab.splice_film import FilmStep
from nexus_lab.lab.splice_parts import TrialError
from nexus_lab.lab.splice_records import MeasuredSplice, NextToken, SpliceSettings, SpliceTrial
from nexus_lab.lab.static_html import cache_fragment, embedded, page, session_fragment, splice_fragment
from nexus_lab.splice import Calibration, CalibrationCell, Coverage, CurveError

HOSTILE = "<script>document.title='owned'</script><img src=x onerror=alert(1)> \u202e & \"quoted\""
VOID = {"meta", "rect", "path", "line", "circle", "br", "img"}


class Reader(HTMLParser):
    """Notes elements and attributes, and complains of tags that are not closed."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.attributes, self.open, self.text = [], [], [], ""
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag):
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


def trial(*, tool="echo", measured=True, declined=None, n_layer=30, **changes):
    steps = tuple(FilmStep(name, HOSTILE, 1.5) for name in ("header", "rotate", "write"))
    drift = np.random.default_rng(1).random((3, 2, 3, n_layer, 3)).astype(np.float32)
    drift[:, :, 2] -= 0.5
    drift[2, 0, 1, 4, 2] = np.nan
    return SpliceTrial(
        id="s-001",
        settings=changes.pop("settings", SpliceSettings(tool=tool, n_past=648)),
        n_tokens=changes.pop("n_tokens", 431),
        anchor=64,
        bytes=9_961_472,
        anchored=False,
        source="a sample conversation",
        repaired=108,
        curve_tokens=231,
        steps=() if declined else steps,
        declined=declined,
        n_layer=n_layer,
        n_head_kv=3,
        n_head=9,
        ttft_ms=284.0,
        measured=MeasuredSplice(
            prefill_ms=1078.0,
            dkl=0.0082,
            noise_floor=0.0052,
            n_positions=41,
            top1=0.975,
            same_first=True,
            next=(NextToken("</td><b>", 0.6, 0.5), NextToken("all others", 0.4, 0.5)),
        )
        if measured and not declined
        else None,
        measure_declined=None,
        attention_declined=None,
        drift=drift if measured and not declined else None,
        attention_drift=None,
        **changes,
    )


def cache_part():
    program = CacheProgram().append(range(40)).splice("block", range(40, 60), anchor=8)
    program = program.then(Repair(tuple(range(40, 45))), Drop(((10, 20),)), Repos()).append(range(60, 70))
    book = OpBook()
    part = {
        "run": "r-001",
        "policy": "rolling_drop_repos",
        "ops": [dict_of(cell) for cell in book.cells(program, Breakpoints())],
        "cursor": 5,
        "counts": {
            "active": 60,
            "logical": 70,
            "next_position": 60,
            "computed": 40,
            "spliced": 15,
            "repaired": 5,
            "dropped": 10,
        },
        "slots": [{}],
        "n_slots": 32,
        "cells_used": 60,
        "n_ctx": 2048,
        "arena": {"total": 1 << 28, "given_out": 1 << 20, "asked_for": 1 << 19},
    }
    part["ops"][0]["note"] = HOSTILE
    return part, program


def dict_of(cell):
    return {name: getattr(cell, name) for name in type(cell).__dataclass_fields__}


def whole_page(**options):
    part, program = cache_part()
    last = [{"turn": 1, "tool": HOSTILE, "n_past": 3, "path": "prefill", "dkl": None, "declined": None}]
    runs = [
        {
            "run": "r-001",
            "started": "2026-01-01T10:00:00Z",
            "model": HOSTILE,
            "policy": "full",
            "turns": 3,
            "status": "warn",
            "status_text": "finished, 1 declined",
            "worst_dkl": 0.0082,
            "note": HOSTILE,
        }
    ]
    fragments = [
        cache_fragment(part, fold(program)),
        splice_fragment(trial(tool=HOSTILE), last, None),
        session_fragment({"name": HOSTILE, "folder": "/tmp", "runs": runs}),  # noqa: S108 - a text
    ]
    return page(HOSTILE, fragments, **options)


def test_a_page_needs_no_script_and_no_network():
    text = whole_page()
    found = Reader(text)
    assert "script" not in found.tags
    assert "link" not in found.tags
    assert "iframe" not in found.tags
    names = {name for name, _ in found.attributes}
    assert not {"src", "href", "srcset", "action", "style"} & names
    assert not any(name.startswith("on") for name in names)
    assert not re.search(r"url\((?!#)", text)
    assert "@import" not in text
    policy = next(
        value for name, value in found.attributes if name == "content" and "default-src" in (value or "")
    )
    assert policy.startswith("default-src 'none'; style-src 'sha256-")


def test_the_policy_allows_the_page_s_own_style_and_no_other():
    import base64
    import hashlib

    text = whole_page()
    style = re.search("<style>(.*?)</style>", text, re.DOTALL)[1]
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    assert f"&#39;sha256-{digest}&#39;" in text or f"'sha256-{digest}'" in text
    assert "--op-splice: light-dark(" in style


def test_hostile_text_stays_text():
    text = whole_page()
    found = Reader(text)
    assert "img" not in found.tags
    assert "document.title='owned'" in found.text
    assert "\u202e" not in text
    assert "</td><b>" in found.text


def test_a_theme_can_be_fixed_and_nothing_else_gets_in():
    assert '<html lang="en" data-theme="dark">' in whole_page(theme="dark")
    assert "data-theme" not in re.sub("<style>.*?</style>", "", whole_page(), flags=re.DOTALL)
    assert '"x"' not in whole_page(theme='"x"').split("<head>")[0]


def test_an_embedded_page_is_a_frame_without_rights():
    frame = embedded(whole_page(), height=300)
    found = Reader(frame)
    assert found.tags == ["iframe"]
    attributes = dict(found.attributes)
    assert attributes["sandbox"] == ""
    assert attributes["srcdoc"] == whole_page()
    assert "src" not in attributes


def test_the_cache_fragment_shows_every_operation_and_the_tokens():
    part, program = cache_part()
    text = cache_fragment(part, fold(program))
    found = Reader(text)
    assert found.tags.count("tr") == 1 + len(program.ops)
    assert "op 5 of 6, looking back" in found.text
    for state in ("computed", "spliced", "repaired", "dropped"):
        assert f'class="state-{state}"' in text
    assert "No cache program yet" in cache_fragment({**part, "ops": []}, None)


def test_the_splice_fragment_gives_values_beside_colours():
    text = splice_fragment(trial(), [], None)
    found = Reader(text)
    assert "0.0082 nats over 41 positions; noise floor 0.0052" in found.text
    assert found.tags.count("figure") == 3
    assert found.text.count("17, 2: ") == 3
    assert "4, 2: no value" in found.text
    declined = splice_fragment(trial(declined=Decline("m_rope", "three axes", "full prefill")), [], None)
    assert "three axes" in declined
    assert "<figure" not in declined
    assert "Nothing was tried yet" in splice_fragment(None, [], None)
    off = splice_fragment(trial(measured=False), [], None)
    assert "Not measured" in off
    assert "<figure" not in off


def test_the_splice_fragment_says_what_was_asked_and_what_it_led_to():
    contract = SpliceSettings(tool="echo", n_past=648, context="typical", contract="bounded", epsilon=0.05)
    sensitivity = np.array([0.5, 0.0, 0.25], np.float32)
    shown = trial(settings=contract, plan="leading", sensitivity=sensitivity, recomputed=(0,), n_tokens=3)
    found = Reader(splice_fragment(shown, [], None))
    for words in (
        "echo at n_past 648, contract bounded(0.05)",
        "Block compiled behind typical conversations, at 64.",
        "No calibration of this model behind this compile context.",
        "largest 0.500 at token 0",
    ):
        assert words in found.text
    paths = [value for name, value in found.attributes if name == "d"][:2]
    assert paths == ["M2 10v-5h1V10", "M0 10v-10h1V10"]
    calibration = Calibration(
        fingerprint="f",
        context_hash="c",
        flash_attention=False,
        strategy="leading",
        quantile=0.95,
        noise_floor=2e-4,
        n_tokens_min=100,
        n_tokens_max=500,
        cells=tuple(CalibrationCell(depth, 0.25, 0.04, 0.01, 12) for depth in (64, 2048)),
    )
    lines = trial(settings=contract, calibration=calibration).led
    assert lines[-2] == (
        "Calibration: leading repair, depths 64 to 2,048, blocks of 100 to 500 tokens, 95 % quantile."
    )
    assert lines[-1] == "Its coverage was not measured."
    held = replace(calibration, coverage=(Coverage(0.05, 400, 390, 40, 0.3),))
    assert trial(settings=contract, calibration=held).led[-1] == (
        "Coverage at 0.0500 nats, other conversations: 97.5 % of 400; 40 prefilled, 30 % computed on average."
    )
    declined = Decline("one_pass", "patches are off", "the tokens are computed stretch by stretch")
    assert "One pass declined: patches are off" in "".join(trial(repair_declined=declined).led)


def test_colour_maps_end_where_they_should():
    assert colour_at(0, VIRIDIS) == "#440154"
    assert colour_at(1, VIRIDIS) == "#fde725"
    assert colour_at(2, VIK) == "#590008"
    middle = bytes.fromhex(colour_at(0.5, VIK)[1:])
    assert max(middle) - min(middle) < 40


def test_a_heatmap_marks_what_is_missing_or_beyond():
    values = np.linspace(0, 1, 12).reshape(4, 3)
    values[1, 1] = np.nan
    figure = heat_figure(values, signed=False, limits=(0.0, 0.8))
    by_place = {(cell.x, cell.y): cell for cell in figure.cells}
    assert len(by_place) == 12
    assert [cell.colour for cell in figure.cells].count("") == 1
    assert sum(bool(cell.mark) for cell in figure.cells) == (values > 0.8).sum()
    assert figure.table[1][1] == "–"
    assert figure.has_marks
    assert not heat_figure(np.ones((40, 20)), signed=False, limits=(0, 1)).has_marks
    assert heat_figure(np.ones((40, 20)), signed=False).table == ()
    signed = heat_figure(values - 0.5, signed=True, limits=(-0.3, 0.3))
    below = [cell for cell in signed.cells if cell.mark and cell.colour == "#001261"]
    assert len(below) == (values - 0.5 < -0.3).sum()
    assert heat_range(values - 0.7, signed=True) == (-0.7, 0.7)
    assert heat_figure(np.full((2, 2), np.nan), signed=False).words == "no values"
    assert {cell.colour for cell in heat_figure(np.zeros((2, 2)), signed=False).cells} == {"#440154"}


def test_charts_are_plain_plotly_figures():
    from plotly.basewidget import BaseFigureWidget
    from plotly.graph_objects import Figure

    made = [
        margin_histogram([0.001, 0.02, 0.3, float("nan")], tau=0.0136),
        margin_histogram([]),
        repair_curve(k=4, n_past=648),
        drift_heatmap(trial()),
        drift_heatmap(trial(), tensor="v", measure="signed", step=0),
    ]
    for figure in made:
        assert type(figure) is Figure
        assert not isinstance(figure, BaseFigureWidget)


def test_the_histogram_splits_at_tau():
    figure = margin_histogram([0.001, 0.002, 0.02, 0.3], tau=0.0136)
    assert {bar.name: int(sum(bar.y)) for bar in figure.data} == {"over τ": 2, "under τ": 2}
    assert figure.layout.shapes[0].x0 == 0.0136


def test_the_curve_goes_through_the_point_it_marks():
    figure = repair_curve(k=4, m=256, r_base=0.05, n_past=648)
    line, here = figure.data
    assert here.y[0] == pytest.approx(53.5, abs=0.05)
    assert np.interp(648, line.x, line.y) == pytest.approx(here.y[0], abs=0.1)
    with pytest.raises(CurveError):
        repair_curve(k=1)


def test_a_heatmap_of_what_was_not_measured_is_refused():
    with pytest.raises(TrialError, match="no frames"):
        drift_heatmap(trial(measured=False))
    with pytest.raises(TrialError, match="no step"):
        drift_heatmap(trial(), step=9)
    figure = drift_heatmap(trial())
    assert np.asarray(figure.data[0].z).shape == (3, 30)


def test_a_splice_op_in_the_table_says_how_far_its_keys_turned():
    program = CacheProgram().append(range(100)).then(Splice("b", tuple(range(10)), 21))
    cells = OpBook().cells(program, Breakpoints())
    assert cells[1].detail == "positions 100 to 109; keys rotated by 79 from anchor 21"


def test_operations_are_told_anew_where_the_program_is_another():
    book, on = OpBook(), Breakpoints()
    first = CacheProgram().append(range(10)).append(range(5))
    longer = first.drop((2, 4)).repos()
    other = CacheProgram(first.ops[:1]).append(range(7))
    for program in (first, longer, first, other, CacheProgram(), longer):
        cells = book.cells(program, on)
        assert [cell.state_id for cell in cells] == [prefix.id for prefix in program.prefixes()][1:]
        assert [cell.parent_id for cell in cells] == [None, *(cell.state_id for cell in cells[:-1])][
            : len(cells)
        ]
        assert [cell.logical for cell in cells] == [len(p.layout) for p in program.prefixes()][1:]
