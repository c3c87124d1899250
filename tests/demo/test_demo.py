"""The demonstration, end to end: real servers, the real model, a bundle and a report."""

from __future__ import annotations

import pytest

from nexus_lab.agent import TurnOutcome
from nexus_lab.demo.requests import DEMO_REQUESTS
from nexus_lab.demo.run import run_demo
from nexus_lab.demo.servers import missing_servers
from nexus_lab.demo.table import splice_lines, turn_table
from nexus_lab.errors import NexusError
from nexus_lab.trace import read_session

pytestmark = [pytest.mark.model, pytest.mark.servers]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    if missing_servers():
        pytest.skip("the demo's servers are not installed: run nexus-lab demo --setup")
    lines: list[str] = []
    return run_demo(tmp_path_factory.mktemp("demo") / "out", progress=lines.append)


def test_every_request_gets_a_turn(run):
    assert [step.request for step in run.steps] == list(DEMO_REQUESTS)
    assert all(step.turn.outcome in (TurnOutcome.CALLED, TurnOutcome.ABSTAINED) for step in run.steps)


def test_real_servers_answered(run):
    def said(tool):
        return " ".join(step.turn.result.text for step in run.steps if step.turn.tool == tool)

    assert "America/New_York" in said("convert_time")
    assert "products" in said("list_tables")


def test_the_splice_is_measured_beside_its_floor(run):
    (row,) = [step.turn.splice for step in run.steps if step.turn.splice]
    assert row.path == "repaired"
    assert row.n_past > 100
    assert 0 <= row.dkl < 1
    assert row.noise_floor > 0
    assert row.n_positions > 5
    assert row.ttft_s > 0
    assert row.prefill_s > 0
    assert len(splice_lines(row)) == 4


def test_the_shadow_is_no_part_of_the_time_to_first_token(run):
    (turn,) = [step.turn for step in run.steps if step.turn.splice]
    assert turn.ttft_s * 1e3 < turn.times_ms["total"] - turn.times_ms["shadow"]


def test_the_session_holds_what_happened(run):
    session = read_session(run.session)
    turns = session.turns.collect()
    assert turns.height == len(run.steps)
    assert turns["request"].to_list() == [step.turn.request for step in run.steps]
    assert session.fidelity.collect()["dkl"].drop_nulls().len() == 1
    assert session.routing.collect().height == len(run.steps)


def test_the_report_is_one_file_that_names_every_request(run):
    html = run.report.read_text(encoding="utf-8")
    assert all(step.turn.request.split()[0] in html for step in run.steps)
    assert "Content-Security-Policy" in html


def test_the_table_shows_untrusted_text_without_control(run):
    from rich.console import Console

    console = Console(width=140, record=True, file=open("/dev/null", "w"))  # noqa: PTH123, SIM115
    console.print(turn_table(run.steps))
    assert "\x1b" not in console.export_text()


def test_a_folder_with_other_files_is_left_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(NexusError, match=r"thesis\.tex"):
        run_demo(tmp_path)
    assert (tmp_path / "thesis.tex").exists()
