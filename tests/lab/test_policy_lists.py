"""The policies that the panels offer."""

from __future__ import annotations

import pytest

from nexus_lab.lab import agent_panel, cache_panel
from nexus_lab.lab.desk import Desk
from nexus_lab.lab.fork import profile_changes
from nexus_lab.settings import Profile, SettingsError, save_profile

CODE = "python(function=policies.py:mine)"


def test_every_offered_policy_is_one_that_a_profile_takes():
    assert {"summarise", "trim", "agent", "drop_both"} <= set(cache_panel.POLICIES)
    assert "rolling_drop_repos" not in agent_panel.POLICIES  # a switch of its own there
    for name in {*cache_panel.POLICIES, *agent_panel.POLICIES}:
        assert Profile().changed(**profile_changes({"policy": name}, Profile())).policy


def test_code_in_the_settings_of_a_view_is_refused_unless_the_profile_names_it(files_desk):
    with pytest.raises(SettingsError, match="runs code"):
        profile_changes({"policy": CODE}, Profile())
    with pytest.raises(SettingsError, match="runs code"):
        profile_changes({"policy": CODE.replace("mine", "yours")}, Profile(policy=CODE))
    assert profile_changes({"policy": CODE}, Profile(policy=CODE))["policy"] == CODE
    agent = files_desk.panels["agent"]
    with pytest.raises(SettingsError, match="runs code"):
        agent.apply({"policy": CODE})
    assert files_desk.profile.policy == "full"
    files_desk.change_profile(policy=CODE)
    assert agent.apply({"policy": CODE, "top_k": 3})["policy"] == CODE


def test_a_stored_profile_whose_policy_is_code_says_so(nexus_home):  # noqa: ARG001 - not the user's own home
    save_profile(Profile(name="mine", policy=CODE))
    with Desk(profile="mine") as desk:
        assert CODE.split("=")[1].rstrip(")") in desk.parts(["bar"])["bar"]["notice"]["text"]
