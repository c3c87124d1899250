"""Decisions made ahead are those that the router would make in their turn, or are not given out."""

from __future__ import annotations

import pytest

from nexus_lab.agent.ahead import DecisionsAhead
from nexus_lab.registry import Registry, ToolSpec
from nexus_lab.routing import Router
from nexus_lab.routing.embedder import load_embedder

pytestmark = pytest.mark.model

TOOLS = {
    "echo": "Say a text again",
    "list_branches": "List the branches of a git repository",
    "close_issue": "Close an issue",
}
PARTS = (
    "say hello to everybody in this room",
    "list the branches of the repository at hand",
    "close the issue of the day before yesterday",
    "close it",
)
CALLED = (
    {"role": "user", "content": "List the branches"},
    {"role": "assistant", "content": "", "tool_calls": [{"name": "list_branches", "arguments": {}}]},
)
CHANGES = {
    "nothing": lambda _router: None,
    "tau": lambda router: router.configure(tau=0.5, top_k=router.top_k),
    "top_k": lambda router: router.configure(tau=None, top_k=1),
    "an example": lambda router: router.add_example("close it", "echo"),
    "a tool": lambda router: router.add_tool(ToolSpec("shut", "Shut an issue or a pull request", {})),
}


@pytest.fixture(scope="module")
def embedder():
    return load_embedder("bundled", threads=1)


@pytest.fixture
def router(embedder):
    tools = [ToolSpec(name, text, {"type": "object"}) for name, text in TOOLS.items()]
    return Router(Registry.of(tools, name="t"), embedder, store=False, known=False, cross_encoder=None)


def facts(decision):
    return decision.tool, decision.outcome, decision.candidates, decision.margin, decision.fit, decision.tau


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("later", [(), CALLED])
def test_what_is_given_out_is_what_would_be_decided(router, change, later):
    ahead = DecisionsAhead()
    for part in PARTS:
        ahead.make(router, part, ())
    CHANGES[change](router)
    taken = {part: ahead.take(router, part, later) for part in PARTS}
    for part, decision in taken.items():
        if decision is not None:
            assert facts(decision) == facts(router.route(part, later)), part
    given = {part for part, decision in taken.items() if decision is not None}
    alone = {PARTS[1], PARTS[2]}
    if change == "nothing":
        assert given == (set(PARTS) if not later else alone)
    else:
        assert given == set()


def test_a_decision_is_given_out_once_and_forgotten_when_told(router):
    ahead = DecisionsAhead()
    ahead.make(router, PARTS[0], ())
    assert ahead.take(router, PARTS[0], ()) is not None
    assert ahead.take(router, PARTS[0], ()) is None
    ahead.make(router, PARTS[0], ())
    ahead.clear()
    assert ahead.take(router, PARTS[0], ()) is None
