"""The policies that the panels offer."""

from __future__ import annotations

from nexus_lab.lab import agent_panel, cache_panel
from nexus_lab.lab.fork import profile_changes
from nexus_lab.settings import Profile


def test_every_offered_policy_is_one_that_a_profile_takes():
    assert {"summarise", "trim", "agent", "drop_both"} <= set(cache_panel.POLICIES)
    assert "rolling_drop_repos" not in agent_panel.POLICIES  # a switch of its own there
    for name in {*cache_panel.POLICIES, *agent_panel.POLICIES}:
        assert Profile().changed(**profile_changes({"policy": name})).policy
