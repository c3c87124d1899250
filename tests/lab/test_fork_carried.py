"""A repair that carried says so in every record, also in that of a run that only shares it."""

from __future__ import annotations

import pytest
from told_tools import ask, settle, told_desk

from nexus_lab.agent.conversation import op_note
from nexus_lab.cache import Append, Repair
from nexus_lab.trace import read_session


@pytest.mark.parametrize(
    ("op", "note", "told"),
    [
        (Repair((1, 2), carry=True), "shared", "shared, carried repair"),
        (Repair((1, 2), carry=True), "rewind", "rewind, carried repair"),
        (Repair((1, 2), carry=True), "carried repair", "carried repair"),
        (Repair((1, 2), carry=True), "", "carried repair"),
        (Repair((1, 2)), "shared", "shared"),
        (Append((1, 2)), "shared", "shared"),
    ],
)
def test_the_note_of_a_repair_that_carries_says_so(op, note, told):
    assert op_note(op, note) == told


@pytest.mark.model
@pytest.mark.usefixtures("nexus_home")
@pytest.mark.parametrize("repair", ["carried", "leading"])
def test_a_fork_s_record_tells_which_repairs_carried(bundled_engine, tmp_path, repair):
    settings = {"schema_mode": "splice(fixed)", "repair": repair, "repair_budget": 0.5}
    with told_desk(bundled_engine, tmp_path, **settings) as desk:
        ask(desk)
        ask(desk, "Say hello again")
        panel = desk.panels["cache"]
        assert panel.fork(len(panel.ops), {})["run"] == "r-002"
        settle(desk)
    ops = read_session(tmp_path / "here.nexus").ops.collect()
    notes = ops.filter((ops["run"] == "r-002") & (ops["op"] == "repair"))["note"].to_list()
    assert notes == ["shared, carried repair" if repair == "carried" else "shared"] * 2
