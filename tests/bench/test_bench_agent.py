"""The loop under threads, stops and dying servers: the demonstration's servers, each case once or twice."""

from __future__ import annotations

import pytest

from nexus_lab.bench import agent as bench
from nexus_lab.bench.base import ResultsError
from nexus_lab.demo.servers import missing_servers
from nexus_lab.demo.tools import demo_tools
from nexus_lab.registry import Registry, Toolbox


@pytest.mark.model
def test_turns_from_threads_stops_and_deaths_come_out_right(tmp_path):
    if missing_servers():
        pytest.skip("the demonstration's servers are not installed: make setup")
    told: list[str] = []
    with demo_tools("time", "git", "sqlite", folder=tmp_path) as tools:
        found = bench.run(tools, turns=6, threads=3, stops=1, deaths=1, session=3, tell=told.append)
    values = {(result.metric, result.case.get("peer", "")): result.value for result in found.results}
    assert values["same_bytes", "one thread, in the same order"] == 1
    assert 0 <= values["same_bytes", "one thread, one conversation after the other"] <= 1
    assert values["stopped_right", ""] == 1
    assert values["death_told", ""] == 1
    assert values["finished", ""] == 1
    assert values["context_full", ""] == 0
    assert 0 < values["peak_cells", ""] <= 8192
    assert "6 turns from 3 threads" in told


def test_nothing_to_do_and_other_servers_are_refused():
    nothing = Toolbox([], Registry.of([], name="none"))
    with pytest.raises(ResultsError):
        bench.run(nothing, turns=0)
    with pytest.raises(ResultsError, match="no server git"):
        bench.run(nothing)
