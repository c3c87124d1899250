"""Contracts: how they are read, and what repair each leads to."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from measured import calibration_of

from nexus_lab.errors import Decline
from nexus_lab.settings import Profile
from nexus_lab.splice import calibration as calibration_module
from nexus_lab.splice.base import RepairKind, RepairPlan
from nexus_lab.splice.calibration import (
    Calibration,
    CalibrationCell,
    CalibrationError,
    CalibrationSample,
    least_samples,
    load_calibration,
    save_calibration,
)
from nexus_lab.splice.contracts import (
    Bounded,
    ContractError,
    Exact,
    Fixed,
    Paper,
    choose,
    parse_contract,
)
from nexus_lab.splice.strategies import Leading


def _calibration() -> Calibration:
    return calibration_of({256: {0.0: 0.08, 0.1: 0.02, 0.25: 0.01}, 1024: {0.0: 0.12, 0.1: 0.05, 0.25: 0.02}})


@pytest.mark.parametrize("mode", ["splice(exact)", "splice(bounded(0.02))", "splice(paper)", "splice(fixed)"])
def test_every_mode_that_a_profile_accepts_is_read_and_written_back(mode: str):
    profile = Profile(schema_mode=mode, k=6, m=128, r_base=0.2)
    contract = parse_contract(profile.schema_mode, profile)
    assert f"splice({contract})" == mode
    if mode == "splice(paper)":
        assert contract == Paper(6, 128, 0.2)


def test_fixed_takes_the_negative_control_too():
    profile = Profile(schema_mode="splice(fixed)", repair="scattered", repair_budget=0.5)
    contract = parse_contract(profile.schema_mode, profile)
    choice = choose(contract, n_tokens=8, n_past=900, anchored=False)
    assert choice.plan == RepairPlan(RepairKind.SCATTERED, 8, (0, 2, 4, 6))


def test_modes_without_a_splice_have_no_contract():
    assert parse_contract("signature") is None
    assert parse_contract("full") is None


@pytest.mark.parametrize(
    "mode",
    ["splice()", "splice(bounded)", "splice(bounded(0))", "splice(bounded(nan))", "splice(bounded(x))", ""],
)
def test_other_texts_are_refused(mode: str):
    with pytest.raises(ContractError):
        parse_contract(mode)


def test_exact_splices_only_behind_the_same_tokens():
    anchored = choose(Exact(), n_tokens=200, n_past=64, anchored=True)
    assert (anchored.plan.kind, anchored.declined) == (RepairKind.NONE, None)
    elsewhere = choose(Exact(), n_tokens=200, n_past=64, anchored=False)
    assert elsewhere.plan.kind is RepairKind.FULL
    assert elsewhere.declined is not None
    assert elsewhere.declined.code == "not_anchored"


def test_fixed_repairs_as_the_profile_says_wherever_the_block_lands():
    contract = parse_contract("splice(fixed)", Profile(schema_mode="splice(fixed)", repair_budget=0.5))
    assert contract == Fixed(Leading(0.5))
    for anchored in (True, False):
        choice = choose(contract, n_tokens=200, n_past=64, anchored=anchored)
        assert (choice.plan.kind, choice.plan.count, choice.declined) == (RepairKind.LEADING, 100, None)


def test_paper_repairs_the_suffix_wherever_the_block_lands():
    for anchored in (True, False):
        choice = choose(Paper(k=4), n_tokens=200, n_past=640, anchored=anchored)
        assert (choice.plan.kind, choice.plan.count) == (RepairKind.TRAILING, 105)


@pytest.mark.parametrize(
    ("epsilon", "n_past", "count"),
    [(0.2, 256, 0), (0.1, 256, 0), (0.05, 256, 20), (0.05, 700, 20), (0.02, 256, 20), (0.02, 257, 50)],
)
def test_bounded_takes_the_smallest_budget_that_holds_on_both_sides(epsilon: float, n_past: int, count: int):
    choice = choose(Bounded(epsilon), n_tokens=200, n_past=n_past, anchored=False, calibration=_calibration())
    assert (choice.plan.count, choice.declined) == (count, None)


@pytest.mark.parametrize(
    ("epsilon", "n_tokens", "n_past", "code"),
    [
        (0.001, 200, 512, "bound_not_reached"),
        (1.0, 200, 255, "outside_calibration"),
        (1.0, 200, 1025, "outside_calibration"),
        (1.0, 99, 512, "outside_calibration"),
        (1.0, 301, 512, "outside_calibration"),
    ],
)
def test_bounded_prefills_where_nothing_is_measured(epsilon: float, n_tokens: int, n_past: int, code: str):
    choice = choose(
        Bounded(epsilon), n_tokens=n_tokens, n_past=n_past, anchored=False, calibration=_calibration()
    )
    assert choice.plan.kind is RepairKind.FULL
    assert choice.declined is not None
    assert choice.declined.code == code


def test_bounded_without_a_calibration_prefills_and_says_so():
    choice = choose(Bounded(1.0), n_tokens=200, n_past=512, anchored=False)
    assert choice.plan.kind is RepairKind.FULL
    assert isinstance(choice.declined, Decline)
    assert choice.declined.code == "not_calibrated"
    assert choose(Bounded(1.0), n_tokens=200, n_past=512, anchored=True).plan.count == 0


def test_a_bound_does_not_speak_of_conversations_with_dropped_tokens():
    where = {"n_tokens": 200, "n_past": 512, "calibration": _calibration()}
    whole = choose(Bounded(1.0), anchored=False, **where)
    assert whole.plan.count < 200
    edited = choose(Bounded(1.0), anchored=False, whole=False, **where)
    assert edited.plan.count == 200
    assert edited.declined is not None
    assert edited.declined.code == "outside_calibration"
    assert "dropped" in edited.declined.reason
    assert choose(Bounded(1.0), anchored=True, whole=False, **where).plan.count == 0


def test_the_upper_value_is_one_that_a_further_sample_stays_under():
    cell = CalibrationCell.from_samples(256, 0.25, [value / 100 for value in range(39, 0, -1)], 0.95)
    assert (cell.dkl_upper, cell.n) == (0.38, 39)
    assert cell.dkl_mean == pytest.approx(0.2)
    assert CalibrationCell.from_samples(256, 0.25, [0.01, 0.03, 0.02], 0.75).dkl_upper == 0.03
    with pytest.raises(CalibrationError, match="18 samples") as caught:
        CalibrationCell.from_samples(256, 0.25, [0.1] * 18, 0.95)
    assert caught.value.next_step == "measure 19 at least"


def _samples(scale: float) -> list[CalibrationSample]:
    return [
        CalibrationSample(depth, 150 + 10 * number, {0.0: scale * 0.4 * depth / 512, 0.5: scale * 0.1})
        for depth in (256, 512)
        for number in range(3)
    ]


def test_samples_kept_apart_say_how_a_bound_holds():
    facts = {"fingerprint": "f", "context_hash": "c", "flash_attention": False, "strategy": "leading"}
    found = Calibration.measured(_samples(1.0), quantile=0.75, noise_floor=0.01, **facts)
    assert (found.n_tokens_min, found.n_tokens_max, len(found.cells)) == (150, 170, 4)
    with pytest.raises(CalibrationError, match="no block") as caught:
        Calibration.measured([], quantile=0.75, noise_floor=0.01, **facts)
    assert caught.value.next_step
    same = found.covered(_samples(1.0), 0.2)
    assert (same.n, same.covered, same.prefilled, same.recomputed) == (6, 6, 0, 0.25)
    worse = found.covered(_samples(1.5), 0.2)
    assert (worse.covered, worse.recomputed) == (3, 0.25), "at 256 nothing is repaired, and 0.3 > 0.2"
    never = found.covered(_samples(1.0), 0.05)
    assert (never.covered, never.prefilled, never.recomputed) == (6, 6, 1.0)
    told = replace(found, coverage=(same, worse))
    assert Calibration.from_dict(json.loads(json.dumps(told.to_dict()))) == told


def test_a_calibration_survives_its_file(nexus_home: Path):
    calibration = _calibration()
    path = save_calibration(calibration)
    assert path.is_relative_to(nexus_home)
    key = (calibration.fingerprint, calibration.context_hash)
    assert load_calibration(*key, flash_attention=False) == calibration
    assert load_calibration(*key, flash_attention=True) is None
    assert load_calibration("00" * 16, key[1], flash_attention=False) is None


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"version": 2, "cells": []}', '{"version": 1, "cells": []}']
)
def test_a_calibration_file_that_is_none_is_refused(nexus_home: Path, text: str):
    calibration = _calibration()
    save_calibration(calibration).write_text(text)
    with pytest.raises(CalibrationError, match=str(nexus_home)):
        load_calibration(calibration.fingerprint, calibration.context_hash, flash_attention=False)


def _changed(**changes: object) -> dict[str, Any]:
    return {**_calibration().to_dict(), **changes}


def _with_cells(*cells: dict[str, Any]) -> dict[str, Any]:
    values = _calibration().to_dict()
    return {**values, "cells": [*values["cells"][: len(values["cells"]) - len(cells)], *cells]}


_CELL = {"depth": 1024, "budget": 0.25, "dkl_upper": 0.02, "dkl_mean": 0.01, "n": 20}
_HELD = {"epsilon": 0.02, "n": 20, "covered": 19, "prefilled": 5, "recomputed": 0.4}


@pytest.mark.parametrize(
    ("values", "what"),
    [
        (_with_cells({**_CELL, "dkl_upper": -1.0}), "dkl_upper"),
        (_with_cells({**_CELL, "dkl_mean": float("nan")}), "dkl_mean"),
        (_with_cells({**_CELL, "budget": 1.5}), "budget"),
        (_with_cells({**_CELL, "n": 18}), "n is 18"),
        (_with_cells(_CELL, _CELL), "twice"),
        (_changed(noise_floor=-1e-4), "noise_floor"),
        (_changed(quantile=1.0), "quantile"),
        (_changed(quantile=0), "quantile"),
        (_changed(strategy="hope"), "strategy"),
        (_changed(coverage=[{**_HELD, "epsilon": "little"}]), "epsilon"),
        (_changed(coverage=[{**_HELD, "covered": 21}]), "covered"),
    ],
)
def test_a_calibration_that_contradicts_itself_is_refused(values: dict[str, Any], what: str):
    assert Calibration.from_dict(_changed(coverage=[_HELD])).coverage
    with pytest.raises(CalibrationError, match=what):
        Calibration.from_dict(values)


@pytest.mark.usefixtures("nexus_home")
def test_a_calibration_is_of_what_it_is_asked_for():
    path = save_calibration(_calibration())
    mine = _calibration()
    for changes in ({"fingerprint": "ef" * 16}, {"context_hash": f"{mine.context_hash[:16]}{'0' * 16}"}):
        save_calibration(replace(mine, **changes)).rename(path)
        with pytest.raises(CalibrationError, match=next(iter(changes))):
            load_calibration(mine.fingerprint, mine.context_hash, flash_attention=False)


def test_what_ships_says_no_more_than_was_measured():
    for path in Path(calibration_module.__file__).with_name("calibrations").glob("*.json"):
        found = Calibration.from_dict(json.loads(path.read_text(encoding="utf-8")))
        assert path.name.startswith(f"{found.fingerprint}-{found.context_hash[:16]}-")
        assert min(cell.n for cell in found.cells) >= least_samples(found.quantile)


@pytest.mark.parametrize(
    ("quantile", "needed"), [(0.5, 1), (0.75, 3), (0.8, 4), (0.9, 9), (0.95, 19), (0.99, 99)]
)
def test_a_quantile_takes_so_many_samples(quantile: float, needed: int):
    assert least_samples(quantile) == needed
    samples = [float(number) for number in range(needed)]
    assert CalibrationCell.from_samples(0, 0.0, samples, quantile).dkl_upper == needed - 1
    with pytest.raises(CalibrationError):
        CalibrationCell.from_samples(0, 0.0, samples[1:], quantile)


def test_a_budget_missing_at_one_depth_is_not_used():
    calibration = _calibration()
    holed = replace(
        calibration, cells=tuple(c for c in calibration.cells if (c.depth, c.budget) != (1024, 0.1))
    )
    assert holed.budget_for(0.05, n_tokens=200, n_past=700) == 0.25
