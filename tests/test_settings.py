"""Profiles: stored whole, and nonsense refused with its formula."""

from __future__ import annotations

from pathlib import Path

import pytest

from nexus_lab.settings import Profile, SettingsError, list_profiles, load_profile, save_profile


def test_a_profile_survives_the_round_trip(nexus_home: Path):
    stored = Profile(name="deep", k=6.5, tau=0.02, schema_mode="splice(bounded(0.02))", threads=1)
    save_profile(stored)
    assert load_profile("deep") == stored
    assert list_profiles() == ["deep"]
    assert nexus_home.exists()


def test_the_default_exists_before_it_is_stored(nexus_home: Path):
    assert load_profile() == Profile()
    assert not nexus_home.exists()


@pytest.mark.parametrize("k", [1, 1.0, 0.5, -3, float("nan"), float("inf"), "4", True])
def test_a_k_without_a_curve_is_refused_with_the_formula(k):
    with pytest.raises(SettingsError, match=r"R\(n_past\) = r_base") as caught:
        Profile(k=k)
    assert "k > 1" in caught.value.next_step


@pytest.mark.parametrize(
    "values",
    [
        {"m": 0},
        {"r_base": 1.5},
        {"tau": -0.1},
        {"top_k": 0},
        {"sidecar": "always"},
        {"schema_mode": "splice"},
        {"schema_mode": "splice(bounded(0))"},
        {"schema_mode": "splice(bounded(1e999))"},
        {"repair": "sensitive"},
        {"repair_budget": 2},
        {"policy": "forget"},
        {"keep_responses": -1},
        {"temperature": -1},
        {"max_tokens": 0},
        {"answer_tokens": 0},
        {"max_calls": 0},
        {"turn_seconds": 0},
        {"turn_seconds": "soon"},
        {"seed": -1},
        {"threads": 0},
        {"name": "../escape"},
    ],
)
def test_nonsense_is_refused_with_a_next_step(values):
    with pytest.raises(SettingsError) as caught:
        Profile().changed(**values)
    assert caught.value.next_step


def test_an_unknown_setting_names_the_known_ones():
    with pytest.raises(SettingsError, match="kay") as caught:
        Profile().changed(kay=3)
    assert "schema_mode" in caught.value.next_step


@pytest.mark.parametrize("text", ["{", "[]", '{"k": 1}', '{"kay": 3}', '"text"'])
def test_a_damaged_file_says_which(nexus_home: Path, text: str):
    path = save_profile(Profile(name="broken"))
    path.write_text(text, encoding="utf-8")
    with pytest.raises(SettingsError):
        load_profile("broken")
    assert nexus_home in path.parents


def test_a_missing_profile_lists_the_stored_ones(nexus_home: Path):
    save_profile(Profile(name="here"))
    with pytest.raises(SettingsError, match="there") as caught:
        load_profile("there")
    assert "here" in caught.value.next_step
    assert nexus_home.exists()
