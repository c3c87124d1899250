"""What earlier calls of a tool, and the likelihood of whole calls, say about the values of another."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nexus_lab.arguments.assign import assignments, plain_units
from nexus_lab.arguments.demonstrations import Demonstration
from nexus_lab.arguments.evidence import NOTHING
from nexus_lab.arguments.grounding import choices_of
from nexus_lab.arguments.scoring import Scoring, best_calls, weigh
from nexus_lab.registry import ToolSpec

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

TOOL = ToolSpec(
    "branch",
    "Make a branch.",
    {
        "type": "object",
        "properties": {
            "ref": {"type": "string"},
            "mode": {"enum": ["soft", "hard"]},
            "count": {"type": "integer"},
        },
        "required": ["ref", "mode"],
    },
)
SHOWN = [
    Demonstration("Make it from v1.2", {"ref": "v1.2", "mode": "hard"}),
    Demonstration("Again from v1.3 please", {"ref": "v1.3", "mode": "hard"}),
]


def features(
    request: str, demonstrations: Sequence[Demonstration]
) -> dict[str, dict[Any, Mapping[str, float]]]:
    choices, _ = choices_of(TOOL, request, weights={}, demonstrations=demonstrations)
    return {
        one.argument.name: {each.value: each.features for each in one.candidates if each.value is not NOTHING}
        | {None: one.candidates[0].features}
        for one in choices
    }


def test_a_value_like_the_ones_before_is_marked_as_such():
    found = features("Make it from v1.4 now", SHOWN)
    alike, other = found["ref"]["v1.4"], found["ref"]["now"]
    assert alike["demo|kinds"] > other["demo|kinds"]
    assert alike["demo|link"] == 1.0
    assert other["demo|link"] == 0.0
    assert alike["demo|shape"] == 1.0


def test_listed_values_that_were_right_before_are_marked():
    found = features("Make it from v1.4", SHOWN)
    assert found["mode"]["hard"]["demo|same|option"] == 1.0
    assert found["mode"]["hard"]["demo|nearest|option"] == 1.0
    assert found["mode"]["soft"]["demo|same|option"] == 0.0


def test_what_was_left_out_before_speaks_for_leaving_out():
    found = features("Make it from v1.4", SHOWN)
    assert found["count"][None]["demo|absent|opt"] == 1.0
    assert found["ref"][None]["demo|absent|req"] == 0.0


def test_without_demonstrations_nothing_changes():
    found = features("Make it from v1.4", ())
    assert not any(
        name.startswith("demo") for one in found.values() for each in one.values() for name in each
    )


def test_a_close_decision_is_made_by_likelihood():
    choices, spans = choices_of(TOOL, "Make it from v1.4 or v1.5", weights={})
    calls = best_calls(choices, assignments(choices, plain_units(spans)), most=4)
    assert len({one.text for one in calls}) == len(calls) == 4
    wanted = calls[2].text

    def scorer(_tool: Any, _request: Any, _context: Any, texts: Sequence[str]) -> list[float]:
        return [0.0 if text == wanted else -50.0 for text in texts]

    scoring = Scoring(likelihood=1.0, lead=100.0)
    weighed = weigh(TOOL, "", (), calls, scorer=scorer, scoring=scoring)
    assert (weighed.chosen, weighed.calls[2]) == (2, wanted)
    assert weighed.likelihoods == (-50.0, -50.0, 0.0, -50.0)
    assert weigh(TOOL, "", (), calls, scorer=scorer, scoring=Scoring(lead=100.0)).chosen == 0
    assert weigh(TOOL, "", (), calls, scorer=lambda *_: [], scoring=scoring) is None


def test_a_clear_decision_asks_no_model():
    choices, spans = choices_of(TOOL, "Make it from v1.4", weights={})
    calls = best_calls(choices, assignments(choices, plain_units(spans)), most=2)

    def scorer(*_args: Any) -> list[float]:
        raise AssertionError

    assert weigh(TOOL, "", (), calls, scorer=scorer, scoring=Scoring(lead=0.0)) is None
