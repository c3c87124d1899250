"""The workbench as a user meets it: a real JupyterLab, real servers, the real model, a real browser.

The tests of this module share one session and go through it in order, as one sitting does: opening the quick
start takes longer than all that is looked at afterwards.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import lab_server as lab
import pytest
from lab_server import LONG_MS
from playwright.sync_api import Page, expect
from waiting import eventually

pytestmark = [pytest.mark.browser, pytest.mark.model, pytest.mark.servers]

QUICK_START = "01_quick_start.ipynb"


@pytest.fixture(scope="module")
def notebook(server) -> str:
    """A copy of the quick start."""
    return lab.copy_notebook(QUICK_START, server)


@pytest.fixture
def view(page):
    """The workbench in the second code cell, in sight, whatever an earlier test has opened."""
    lab.execute(page, "docmanager:open", path=QUICK_START)
    root = page.locator(".nl[data-theme]:not(.nl-status)").first
    root.wait_for(timeout=LONG_MS)
    root.scroll_into_view_if_needed()
    return root


def open_panel(view, name: str):
    view.get_by_role("tab", name=re.compile(f"^{name}")).click()
    panel = view.get_by_role("tabpanel", name=re.compile(f"^{name}"))
    expect(panel).to_be_visible()
    return panel


def wait_idle(view) -> None:
    expect(view.locator("header.bar")).to_contain_text("idle", timeout=LONG_MS)


def send(view, text: str):
    agent = open_panel(view, "Agent")
    agent.get_by_label("Message").fill(text)
    agent.get_by_role("button", name="Send").click()
    return agent


# -- the quick start ---------------------------------------------------------------------------------------


def test_run_all_shows_the_workbench(page: Page, view, server):
    expect(view.get_by_role("tablist", name="Workbench panels")).to_be_visible(timeout=LONG_MS)
    page.wait_for_function(
        """() => {
            const prompts = [...document.querySelectorAll(".jp-CodeCell .jp-InputPrompt")];
            return prompts.length > 5 && prompts.every(prompt => /\\[\\d+\\]/.test(prompt.textContent));
        }""",
        timeout=LONG_MS,
    )
    assert page.locator(".jp-RenderedText[data-mime-type='application/vnd.jupyter.error']").count() == 0
    expect(view.locator("header.bar")).to_contain_text("SmolLM2-135M-Instruct")
    wait_idle(view)
    assert {"quick_start.html", "quick_start.nexus.json"} <= {path.name for path in server.root.iterdir()}


def test_the_turns_of_the_notebook_are_in_the_view(view):
    agent = open_panel(view, "Agent")
    expect(agent).to_contain_text("What time is it in Tokyo right now?")
    expect(agent).to_contain_text("Call convert_time on time")
    routing = open_panel(view, "Routing")
    expect(routing.get_by_role("grid", name="Decisions, newest first")).to_contain_text("convert_time")


def test_the_side_panel_follows_the_kernel(page: Page):
    lab.execute(page, "nexus-lab:show-status")
    panel = page.get_by_role("region", name="Workbench status")
    expect(panel).to_contain_text("SmolLM2-135M-Instruct", timeout=60_000)
    expect(panel).to_contain_text("convert_time")
    expect(panel.get_by_role("status")).to_contain_text("idle")
    # The styles of the workbench in the same page leave it as wide as its place.
    room, needed = panel.evaluate(
        "root => [root.closest('.lm-Widget').clientWidth, root.getBoundingClientRect().width]"
    )
    assert needed <= room
    page.evaluate("() => window.jupyterapp.shell.collapseRight()")


# -- loading a registry ------------------------------------------------------------------------------------


def test_a_registry_can_be_loaded(view, server):
    tools = [
        {
            "name": "read_ledger",
            "description": "Read entries of the <b>ledger</b>",
            "inputSchema": {"type": "object", "properties": {"year": {"type": "integer"}}},
        }
    ]
    (server.root / "ledger.json").write_text(json.dumps({"tools": tools}))
    registry = open_panel(view, "Registry")
    rows = registry.get_by_role("grid").first.locator("tbody tr")
    # Also after the parts that came since, with the token counts and without the rows.
    expect(rows.first).to_be_visible()
    registry.get_by_label("From").select_option(label="Tool list or OpenAPI file")
    registry.get_by_label("Path").fill("ledger.json")
    registry.get_by_role("button", name=re.compile("^(Read|Load)")).first.click()
    row = registry.get_by_role("row").filter(has_text="read_ledger")
    expect(row).to_be_visible(timeout=60_000)
    row.click()
    expect(registry).to_contain_text("Read entries of the <b>ledger</b>")
    wait_idle(view)


# -- routing: tau and K ------------------------------------------------------------------------------------


def test_a_request_is_routed_without_running_anything(view):
    routing = open_panel(view, "Routing")
    decisions = routing.get_by_role("grid", name="Decisions, newest first").locator("tbody tr")
    candidates = routing.get_by_role("table", name="Candidates")
    for request, tool in (
        ("Undo what is staged.", "git_reset"),
        ("Which branches does ./inventory have?", "git_branch"),
        ("What time is it in Lima?", "get_current_time"),
    ):
        routing.get_by_label("Request", exact=True).fill(request)
        routing.get_by_role("button", name="Route", exact=True).click()
        # Not by their count: on a busy machine those of earlier turns may still be on their way.
        expect(decisions.first).to_contain_text(request, timeout=60_000)
        expect(candidates).to_contain_text(tool)
        expect(candidates.locator("tr.sel .matched")).not_to_be_empty()
    expect(view.locator("header.bar")).to_contain_text("idle")


def share(routing) -> str:
    return routing.get_by_role("table", name=re.compile("Recorded decisions at tau")).inner_text()


def test_tau_moves_by_key_and_the_share_follows(page: Page, view):
    routing = open_panel(view, "Routing")
    handle = routing.get_by_role("slider", name="tau, margin threshold")
    before, words = share(routing), handle.get_attribute("aria-valuetext")
    handle.focus()
    for _ in range(40):
        page.keyboard.press("PageUp")
    expect(handle).not_to_have_attribute("aria-valuetext", words)
    assert share(routing) != before
    value = float(handle.get_attribute("aria-valuenow"))
    page.keyboard.press("ArrowLeft")
    assert float(handle.get_attribute("aria-valuenow")) == pytest.approx(value - 0.0002, abs=1e-6)
    expect(view.get_by_role("status").last).to_contain_text("would escalate")


def test_apply_holds_from_the_next_turn(view):
    routing = open_panel(view, "Routing")
    handle = routing.get_by_role("slider", name="tau, margin threshold")
    tau = float(handle.get_attribute("aria-valuenow"))
    routing.get_by_role("button", name=re.compile(f"^Apply .*{tau:.4f}")).click()
    expect(routing).to_contain_text(f"in use: {tau:.4f}")
    agent = send(view, "What time is it in Paris right now?")
    expect(agent).to_contain_text("What time is it in Paris right now?", timeout=LONG_MS)
    expect(agent).to_contain_text(f"τ = {tau:.4f}", timeout=LONG_MS)
    wait_idle(view)
    taken = agent.locator("details.turn").last.locator("mark")
    expect(taken).to_have_text("Paris")
    expect(taken).to_have_attribute("title", re.compile("timezone$"))
    expect(agent.locator("details.turn").last).to_contain_text("timezone said in the request")


def test_k_moves_by_key(page: Page, view):
    slider = open_panel(view, "Splice").get_by_role("slider", name="K", exact=True)
    before = slider.input_value()
    slider.focus()
    page.keyboard.press("ArrowRight")
    assert slider.input_value() != before


def test_k_moves_and_the_curve_follows(view):
    splice = open_panel(view, "Splice")
    curve = splice.get_by_role("img", name=re.compile("R of n_past"))
    before, drawn = curve.get_attribute("aria-label"), curve.screenshot()
    splice.get_by_role("slider", name="K", exact=True).fill("6")
    expect(curve).not_to_have_attribute("aria-label", before)
    expect(curve).to_have_attribute("aria-label", re.compile("for K 6"))
    assert curve.screenshot() != drawn


def test_a_splice_is_tried_and_its_heatmap_steps(page: Page, view):
    splice = open_panel(view, "Splice")
    depth = splice.get_by_label("Depth, n_past")
    depth.fill("256")
    depth.press("Enter")
    splice.get_by_role("combobox", name="Compiled behind").select_option("typical")
    splice.get_by_role("combobox", name="Repair").select_option("profile")
    splice.get_by_role("button", name="Run splice").click()
    heatmap = splice.get_by_role("application", name=re.compile("^Drift by layer"))
    expect(heatmap).to_be_visible(timeout=LONG_MS)
    wait_idle(view)
    expect(splice.get_by_role("group", name="Result")).to_contain_text("nats")
    expect(
        splice.get_by_text(re.compile("^Path A: spliced; profile repair of .* in one pass"))
    ).to_be_visible()
    expect(splice.get_by_role("img", name=re.compile("^Sensitivity of each of"))).to_be_visible()
    steps = splice.get_by_role("group", name="Steps of the splice").get_by_role("button")
    steps.last.click()
    page.wait_for_timeout(500)
    last, words = heatmap.screenshot(), heatmap.get_attribute("aria-label")
    steps.first.click()
    expect(heatmap).not_to_have_attribute("aria-label", words)
    eventually(lambda: heatmap.screenshot() != last)
    words = heatmap.get_attribute("aria-label")
    heatmap.focus()
    page.keyboard.press("ArrowRight")
    expect(heatmap).not_to_have_attribute("aria-label", words)


# -- the cache ---------------------------------------------------------------------------------------------


def position(cache) -> tuple[int, int]:
    words = cache.get_by_text(re.compile(r"^op [\d,]+ of [\d,]+$")).first.inner_text()
    here, total = re.findall(r"[\d,]+", words)
    return int(here.replace(",", "")), int(total.replace(",", ""))


def test_the_cache_steps_back_and_forward(view):
    cache = open_panel(view, "Cache")
    here, total = position(cache)
    assert here == total > 10
    cache.get_by_role("button", name="Step back").click()
    expect(cache).to_contain_text(f"op {total - 1} of {total}", timeout=60_000)
    cache.get_by_role("button", name="Step back").click()
    expect(cache).to_contain_text(f"op {total - 2} of {total}", timeout=60_000)
    cache.get_by_role("button", name="Step forward").click()
    expect(cache).to_contain_text(f"op {total - 1} of {total}", timeout=60_000)
    cache.get_by_role("button", name="Last op").click()
    expect(cache).to_contain_text(f"op {total} of {total}", timeout=60_000)


def test_commands_reach_the_view_with_the_focus(page: Page, view):
    cache = open_panel(view, "Cache")
    here, total = position(cache)
    cache.get_by_role("button", name="Step back").focus()
    view.evaluate(
        """root => {
            window.heard = [];
            root.addEventListener("nexus-lab:command", event => window.heard.push(event.detail.command));
        }"""
    )
    for command in ("stop", "step-forward", "step-back", "next-decision", "compare"):
        lab.execute(page, f"nexus-lab:{command}")
    assert page.evaluate("() => window.heard") == [
        "stop",
        "step-forward",
        "step-back",
        "next-decision",
        "compare",
    ]
    # What they asked for ends here, so that the next test begins where the cursor stays.
    back = min(here + 1, total) - 1
    expect(open_panel(view, "Cache")).to_contain_text(f"op {back} of {total}", timeout=60_000)


def test_the_palette_steps(page: Page, view):
    cache = open_panel(view, "Cache")
    here, total = position(cache)
    lab.execute(page, "nexus-lab:step-back")
    expect(cache).to_contain_text(f"op {here - 1} of {total}", timeout=60_000)
    lab.execute(page, "nexus-lab:step-forward")
    expect(cache).to_contain_text(f"op {here} of {total}", timeout=60_000)


def test_a_fork_is_a_run_of_its_own(view):
    cache = open_panel(view, "Cache")
    _, total = position(cache)
    cache.get_by_role("button", name="First op").click()
    expect(cache).to_contain_text(f"op 1 of {total}", timeout=60_000)
    for _ in range(4):
        cache.get_by_role("button", name="Step forward").click()
    expect(cache).to_contain_text(f"op 5 of {total}", timeout=60_000)
    fork = cache.get_by_role("region", name=re.compile("^Fork from"))
    fork.get_by_role("combobox", name="Policy").select_option("rolling_drop_repos")
    cache.get_by_role("button", name=re.compile("^Fork as")).click()
    expect(cache).to_contain_text("run again", timeout=60_000)
    wait_idle(view)
    runs = open_panel(view, "Session").get_by_role("grid", name="Runs")
    expect(runs).to_contain_text("fork of r-001", timeout=60_000)


# -- the agent's limits ------------------------------------------------------------------------------------


def limit(agent, name: str, value: str) -> None:
    field = agent.get_by_role("spinbutton", name=name)
    if not field.is_visible():
        agent.get_by_text("More", exact=True).click()
    field.fill(value)
    field.press("Enter")


def test_a_profile_s_limits_are_set_and_hold_from_the_next_turn(view):
    """Calls of a request and seconds of a turn, both in the form, and a turn that such a limit ends."""
    wait_idle(view)
    agent = open_panel(view, "Agent")
    limit(agent, "Calls, at most", "2")
    limit(agent, "Turn, most seconds", "0.1")
    agent.get_by_role("button", name="Apply 2 changes").click()
    expect(agent.get_by_role("button", name="Apply", exact=True)).to_be_disabled()
    send(view, "What time is it in Rome right now?")
    expect(agent).to_contain_text("the turn took more than 0.1 s", timeout=LONG_MS)
    wait_idle(view)
    limit(agent, "Turn, most seconds", "")
    agent.get_by_role("button", name="Apply seconds at most unlimited").click()
    expect(agent.get_by_role("spinbutton", name="Turn, most seconds")).to_have_value("")
    expect(agent.get_by_role("spinbutton", name="Calls, at most")).to_have_value("2")


# -- stopping ----------------------------------------------------------------------------------------------


def test_stop_ends_a_long_prefill(view):
    wait_idle(view)
    words = " ".join(f"line {number} of the inventory list is spades and rakes." for number in range(130))
    agent = send(view, f"Translate this into French: {words}")
    bar = view.locator("header.bar")
    expect(bar).to_contain_text("prefill", timeout=LONG_MS)
    agent.get_by_role("button", name=re.compile("^Stop")).click()
    expect(bar).to_contain_text("idle", timeout=LONG_MS)
    expect(agent).to_contain_text("stopped")


# -- the record --------------------------------------------------------------------------------------------


def export(view, label: str) -> Path:
    """Export the run that is chosen, and return the file; its size is told before."""
    session = open_panel(view, "Session")
    session.get_by_role("radio", name=re.compile(label)).check()
    expect(session.get_by_text("an estimate")).to_be_visible(timeout=60_000)
    session.get_by_role("button", name="Export", exact=True).click()
    told = session.get_by_role("status").filter(has_text="written")
    expect(told).to_be_visible(timeout=60_000)
    path = Path(told.locator("code").inner_text()).expanduser()
    assert path.is_absolute()
    return path


def test_the_html_export_opens_by_itself(page: Page, view):
    path = export(view, "HTML")
    other = page.context.new_page()
    asked: list[str] = []
    other.on("request", lambda request: asked.append(request.url))
    other.goto(path.as_uri())
    expect(other.locator("body")).to_contain_text("get_current_time")
    assert asked == [path.as_uri()]
    other.close()


def test_the_trace_file_opens_in_the_viewer(page: Page, view, server):
    path = export(view, "Single-file trace")
    copy = server.root / "exported.nexus.json"
    copy.write_bytes(path.read_bytes())
    lab.execute(page, "docmanager:open", path=copy.name)
    viewer = page.locator(".nl-trace")
    spans = viewer.get_by_role("tab", name=re.compile("^Spans"))
    expect(spans).to_be_visible()
    spans.click()
    grid = viewer.get_by_role("grid", name="Spans")
    # A fork begins with the operations that it shares, and then asks its turns again.
    viewer.get_by_label("Filter").fill("turn ")
    expect(grid.get_by_role("row").nth(1)).to_contain_text(re.compile(r"turn \d"))
    viewer.get_by_label("Filter").fill("retrieval")
    expect(grid.get_by_role("row").nth(1)).to_contain_text("retrieval")
    expect(page.locator(".jp-mod-current .jp-Toolbar-kernelName")).to_have_count(0)
    lab.assert_accessible(page, ".nl-trace")


# -- themes and access -------------------------------------------------------------------------------------


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_no_serious_fault_for_those_who_need_access(page: Page, view, theme):
    name = f"JupyterLab {theme.title()}"
    lab.execute(page, "apputils:change-theme", theme=name)
    expect(view).to_have_attribute("data-theme", theme)
    for panel in ("Models", "Registry", "Routing", "Cache", "Splice", "Agent", "Session"):
        open_panel(view, panel)
        lab.assert_accessible(page, ".jp-OutputArea-output .nl")


def test_the_ground_follows_the_theme(page: Page, view):
    def ground() -> str:
        return view.evaluate("element => getComputedStyle(element).backgroundColor")

    lab.execute(page, "apputils:change-theme", theme="JupyterLab Dark")
    expect(view).to_have_attribute("data-theme", "dark")
    dark = ground()
    lab.execute(page, "apputils:change-theme", theme="JupyterLab Light")
    expect(view).to_have_attribute("data-theme", "light")
    assert (ground(), dark) == ("rgb(255, 255, 255)", "rgb(17, 17, 17)")


def test_nothing_complained(complaints):
    assert complaints == []
