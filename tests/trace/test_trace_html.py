"""The report is one file that trusts nobody, leaves nothing out silently, and stays small."""

from __future__ import annotations

import base64
import hashlib
import re
import time
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise

import polars as pl
import pytest
import session_story as story
import session_teller as telling
from conftest import record

from nexus_lab.agent.base import EventKind, OpKind
from nexus_lab.trace import SessionRecorder, read_session
from nexus_lab.trace.exporters.tables import write_bundle
from nexus_lab.trace.report import Limits, render_html
from nexus_lab.trace.report.figures import heatmap, strip, viridis
from nexus_lab.trace.report.programs import Segment, TokenState, fold_tokens, programs
from nexus_lab.trace.selection import select
from nexus_lab.trace.text import clip, count, duration, nats, number, ratio, size, visible


class Page(HTMLParser):
    """The page as a parser sees it: elements with their attributes, and the text outside script and style."""

    VOID = frozenset({"meta", "br", "wbr", "input", "col", "rect", "line", "circle", "path"})

    def __init__(self, text):
        super().__init__()
        self.elements, self.words, self._stack, self.balanced = [], [], [], True
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        if tag not in self.VOID:
            self._stack.append(tag)

    def handle_endtag(self, tag):
        if tag in self.VOID:
            return
        if not self._stack or self._stack.pop() != tag:
            self.balanced = False

    def handle_data(self, data):
        if self._stack and self._stack[-1] not in ("script", "style"):
            self.words.append(data)

    @property
    def text(self):
        return " ".join(" ".join(self.words).split())

    def all(self, tag):
        return [attributes for name, attributes in self.elements if name == tag]


@pytest.fixture(scope="module")
def html(session):
    return render_html(select(session, contents=True))


@pytest.fixture(scope="module")
def page(html):
    return Page(html)


def test_the_page_is_well_formed(page):
    assert page.balanced
    assert len({item["id"] for _, item in page.elements if "id" in item}) == sum(
        "id" in item for _, item in page.elements
    )


def test_nothing_in_the_page_points_outside(page):
    for tag, attributes in page.elements:
        assert tag not in {"link", "img", "iframe", "object", "embed", "base", "form", "audio", "video"}
        for name in ("src", "href", "action", "data", "srcset", "poster", "xlink:href", "ping"):
            assert attributes.get(name, "#").startswith("#")
        assert not [name for name in attributes if name.startswith("on") or name == "style"]


def test_the_content_policy_allows_this_style_and_this_script_only(html, page):
    policy = next(
        item["content"] for item in page.all("meta") if item.get("http-equiv") == "Content-Security-Policy"
    )
    assert policy.startswith("default-src 'none'; ")
    assert "unsafe" not in policy
    for tag in ("style", "script"):
        (body,) = re.findall(rf"<{tag}>(.*?)</{tag}>", html, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(body.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy
        assert not re.search(r"url\((?!#)|@import|innerHTML|insertAdjacentHTML|document\.write|eval\(", body)


def test_hostile_text_is_text(html, page):
    assert len(page.all("script")) == 1
    assert not page.all("img")
    assert "<script>document.title='owned'</script>" in page.text
    assert "\u202e" not in html
    assert "⟨U+202E⟩evil" in page.text


@pytest.mark.parametrize("field", ["name", "tool", "note", "block", "reason"])
def test_hostile_text_is_text_wherever_it_comes_from(tmp_path, field):
    """Names of sessions, tools, blocks and notes are others' words too."""
    with SessionRecorder(
        tmp_path / "plain", model={"name": telling.HOSTILE}, settings={telling.HOSTILE: telling.HOSTILE}
    ) as recorder:
        story.tell_story(recorder, through=4)
        recorder.describe(note=telling.HOSTILE)
    selection = select(read_session(recorder.path))
    tables = dict(selection.tables)
    column = {
        "name": ("events", "name"),
        "tool": ("turns", "tool"),
        "note": ("ops", "note"),
        "block": ("fidelity", "block"),
        "reason": ("routing", "reason"),
    }[field]
    tables[column[0]] = tables[column[0]].with_columns(pl.lit(telling.HOSTILE).alias(column[1]))
    page = Page(render_html(replace(selection, tables=tables)))
    assert len(page.all("script")) == 1
    assert not page.all("img")
    assert page.balanced
    assert "document.title='owned'" in page.text


def test_what_the_model_made_of_the_candidates_stands_beside_the_other_scores(session, page):
    assert "Model, nats" not in page.text, "nothing was tried in this session"
    selection = select(session)
    tried = pl.element().struct.with_fields(
        sidecar=pl.when(pl.element().struct.field("tool") != "issue_read").then(-0.25)
    )
    routing = selection.tables["routing"].with_columns(pl.col("candidates").list.eval(tried))
    text = Page(render_html(replace(selection, tables={**selection.tables, "routing": routing}))).text
    assert "Cross-enc. Model, nats Score" in text
    assert "-0.25" in text.replace("\u2212", "-")


def test_every_section_says_what_the_session_says(page):
    text = page.text
    for words in (
        "Session ticket-triage",
        "Close 482 as a duplicate of 467.",
        "0.0086 τ 0.0136",
        "escalation unavailable",
        "no tool fits",
        "× ServerTimeout calendar did not answer on_call within 10 s",
        "5 Repos 527 tokens next 1,390 → 527 re-packed 5.20 ms",
        "4 Drop −863 tokens 2 ranges keep 1 response",
        "3 Append +983 tokens at 407–1,389 turn 1 result, turn 2 user, find_duplicate schema, turn 3 result",
        "9 ops in 13 steps",
        "1,069 active of 1,932 logical tokens, 863 dropped; next position 1,069",
        "splice declined: find_duplicate turn 3, 96 tokens at n_past 1,146, block find_duplicate.atb",
        "The block was compiled by another tokenizer. Instead: prefilled 96 tokens, 240 ms.",
        "1.58× floor",
        "3.80× faster",
        "exactly the prefill",
        "108 of 431 tokens",
        "30 layers × 3 KV heads",
        "sha256 b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        "Contents included",
    ):
        assert words in text


def test_without_contents_the_report_says_so_and_holds_none(session):
    text = Page(render_html(select(session))).text
    assert "Message contents are not in this report" in text
    assert "Contents not included" in text
    for word in ("brightloom", "postcode", telling.LEAKED):
        assert word not in text


def test_the_page_is_one_for_assistive_technology(page):
    tags = [tag for tag, _ in page.elements]
    assert tags.count("main") == tags.count("header") == tags.count("nav") == tags.count("footer") == 1
    assert tags.count("h1") == 1
    levels = [int(tag[1]) for tag in tags if re.fullmatch(r"h[1-6]", tag)]
    assert all(after <= before + 1 for before, after in pairwise(levels))
    for attributes in page.all("th"):
        assert attributes.get("scope") in ("col", "row")
    for attributes in page.all("svg"):
        assert (
            attributes.get("aria-hidden") == "true"
            or attributes.get("aria-label")
            or "beyond" in attributes.get("class", "")
        )
    ids = {attributes["id"] for _, attributes in page.elements if "id" in attributes}
    for name in ("href", "aria-labelledby", "for"):
        assert all(item[name].lstrip("#") in ids for _, item in page.elements if name in item)


def _luminance(colour):
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (
        part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def _contrast(left, right):
    low, high = sorted((_luminance(left), _luminance(right)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", [0, 1])
@pytest.mark.parametrize(
    ("token", "least"),
    [
        ("text", 7),
        ("muted", 4.5),
        ("ok", 4.5),
        ("warn", 4.5),
        ("bad", 4.5),
        ("accent", 3),
        ("ink", 3),
        ("op-append", 3),
        ("op-splice", 3),
        ("op-repair", 3),
        ("op-repos", 3),
        ("edge", 3),
    ],
)
def test_colours_can_be_told_apart_in_both_themes(html, theme, token, least):
    colours = {name: pair for name, *pair in re.findall(r"--([a-z-]+): light-dark\((#\w+), (#\w+)\);", html)}
    for ground in ("bg", "inset"):
        assert _contrast(colours[token][theme], colours[ground][theme]) >= least


# Size


def test_a_long_session_shows_the_first_and_says_how_many_there_are(tmp_path):
    with SessionRecorder(tmp_path / "long", contents=True, redactor=None) as recorder:
        story.tell_long(recorder, events=600)
    selection = select(read_session(recorder.path), contents=True)
    limits = Limits(turns=7, spans_per_turn=3, ops=5, splices=2, problems=4, drift_frames=1, text=100)
    text = Page(render_html(selection, limits=limits)).text
    turns = selection.tables["turns"].height
    assert f"Showing first 7 of {turns} turns." in text
    assert "Showing first 3 of 11 spans of this turn." in text
    assert "Showing first 5 of 9 ops." in text
    assert f"Showing first 2 of {selection.tables['fidelity'].height} splices." in text
    assert "declines and errors." in text
    assert "more characters)" in text
    assert text.count("K drift, relative") <= 1


@pytest.fixture(scope="module")
def endless(session, tmp_path_factory):
    """The story told over and over: 100,056 events, made by repeating its tables."""
    times = 1516
    tables = {}
    for name, lazy in session.tables.items():
        frame = lazy.collect()
        again = frame.join(pl.DataFrame({"again": range(times)}), how="cross", maintain_order="right_left")
        ids = [key for key in ("id", "parent", "event") if key in frame.columns]
        tables[name] = again.with_columns(
            *(pl.col(key) + pl.col("again") * 66 for key in ids), turn=pl.col("turn") + pl.col("again") * 6
        ).select(frame.columns)
    selection = replace(select(session, contents=True), tables=tables)
    out = tmp_path_factory.mktemp("endless") / "endless.nexus"
    write_bundle(selection, out)
    return read_session(out)


def test_a_session_of_100_000_events_exports_soon_and_small(endless, tmp_path):
    start = time.process_time()
    path = endless.export("html", tmp_path / "endless.html", contents=True)
    assert time.process_time() - start < 30
    assert path.stat().st_size < 5_000_000
    text = path.read_text()
    assert "Showing first 200 of 9,096 turns." in text
    assert "100,056 events" in text
    assert "Showing first 100 of 4,548 declines and errors." in text


def test_a_text_without_end_is_cut_with_its_length(tmp_path):
    with SessionRecorder(tmp_path / "flood", contents=True, redactor=None) as recorder:
        teller = telling.Teller(recorder)
        with teller.span(EventKind.TURN, "turn 1", turn=1, contents={"request": "x" * 300_000}):
            teller.wait(1)
    path = read_session(recorder.path).export("html", tmp_path / "flood.html", contents=True)
    assert path.stat().st_size < 200_000
    assert "296,000 more characters" in path.read_text()


def test_sessions_of_several_runs_and_recovered_ones_render(tmp_path):
    path = record(tmp_path / "runs", through=2)
    recorder = SessionRecorder(path, append=True)
    teller = telling.Teller(recorder, last=1000)
    with teller.span(EventKind.TURN, "turn 1", turn=1, end=False):
        teller.wait(4)
    recorder._journal.close()
    recorder._lock.release()
    page = Page(render_html(select(read_session(path))))
    assert page.balanced
    assert "r-001 to r-002" in page.text
    assert "! recovered" in page.text
    assert "1 span was open when the process ended" in page.text
    assert "unfinished" in page.text


# Programs and figures


def _op(number, op, tokens, ranges=(), positions=(), *, parent="same", run="r-001"):
    return {
        "run": run,
        "op": op,
        "state_id": f"s{number}",
        "parent_state_id": (f"s{number - 1}" if number > 1 else None) if parent == "same" else parent,
        "tokens": tokens,
        "ranges": [{"start": start, "stop": stop} for start, stop in ranges],
        "positions": [{"start": start, "stop": stop} for start, stop in positions],
    }


def test_forks_share_their_first_ops():
    rows = [
        _op(1, OpKind.APPEND, 4),
        _op(2, OpKind.APPEND, 4),
        _op(3, OpKind.DROP, 2),
        _op(4, OpKind.APPEND, 1, parent="s2"),
        _op(1, OpKind.APPEND, 1, run="r-002"),
    ]
    found = programs(rows)
    assert [(program.run, [row["state_id"] for row in program.ops], program.shared) for program in found] == [
        ("r-001", ["s1", "s2", "s3"], 0),
        ("r-001", ["s1", "s2", "s4"], 2),
        ("r-002", ["s1"], 0),
    ]


def test_ops_in_a_circle_do_not_hang():
    assert programs([_op(1, OpKind.APPEND, 1, parent="s2"), _op(2, OpKind.APPEND, 1)]) == []
    rows = [_op(1, OpKind.APPEND, 1, parent="s2"), _op(2, OpKind.APPEND, 1), _op(3, OpKind.APPEND, 1)]
    assert [len(program.ops) for program in programs(rows)] == [3]


def test_tokens_fold_to_states_and_positions():
    ops = [
        _op(1, OpKind.APPEND, 10, [(0, 10)], [(0, 10)]),
        _op(2, OpKind.SPLICE, 10, [(10, 20)], [(10, 20)]),
        _op(3, OpKind.REPAIR, 4, [(10, 12), (15, 17)], [(10, 12), (15, 17)]),
        _op(4, OpKind.DROP, 8, [(4, 12)]),
        _op(5, OpKind.REPOS, 12, [(0, 4), (12, 20)], [(0, 12)]),
        _op(6, OpKind.APPEND, 5, [(20, 25)], [(12, 17)]),
    ]
    assert fold_tokens(ops) == [
        Segment(0, 4, TokenState.COMPUTED, 0),
        Segment(4, 12, TokenState.DROPPED, 4),
        Segment(12, 15, TokenState.SPLICED, 4),
        Segment(15, 17, TokenState.REPAIRED, 7),
        Segment(17, 20, TokenState.SPLICED, 9),
        Segment(20, 25, TokenState.COMPUTED, 12),
    ]


def test_programs_that_only_append_are_told_in_a_line(tmp_path):
    with SessionRecorder(tmp_path / "plain") as recorder:
        teller = telling.Teller(recorder)
        cache = telling.Cache()
        teller.step(EventKind.CACHE_OP, "append", 5, cache.add(20, note="system"))
        teller.step(EventKind.CACHE_OP, "append", 7, cache.add(1, note="user"))
        block = "3fa9c21b" * 8
        other = telling.Cache(count=cache.count, state="s00")
        teller.step(EventKind.CACHE_OP, "splice", 3, other.add(9, OpKind.SPLICE, block=block, anchored=True))
    text = Page(render_html(select(read_session(recorder.path)))).text
    assert "Programs that only append" in text
    assert "1 r-001 21 – 2 12.0 ms system, user" in text
    assert "Cache program 2 run r-001, 1 op in 1 step" in text
    assert "3fa9c21b3fa9…, anchored" in text
    assert block not in text


def test_the_strip_covers_all_tokens_and_says_them_in_words():
    figure = strip([Segment(0, 50, TokenState.COMPUTED, 0), Segment(50, 100, TokenState.DROPPED, 50)])
    assert [(piece.start, piece.width) for piece in figure.pieces] == [("0%", "50%"), ("50%", "50%")]
    assert figure.words == "computed 50, dropped 50"
    assert strip([]) is None


def test_the_heatmap_marks_what_has_no_value_and_what_is_above():
    values = {(layer, head): 0.01 * layer for layer in range(60) for head in range(2)}
    values |= {(3, 1): float("nan"), (4, 1): None, (9, 0): 9.0}
    figure = heatmap(values)
    cells = {(cell.x, cell.y): cell for cell in figure.cells}
    assert cells[3, 1].colour == cells[4, 1].colour == ""
    assert cells[9, 0].above
    assert cells[0, 0].colour == "#440154"
    assert cells[0, 0].above is False
    assert figure.words == "median 0.31, largest 9 at layer 9, head 0; 2 without a value"
    assert heatmap({(0, 0): None}).words == "no values"
    assert (viridis(0), viridis(1), viridis(-3), viridis(7)) == ("440154", "fde725", "440154", "fde725")


@pytest.mark.parametrize(
    ("nanoseconds", "text"),
    [
        (None, "–"),
        (0, "0"),
        (12, "12 ns"),
        (17_600, "17.6 µs"),
        (999_600, "1.00 ms"),
        (284e6, "284 ms"),
        (3.478e9, "3.48 s"),
        (119e9, "119 s"),
        (125e9, "2 min 05 s"),
        (float("nan"), "–"),
    ],
)
def test_lengths_of_time(nanoseconds, text):
    assert duration(nanoseconds) == text


def test_numbers_have_units_signs_and_bounds():
    assert (number(-0.5), number(None), number(float("inf")), number(float("nan"))) == (
        "−0.5000",
        "–",
        "∞",
        "–",
    )
    assert (nats(0), nats(0.0082), nats(3.14e-6), nats(None)) == ("0", "0.0082", "3.1e−6", "–")
    assert (count(1234567), count(-2), count(None)) == ("1,234,567", "−2", "–")
    assert (ratio(1.078, 0.284), ratio(1, 0), ratio(517, 1)) == ("3.80×", "–", "517×")
    assert (size(98_114_240), size(12), size(None)) == ("93.6 MiB", "12 bytes", "–")
    assert clip("abcdef", 4) == "abcd… (2 more characters)"
    assert visible("a\x00b\u202ec\td\n") == "a⟨U+0000⟩b⟨U+202E⟩c\td\n"
