"""What an agent left on disk is where a later one begins."""

from __future__ import annotations

import pytest

from nexus_lab.agent import EventKind
from nexus_lab.cache import SnapshotDisk

pytestmark = pytest.mark.model


class Prefills:
    """How many tokens each prefill found there already."""

    def __init__(self) -> None:
        self.reused = []

    def on_event(self, event) -> None:
        if event.kind is EventKind.PREFILL and event.duration_ns is not None:
            self.reused.append(event.attributes.get("reused"))


def test_an_agent_begins_with_what_another_left_on_disk(make_agent, tmp_path):
    with SnapshotDisk(tmp_path / "disk") as disk:
        agent = make_agent("hello", disk=disk)
        first = agent.ask("Say hello")
        agent.close()
        assert len(disk) > 0
    with SnapshotDisk(tmp_path / "disk") as disk:
        heard = Prefills()
        agent = make_agent("hello", disk=disk, observers=[heard])
        again = agent.ask("Say hello")
        assert disk.counters()["read"] > 0
    assert heard.reused[0] > 0
    assert again.arguments == first.arguments
