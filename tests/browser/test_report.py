"""The HTML report in a real browser: quiet, readable in both themes, deaf to hostile text."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page

# The realistic session that the report shows is told by the trace room's tests.
sys.path.insert(0, str(Path(__file__).parents[1] / "trace"))

import session_story as story
import session_teller as telling

from nexus_lab.trace import Redactor, SessionRecorder, read_session

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def report(tmp_path_factory) -> Path:
    """The story's report, contents and all."""
    folder = tmp_path_factory.mktemp("report")
    facts = {"model": telling.MODEL, "settings": telling.SETTINGS, "host": telling.HOST}
    with SessionRecorder(folder / "ticket-triage", contents=True, redactor=None, **facts) as recorder:
        story.tell_story(recorder)
    session = read_session(recorder.path)
    return session.export("html", folder / "report.html", contents=True, redactor=Redactor.of(()))


class Watched:
    """A page, with everything it asked for and complained of."""

    def __init__(self, browser: Browser, report: Path, **options):
        self.context = browser.new_context(
            viewport={"width": options.pop("width", 1300), "height": 900}, **options
        )
        self.page: Page = self.context.new_page()
        self.requests: list[str] = []
        self.complaints: list[str] = []
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("console", lambda message: self.complaints.append(f"{message.type}: {message.text}"))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.goto(report.as_uri())


@pytest.fixture
def open_report(browser, report):
    opened = []

    def open_it(**options):
        opened.append(Watched(browser, report, **options))
        return opened[-1]

    yield open_it
    for watched in opened:
        watched.context.close()


def _fourth(page):
    return page.locator("tbody.turn").nth(3)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_opens_with_no_request_and_no_complaint(open_report, report, scheme):
    watched = open_report(color_scheme=scheme)
    page = watched.page
    page.locator("#toggle").click()
    for summary in page.locator("details.drift > summary").all():
        summary.click()
    page.locator("#theme").click()
    page.wait_for_load_state("networkidle")
    assert watched.requests == [report.as_uri()]
    assert watched.complaints == []
    assert page.title() == "ticket-triage: session report"


def test_the_policy_is_in_force(open_report):
    """Not only written down: the browser names the directive that refused each attempt."""
    page = open_report().page
    refused = page.evaluate(
        """async () => {
        const refused = [];
        document.addEventListener("securitypolicyviolation", event => refused.push(event.effectiveDirective));
        await fetch("https://example.invalid/").catch(() => null);
        const image = new Image();
        image.src = "https://example.invalid/x.png";
        const script = document.createElement("script");
        script.textContent = "document.title = 'ran'";
        document.body.append(image, script);
        document.body.setAttribute("onclick", "document.title = 'ran'");
        document.body.click();
        await new Promise(done => setTimeout(done, 200));
        return refused.sort();
        }"""
    )
    assert set(refused) == {"connect-src", "img-src", "script-src-attr", "script-src-elem"}
    assert page.title() == "ticket-triage: session report"


def _ground(page):
    return page.evaluate("getComputedStyle(document.body).backgroundColor")


def test_it_follows_the_scheme_and_the_switch(open_report):
    light, dark = open_report(color_scheme="light").page, open_report(color_scheme="dark").page
    assert (_ground(light), _ground(dark)) == ("rgb(255, 255, 255)", "rgb(17, 17, 17)")
    switch = light.get_by_role("button", name="Switch to the dark theme")
    switch.click()
    assert _ground(light) == "rgb(17, 17, 17)"
    light.get_by_role("button", name="Switch to the light theme").click()
    assert _ground(light) == "rgb(255, 255, 255)"


def test_a_turn_expands_by_keyboard_into_its_spans(open_report):
    turn = _fourth(open_report().page)
    spans = turn.locator("table.spans")
    assert not spans.is_visible()
    turn.locator("summary").focus()
    turn.page.keyboard.press("Enter")
    assert spans.is_visible()
    rows = spans.locator("tbody tr")
    assert rows.count() == 14
    assert "repair leading 25 %" in rows.nth(8).inner_text()
    widths = rows.locator("td.w svg rect:nth-child(2)").evaluate_all(
        "bars => bars.map(bar => bar.getBoundingClientRect().width)"
    )
    assert min(widths) >= 1.5
    assert max(widths) > 20
    tracks = rows.locator("td.w svg rect:nth-child(1)").evaluate_all(
        "bars => bars.map(bar => bar.getBoundingClientRect().right)"
    )
    ends = rows.locator("td.w svg rect:nth-child(2)").evaluate_all(
        "bars => bars.map(bar => bar.getBoundingClientRect().right)"
    )
    assert all(end <= track + 1 for end, track in zip(ends, tracks, strict=True))


def test_hostile_text_shows_as_text(open_report):
    watched = open_report()
    page = watched.page
    turn = page.locator("tbody.turn").nth(2)
    turn.locator("summary").click()
    assert "<script>document.title='owned'</script>" in turn.inner_text()
    assert page.title() == "ticket-triage: session report"
    assert page.locator("img").count() == 0
    assert page.locator("script").count() == 1
    assert "\u202e" not in page.locator("body").inner_text()


def test_expand_all_and_the_filter(open_report):
    page = open_report().page
    page.get_by_role("button", name="Expand all").click()
    assert page.locator("tbody.turn details[open]").count() == 6
    page.get_by_role("button", name="Collapse all").click()
    assert page.locator("tbody.turn details[open]").count() == 0
    page.get_by_label("Filter").fill("ServerTimeout")
    assert page.locator("tbody.turn:visible").count() == 1
    page.get_by_label("Filter").fill("no such thing")
    assert page.get_by_text("No turn matches the filter.").is_visible()
    page.get_by_label("Filter").fill("")
    assert page.locator("tbody.turn:visible").count() == 6


def test_it_works_without_javascript(open_report):
    page = open_report(java_script_enabled=False).page
    turn = _fourth(page)
    turn.locator("summary").click()
    assert turn.locator("table.spans").is_visible()
    assert not page.locator("#theme").is_visible()
    assert not page.locator("#filter").is_visible()


@pytest.mark.parametrize("width", [1300, 760, 420])
def test_nothing_is_wider_than_the_window(open_report, width):
    page = open_report(width=width).page
    page.locator("#toggle").click()
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    overlapping = page.evaluate(
        """() => [...document.querySelectorAll(".turns .main")].filter(row => {
        const cells = [...row.children].filter(cell => cell.offsetParent);
        const boxes = cells.map(cell => cell.getBoundingClientRect());
        const meet = (a, b) => a.left < b.right - 1 && b.left < a.right - 1
            && a.top < b.bottom - 1 && b.top < a.bottom - 1;
        return boxes.some((a, i) => boxes.some((b, j) => i < j && meet(a, b)));
        }).length"""
    )
    assert overlapping == 0


def test_the_status_of_each_turn_is_a_sign_and_a_word(open_report):
    page = open_report().page
    signs = page.locator("tbody.turn .c-tool .st").all_inner_texts()
    assert [" ".join(sign.split()) for sign in signs] == [
        "✓ called",
        "– abstained",
        "✓ called",
        "✓ called",
        "× failed",
        "× cancelled",
    ]


def test_it_prints_with_everything_unfolded(open_report):
    page = open_report().page
    page.emulate_media(media="print")
    assert not page.locator("nav.tabs").is_visible()
    page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    assert page.locator("details:not([open])").count() == 0
    page.evaluate("window.dispatchEvent(new Event('afterprint'))")
    assert page.locator("tbody.turn details[open]").count() == 0
    assert page.pdf().startswith(b"%PDF")
