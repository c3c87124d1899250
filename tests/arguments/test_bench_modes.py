"""Schema modes beside each other on the same turns."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from nexus_lab.bench import arguments as bench
from nexus_lab.bench.argument_figures import Scored
from nexus_lab.bench.argument_modes import ALL_MODES, compare_modes, context_for
from nexus_lab.bench.argument_writing import Cost, n_concatenated
from nexus_lab.bench.base import ResultsError
from nexus_lab.registry import Registry, ToolSpec, schema_text
from nexus_lab.settings import SettingsError

if TYPE_CHECKING:
    from pathlib import Path

SPLICE = "splice(exact)"


def tool(name: str, *, described: str = "") -> ToolSpec:
    properties = {
        "room": {"enum": ["kitchen", "cellar"], "description": f"Which room it is about.{described}"},
        "loud": {"type": "boolean", "description": f"Whether it is to be loud.{described}"},
    }
    schema = {"type": "object", "properties": properties, "required": ["room", "loud"]}
    return ToolSpec(name, f"Set {name} of a room.", schema)


TOOLS = Registry.of([tool("music"), tool("alarm"), tool("volume")], name="rooms")


def ran(*costs: Cost | None) -> list[Scored | None]:
    return [None if cost is None else Scored(right=(), stated=(), valid=True, cost=cost) for cost in costs]


class Words:
    """Counts words for tokens."""

    def tokenize(self, text: str, *, special: bool) -> list[str]:
        assert not special
        return text.split()


def told(results, **case):
    found = [one for one in results if case.items() <= one.case.items()]
    return {one.metric: one for one in found}


def test_each_reading_of_what_is_saved_has_a_name_of_its_own():
    found = {
        "signature": ran(Cost(ttft_s=0.5, tool_tokens=20, prefilled=20, context=120)),
        "full": ran(Cost(ttft_s=1.0, tool_tokens=80, prefilled=80, context=180)),
        SPLICE: ran(Cost(ttft_s=0.25, tool_tokens=80, prefilled=8, context=180, path="repaired")),
        "concatenated(2)": ran(
            Cost(ttft_s=4.0, warm_ttft_s=0.5, tool_tokens=400, prefilled=400, context=500)
        ),
    }
    results = compare_modes(Words(), found, TOOLS.tools, [0.5])

    def saved(mode: str, peer: str) -> list[float]:
        by = told(results, schema_mode=mode, peer=peer)
        return [by[name].value for name in ("token_saving", "prefill_saving", "context_saving")]

    assert saved("signature", "full schema") == pytest.approx([0.75, 0.75, 1 / 3])
    assert saved(SPLICE, "full schema") == pytest.approx([0.0, 0.9, 0.0])
    assert saved("signature", "2 tools in full") == pytest.approx([0.95, 0.95, 0.76])
    assert saved(SPLICE, "2 tools in full") == pytest.approx([0.8, 0.98, 0.64])
    assert told(results, schema_mode="signature", peer="full schema")["ttft_ratio"].value == 2.0
    # Who chooses the tool first has to route: 0.5 s of its own, and 0.5 s for that.
    beside = told(results, schema_mode="signature", peer="2 tools in full")
    assert (beside["ttft_ratio"].value, beside["ttft_ratio_warm"].value) == (4.0, 0.5)
    assert beside["ttft_ratio"].case["routing"] == "counted"
    own = told(results, schema_mode=SPLICE)
    assert (own["spliced"].value, own["prefilled_tokens"].value, own["ttft_ms"].value) == (1.0, 8.0, 250.0)


def test_all_tools_are_counted_in_the_place_of_the_one_where_they_are_not_run():
    (cost,) = costs = (Cost(tool_tokens=10, prefilled=10, context=30),)
    results = compare_modes(Words(), {"signature": ran(*costs)}, TOOLS.tools, None)
    n_all = sum(len(schema_text(one).split()) for one in TOOLS)
    by = told(results, peer="3 tools in full")
    assert by["token_saving"].value == by["prefill_saving"].value == pytest.approx(1 - 10 / n_all)
    assert by["context_saving"].value == pytest.approx(1 - cost.context / (cost.context - 10 + n_all))


def test_what_does_not_fit_is_told_and_left_out_of_the_pairs():
    found = {
        "full": ran(*[Cost(ttft_s=1.0, tool_tokens=10, prefilled=10, context=20)] * 2),
        "concatenated(3)": ran(
            Cost(ttft_s=3.0, warm_ttft_s=1.0, tool_tokens=100, prefilled=100, context=110), None
        ),
    }
    results = compare_modes(Words(), found, TOOLS.tools, None)
    fits = told(results, schema_mode="concatenated(3)")["fits"]
    assert (fits.value, fits.n) == (0.5, 2)
    beside = told(results, schema_mode="full", peer="3 tools in full")
    assert (beside["ttft_ratio"].value, beside["ttft_ratio"].n) == (3.0, 1)
    assert beside["ttft_ratio"].case["routing"] == "left out"
    none = {"full": found["full"], "concatenated(3)": ran(None, None)}
    left = compare_modes(Words(), none, TOOLS.tools, None)
    assert told(left, schema_mode="concatenated(3)").keys() == {"fits"}
    assert not told(left, peer="3 tools in full").keys() & {"ttft_ratio"}


def test_modes_are_read_by_their_names():
    assert [n_concatenated(mode) for mode in ALL_MODES] == [None] * (len(ALL_MODES) - 1) + [10]
    assert [n_concatenated(text) for text in ("concatenated()", "concatenated(-1)", "full")] == [None] * 3
    assert context_for(("signature", "full")) < context_for(ALL_MODES)


@pytest.mark.model
@pytest.mark.usefixtures("nexus_home")
def test_the_same_turns_run_in_every_mode(tmp_path: Path, bundled_engine):
    rows = [
        {
            "query": "Make the kitchen loud",
            "gold_tool": "volume",
            "gold_args": {"room": "kitchen", "loud": True},
        },
        {
            "query": "Make the cellar loud",
            "gold_tool": "alarm",
            "gold_args": {"room": "cellar", "loud": True},
        },
    ]
    cases = tmp_path / "cases.jsonl"
    cases.write_text("\n".join(map(json.dumps, rows)))
    modes = ("signature", "full", SPLICE, "concatenated(2)")
    steps: list[tuple[int, int]] = []
    found = bench.run(
        bundled_engine, TOOLS, cases, modes=modes, on_progress=lambda done, n: steps.append((done, n))
    )
    assert steps == [(done, 8) for done in range(8)]
    assert bundled_engine.used_cells() == 0
    for mode in modes:
        own = told(found.results, schema_mode=mode, part="all")
        assert own["json_valid"].value == 1.0, mode
        assert own["args_right"].n == 4
        gain = told(found.results, schema_mode=mode, part="all", peer="full schema")
        assert ("args_right_gain" in gain) is (mode != "full")
    full, spliced = told(found.results, schema_mode="full"), told(found.results, schema_mode=SPLICE)
    both = told(found.results, schema_mode="concatenated(2)")
    assert both["fits"].value == 1.0
    # A block directly behind the system prompt is spliced whole, and nothing of it is computed.
    assert (spliced["spliced"].value, spliced["prefilled_tokens"].value) == (1.0, 0.0)
    assert spliced["tool_tokens"].value == full["tool_tokens"].value == full["prefilled_tokens"].value
    assert told(found.results, schema_mode=SPLICE, peer="full schema")["prefill_saving"].value == 1.0
    assert both["tool_tokens"].value > 1.5 * full["tool_tokens"].value


@pytest.mark.model
@pytest.mark.parametrize(
    ("mode", "error"),
    [
        ("concatenated(9)", ResultsError),
        ("concatenated(1)", ResultsError),
        ("splice(somehow)", SettingsError),
    ],
)
def test_a_mode_that_cannot_be_is_refused(tmp_path: Path, bundled_engine, mode, error):
    cases = tmp_path / "cases.jsonl"
    cases.write_text(json.dumps({"query": "Loud!", "gold_tool": "volume", "gold_args": {}}))
    with pytest.raises(error) as caught:
        bench.run(bundled_engine, TOOLS, cases, modes=[mode])
    assert caught.value.next_step
