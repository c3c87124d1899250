"""What the Cache panel draws, as a user meets it: real JupyterLab, servers, model and browser.

One session of three turns under a rolling drop; the tests go through it in order.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import lab_server as lab
import nbformat
import pytest
from lab_server import LONG_MS
from playwright.sync_api import Page, expect

from nexus_lab.bench.base import Result, ResultFile

pytestmark = [pytest.mark.browser, pytest.mark.model, pytest.mark.servers]

NOTEBOOK = "04_cache_engineering.ipynb"
DRAWINGS = (
    "Op tree",
    "Where the rows are",
    "Restore",
    "Policy: knobs and exact cost",
    "Pareto front of policies",
    "Attention by role and age",
)
POLICIES = (
    ("full", 1.20, 5200.0),
    ("trim(keep_last=1)", 1.27, 4100.0),
    ("rolling_drop(keep_last=1)", 1.24, 3100.0),
)
LOOKED = (
    ("sink", "any", 0.30, 39.0),
    ("user", "0", 0.10, 0.9),
    ("tool", "1", 0.05, 0.4),
    ("reply", "2", 0.02, 0.2),
)


def write_notebook(folder: Path) -> str:
    """Write the notebook's first cells, up to the workbench; returns its name."""
    kept = nbformat.read(Path(__file__).parents[2] / "notebooks" / NOTEBOOK, as_version=4)
    cells = [cell.source for cell in kept.cells if cell.cell_type == "code"]
    upto = cells.index("wb") + 1
    made = nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_code_cell(text) for text in cells[:upto]], metadata=kept.metadata
    )
    nbformat.write(made, folder / "cache.ipynb")
    return "cache.ipynb"


def write_files(folder: Path) -> None:
    """Write a trajectory, the results of a replay and of an attention study."""
    talk = [
        {"role": "user", "content": "To Milan, please."},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"name": "find", "arguments": {"to": "Milan"}}],
        },
        {"role": "tool", "content": "EC 317 leaves 09:33, 67.50; EC 319 leaves 11:33, 49.00; " * 8},
        {"role": "assistant", "content": "The EC 319 at 11:33."},
        {"role": "user", "content": "Thank you."},
        {"role": "assistant", "content": "You are welcome."},
    ]
    rows = [{"id": name, "messages": talk} for name in ("to the south", "<b>to the north</b>")]
    (folder / "talks.jsonl").write_text("\n".join(map(json.dumps, rows)))
    results = [
        Result(case={"policy": policy}, metric=metric, value=value, low=0.95 * value, high=1.05 * value, n=20)
        for policy, nll, cost in POLICIES
        for metric, value in (("nll_per_token", nll), ("cost", cost))
    ]
    write_results(folder / "front.json", "eval cache", results, {})
    looked = [
        Result(
            case={"role": role, "age": age}, metric=metric, value=value, low=value / 2, high=value * 2, n=12
        )
        for role, age, share, lift in LOOKED
        for metric, value in (("attention_share", share), ("attention_lift", lift))
    ]
    write_results(folder / "attention.json", "eval attention", looked, {"model": "SmolLM2-135M-Instruct"})


def write_results(path: Path, name: str, results: list[Result], settings: dict[str, str]) -> None:
    ResultFile(
        name=name, created="", versions={}, machine={}, settings=settings, results=tuple(results)
    ).write(path)


@pytest.fixture(scope="module")
def notebook(server) -> str:
    """The notebook's first cells, beside the files that they and the panel read."""
    write_files(server.root)
    return write_notebook(server.root)


@pytest.fixture
def cache(page):
    root = page.locator(".nl[data-theme]:not(.nl-status)").first
    root.wait_for(timeout=LONG_MS)
    panel = root.get_by_role("region", name="Cache", exact=True)
    expect(panel.get_by_text(re.compile(r"^op \d+ of \d+$")).first).to_be_visible(timeout=LONG_MS)
    expect(root.locator("header.bar")).to_contain_text("idle", timeout=LONG_MS)
    return panel


def box(cache, title: str):
    found = cache.get_by_role("region", name=title, exact=True)
    found.scroll_into_view_if_needed()
    return found


def total(cache) -> int:
    words = cache.get_by_text(re.compile(r"^op \d+ of \d+$")).first.inner_text()
    return int(words.split()[-1])


def commit(field, text: str) -> None:
    # The box may be drawn anew while the panel's first parts arrive; what is sent is what stands in it.
    field.fill(text)
    expect(field).to_have_value(text)
    field.press("Enter")


# -- tree and memories -------------------------------------------------------------------------------------


def test_all_drawings_are_there(cache):
    for title in DRAWINGS:
        expect(box(cache, title).locator(".dr")).to_be_visible()
        expect(box(cache, title).get_by_role("alert")).to_have_count(0)


def test_the_tree_says_where_each_node_is(cache):
    tree = box(cache, "Op tree")
    drawn = tree.get_by_role("group", name=re.compile(r"^Op tree: \d+ programs? in \d+ nodes"))
    nodes = drawn.get_by_role("button")
    assert nodes.count() == total(cache)
    names = [node.locator("title").first.text_content() for node in nodes.all()]
    assert any(name.startswith(f"op {total(cache)}: ") and "the cursor stands here" in name for name in names)
    assert any("drop" in name for name in names)
    assert any("repos" in name for name in names)
    assert all("on a live sequence" in name or "host snapshot" in name for name in names)
    expect(drawn.locator(".dr-tag-live").first).to_have_text("L")
    expect(drawn.locator(".dr-tag-host").first).to_have_text("H")
    tree.locator("summary").press("Enter")
    expect(tree.get_by_role("table", name="Nodes of the op tree").locator("tbody tr").first).to_be_visible()


def test_a_node_is_chosen_by_key_and_its_restore_is_planned(page: Page, cache):
    node = box(cache, "Op tree").get_by_role("button", name=re.compile("^op 3: "))
    node.focus()
    page.keyboard.press("Enter")
    restore = box(cache, "Restore")
    expect(restore).to_contain_text(f"Op 3 of {total(cache)}, from what is kept now")
    expect(restore).to_contain_text("if nothing were kept")
    expect(restore.get_by_role("combobox", name="State behind")).to_have_value("3")
    expect(node).to_have_attribute("aria-pressed", "true")
    assert node.evaluate("element => element === document.activeElement")


def test_limits_and_counters_are_shown(cache):
    rows = box(cache, "Where the rows are")
    for name in ("KV cells", "snapshot arena", "disk"):
        expect(rows.get_by_role("img", name=re.compile(f"^{name}: .* of .*%"))).to_be_visible()
    expect(rows).to_contain_text("only you may read them")
    expect(rows.get_by_role("table", name="Counters of the cache")).to_contain_text(
        "chunks of rows that went"
    )


# -- restore -----------------------------------------------------------------------------------------------


def test_a_state_is_brought_back_and_what_it_took_is_told(cache):
    n = total(cache)
    restore = box(cache, "Restore")
    restore.get_by_role("combobox", name="State behind").select_option("4")
    expect(restore).to_contain_text(f"Op 4 of {n}")
    restore.get_by_role("button", name="Bring it back").click()
    expect(cache).to_contain_text(f"op 4 of {n}")
    expect(restore.get_by_role("status")).to_contain_text("0 tokens computed")
    tree = box(cache, "Op tree")
    expect(tree.get_by_role("button", name=re.compile("^op 4: .*the cursor stands here"))).to_be_visible()
    cache.get_by_role("button", name="Last op").click()
    expect(cache).to_contain_text(f"op {n} of {n}")


def test_a_restore_from_nothing_is_tried_beside_the_conversation(cache):
    n = total(cache)
    restore = box(cache, "Restore")
    restore.get_by_role("combobox", name="State behind").select_option(str(n))
    restore.get_by_role("button", name="Try from nothing").click()
    expect(restore).to_contain_text(
        re.compile(r"Tried: op \d+ from nothing, .* at once .* step by step"), timeout=LONG_MS
    )
    expect(cache).to_contain_text(f"op {n} of {n}")


# -- policy ------------------------------------------------------------------------------------------------


def test_knobs_change_the_exact_cost_at_once(cache):
    policy = box(cache, "Policy: knobs and exact cost")
    costs = policy.get_by_role("table", name="Exact costs of this session")
    expect(costs).to_contain_text("rolling_drop_repos(keep_last=1), forgotten for good")
    prefilled = costs.get_by_role("row", name=re.compile("^tokens prefilled"))
    before = prefilled.inner_text()
    policy.get_by_role("combobox", name="Policy", exact=True).select_option("trim")
    expect(policy.locator("code").first).to_have_text(re.compile("^trim"))
    knob = policy.get_by_role("spinbutton", name=re.compile("^keep_last"))
    commit(knob, "0")
    expect(policy.locator("code").first).to_have_text("trim(keep_last=0)")
    expect(prefilled).not_to_have_text(before)
    expect(prefilled).to_contain_text("×)")
    assert knob.evaluate("element => element === document.activeElement")
    commit(knob, "2.5")
    expect(policy).to_contain_text("choose a whole number of at least 0")


def test_what_asks_the_model_is_not_counted_and_says_why(cache):
    policy = box(cache, "Policy: knobs and exact cost")
    policy.get_by_role("combobox", name="Policy", exact=True).select_option("summarise")
    expect(policy).to_contain_text("depends on what the model says")
    policy.get_by_role("combobox", name="Policy", exact=True).select_option("drop_both")
    expect(policy.get_by_role("combobox", name=re.compile("^scope"))).to_have_value("calls")
    policy.get_by_role("checkbox", name=re.compile("re-pack positions")).uncheck()
    expect(policy.locator("code").first).to_contain_text("repos=no")


def test_a_trajectory_is_counted_too(cache):
    policy = box(cache, "Policy: knobs and exact cost")
    policy.get_by_role("combobox", name="Policy", exact=True).select_option("rolling_drop")
    policy.get_by_role("combobox", name="Counted on").select_option("file")
    commit(policy.get_by_role("textbox", name="File", exact=True), "missing.jsonl")
    expect(policy).to_contain_text("cannot be read")
    commit(policy.get_by_role("textbox", name="File", exact=True), "talks.jsonl")
    expect(policy.get_by_role("table", name="Exact costs of to the south")).to_be_visible()
    policy.get_by_role("combobox", name="Conversation", exact=True).select_option("<b>to the north</b>")
    expect(policy.get_by_role("table", name="Exact costs of <b>to the north</b>")).to_be_visible()
    policy.get_by_role("combobox", name="Counted on").select_option("session")


def test_the_caveat_stands_there_with_the_price_of_true_forgetting(cache):
    policy = box(cache, "Policy: knobs and exact cost")
    expect(policy).to_contain_text("A drop does not undo what the dropped tokens already did")
    expect(
        policy.get_by_role("button", name=re.compile(r"^Forget for good: prefill \d+ tokens"))
    ).to_be_visible()


# -- front and attention -----------------------------------------------------------------------------------


def test_a_front_is_drawn_from_a_result_file(cache):
    front = box(cache, "Pareto front of policies")
    commit(front.get_by_role("textbox", name="Result file or folder"), "front.json")
    drawn = front.get_by_role("img", name=re.compile("^NLL against cost. 2 of 3 policies on the front"))
    expect(drawn).to_be_visible()
    expect(drawn.locator(".dr-interval")).to_have_count(6)
    expect(front.get_by_role("table", name="Policies, the front first")).to_contain_text("[4,940, 5,460]")


def test_a_policy_of_the_front_goes_into_the_knobs_and_into_use(cache):
    box(cache, "Pareto front of policies").get_by_role(
        "button", name="Load rolling_drop(keep_last=1)"
    ).click()
    policy = box(cache, "Policy: knobs and exact cost")
    expect(policy.locator("code").first).to_have_text("rolling_drop(keep_last=1)")
    expect(policy.get_by_role("spinbutton", name=re.compile("^keep_last"))).to_have_value("1")
    policy.get_by_role("button", name="Use from the next turn").click()
    expect(policy).to_contain_text("rolling_drop(keep_last=1), in use")


def test_attention_is_drawn_from_a_result_file(cache):
    attention = box(cache, "Attention by role and age")
    commit(attention.get_by_role("textbox", name="Result file of the study"), "front.json")
    expect(attention).to_contain_text("holds no attention")
    commit(attention.get_by_role("textbox", name="Result file of the study"), "attention.json")
    drawn = attention.get_by_role("img", name=re.compile("^Share of attention by role and age"))
    expect(drawn).to_be_visible()
    expect(drawn.locator("text", has_text="10.0 %")).to_have_count(1)
    expect(attention).to_contain_text("SmolLM2-135M-Instruct")


# -- forgetting, themes, access ----------------------------------------------------------------------------


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_no_serious_fault_for_those_who_need_access(page: Page, cache, theme):
    lab.execute(page, "apputils:change-theme", theme=f"JupyterLab {theme.title()}")
    expect(page.locator(".nl-workbench").first).to_have_attribute("data-theme", theme)
    expect(cache).to_be_visible()
    lab.assert_accessible(page, ".jp-OutputArea-output .nl")


def test_what_was_dropped_is_forgotten_for_good(cache):
    policy = box(cache, "Policy: knobs and exact cost")
    button = policy.get_by_role("button", name=re.compile("^Forget for good"))
    button.click()
    expect(policy).to_contain_text("In the live conversation nothing is dropped.")
    expect(cache).to_contain_text("op 1 of 1")
    expect(box(cache, "Restore").get_by_role("status")).to_contain_text("op 1 from")


def test_nothing_complained(complaints):
    assert complaints == []
