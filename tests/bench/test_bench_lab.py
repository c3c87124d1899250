"""The workbench's bench: the long session, and what is said where something is missing."""

from __future__ import annotations

import builtins

import pytest

from nexus_lab.bench import lab
from nexus_lab.bench.base import ResultsError
from nexus_lab.bench.lab_session import record_long_session
from nexus_lab.trace import read_session


def test_the_long_session_is_a_session_like_any_other(tmp_path):
    session = read_session(record_long_session(tmp_path / "long", events=300))
    events = session.events.collect()
    assert 300 <= events.height < 330
    assert events["duration"].null_count() == 0
    turns = session.turns.collect()
    assert turns.height == session.routing.collect().height == session.fidelity.collect().height > 20
    assert session.ops.collect().height == 3 * turns.height
    assert turns["tool"].n_unique() == 8
    assert "turn 1" in session.export("html").read_text(encoding="utf-8")


def test_without_playwright_it_says_what_brings_it(monkeypatch):
    real = builtins.__import__

    def refuse(name, *rest, **options):
        if name.startswith("playwright"):
            raise ImportError(name)
        return real(name, *rest, **options)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(ResultsError) as caught, lab._chromium():
        pass
    assert "nexus_lab[test]" in caught.value.next_step


def test_without_chromium_it_says_how_to_get_one(monkeypatch):
    monkeypatch.delenv("NEXUS_CHROMIUM", raising=False)
    monkeypatch.setattr(lab.shutil, "which", lambda _name: None)
    with pytest.raises(ResultsError, match="Chromium"), lab._chromium():
        pass


def test_without_the_sources_it_wants_a_checkout(monkeypatch, tmp_path):
    monkeypatch.setattr(lab, "_FRONTEND", tmp_path)
    with pytest.raises(ResultsError) as caught:
        lab._bench_page()
    assert "checkout" in caught.value.next_step


def test_without_a_bundle_it_says_what_builds_it(monkeypatch, tmp_path):
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev" / "bench.html").write_text("<!doctype html>")
    monkeypatch.setattr(lab, "_FRONTEND", tmp_path)
    with pytest.raises(ResultsError) as caught:
        lab._bench_page()
    assert "make views" in caught.value.next_step
