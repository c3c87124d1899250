"""A search for policies: who proposes them, what becomes of the trials, and how it goes on after a kill."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import httpx2
import pytest
from typer.testing import CliRunner

from nexus_lab.bench import policy_search
from nexus_lab.bench.base import ResultsError
from nexus_lab.bench.cache_replay import PAST_TRAINING
from nexus_lab.bench.policy_proposers import (
    SEARCHED,
    BadAnswer,
    EndpointWriter,
    LocalWriter,
    ModelProposer,
    OptunaProposer,
    ProposerError,
    Trial,
    front_of,
)
from nexus_lab.bench.policy_search import FAILED, NO_POLICY, REPEATS, search_policies
from nexus_lab.bench.trajectories import Trajectory
from nexus_lab.cli import search
from nexus_lab.errors import NexusError
from nexus_lab.policy_text import PolicySpec, parse_policies, parse_policy

TALK = Trajectory(
    "talk", ({"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hello to you."})
)


def trial(number, policy, nll, cost):
    return Trial(
        number=number, policy=policy, proposer="given", nll=nll, cost=cost, declined=int(nll is None)
    )


PAST = [
    trial(0, "full", 1.0, 100.0),
    trial(1, "rolling_drop_repos", 1.1, 60.0),
    trial(2, "trim(keep_last=4)", 1.05, 200.0),
    trial(3, "drop_both", None, None),
    trial(4, "rolling_drop(keep_last=0)", 1.2, 50.0),
]


def test_the_front_is_what_nothing_beats():
    assert [item.number for item in front_of(PAST)] == [4, 1, 0]
    assert front_of([PAST[3]]) == []


def test_optuna_proposes_policies_of_the_form_that_others_read():
    proposer = OptunaProposer(("rolling_drop_repos", "drop_both"), seed=3)
    spec, _ = proposer.propose(PAST)
    assert spec.name in {"rolling_drop_repos", "drop_both"}
    assert parse_policy(spec.text).text == spec.text
    assert proposer.propose(PAST)[0] == spec  # from the trials alone
    assert len({proposer.propose(PAST, attempt=n)[0].text for n in range(6)}) > 1


def test_optuna_learns_from_what_was_tried():
    past = [
        trial(n, f"rolling_drop_repos(keep_last={n % 7},keep_head={n})", 1 + (n % 7), 10 + (n % 7))
        for n in range(40)
    ]
    proposer = OptunaProposer(("rolling_drop_repos",))
    chosen = [proposer.propose(past, attempt=n)[0].options["keep_last"] for n in range(12)]
    assert sum(chosen) / len(chosen) < 2.5  # 3 by chance


class Says:
    def __init__(self, *answers):
        self.answers, self.prompts = list(answers), []

    def write(self, prompt, schema, *, seed):
        self.prompts.append((prompt, schema, seed))
        return json.dumps(self.answers.pop(0))


class Dies(Says):
    """Answers while it has answers."""

    def write(self, prompt, schema, *, seed):
        if not self.answers:
            raise ProposerError("nobody answers", next_step="start it")
        return super().write(prompt, schema, seed=seed)


KNOBS = {
    "keep_last": 1,
    "keep_reasoning": 2,
    "scope": "calls",
    "repos": False,
    "repos_every": 1,
    "min_tokens": 0,
}


def test_a_model_reads_results_and_writes_a_policy():
    writer = Says({"why": "cheaper", "policy": "drop_both", **KNOBS}, {"policy": "forget"}, [])
    proposer = ModelProposer(writer)
    spec, why = proposer.propose(PAST)
    assert (spec.text, why) == ("drop_both(keep_last=1,keep_reasoning=2,repos=no)", "cheaper")
    prompt, schema, _ = writer.prompts[0]
    assert "rolling_drop_repos: NLL 1.1000, cost 60" in prompt
    assert "drop_both: failed on 1 conversations" in prompt
    assert len(schema["anyOf"]) == len(SEARCHED)
    for _ in range(2):
        with pytest.raises(ProposerError):
            proposer.propose(PAST)


@pytest.mark.parametrize(
    "said",
    [
        {"policy": "trim", "keep_last": 10**20, "min_tokens": 0},
        {"policy": "trim", "keep_last": 1.5, "min_tokens": 0},
        {"policy": "trim", "keep_last": float("nan"), "min_tokens": 0},
        {"policy": "trim", "keep_last": True, "min_tokens": 0},
        {"policy": "trim", "keep_last": None, "min_tokens": 0},
    ],
)
def test_a_value_that_no_search_looks_at_is_no_answer(said):
    with pytest.raises(BadAnswer):
        ModelProposer(Says(said)).propose(PAST)


def test_what_a_model_says_of_its_choice_cannot_move_a_terminal_or_break_a_file():
    said = {"why": "\x1b[2J\ud800" + "x" * 999, "policy": "trim", "keep_last": 3, "min_tokens": 0}
    _, why = ModelProposer(Says(said)).propose(PAST)
    assert why.startswith("\\x1b[2J\\ud800xx")
    assert len(why.encode()) < 200


def test_a_prompt_does_not_grow_with_the_front():
    long = [trial(n, f"trim(keep_last={n})", 2 - n / 1000, 100.0 + n) for n in range(200)]
    assert len(front_of(long)) == 200
    shown = ModelProposer(Says()).prompt(long).partition("Tried so far:")[2].splitlines()
    told = [line for line in shown if line.startswith("- trim(")]
    assert 12 < len(told) <= 24
    assert told[0].startswith("- trim(keep_last=0):")
    assert told[-1].startswith("- trim(keep_last=199):")


@pytest.mark.parametrize("said", [{"policy": "python", "function": "os:getcwd"}, {"policy": "full"}])
def test_a_model_may_only_name_what_it_was_offered(said):
    with pytest.raises(ProposerError):
        ModelProposer(Says(said)).propose(PAST)


@pytest.mark.parametrize("name", ["python", "forget"])
def test_nobody_is_offered_code_or_what_is_no_policy(name):
    with pytest.raises(ProposerError, match=name):
        ModelProposer(Says(), ("trim", name))
    with pytest.raises(ProposerError, match=name):
        OptunaProposer((name,))


@contextmanager
def endpoint(status=200, *, content="", **headers):
    """An endpoint of this machine; yields its address and what it was asked."""
    asked = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            asked.append((self.path, self.headers["Authorization"], body))
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name.replace("_", "-"), value)
            self.end_headers()
            self.wfile.write(json.dumps({"choices": [{"message": {"content": content}}]}).encode())

        do_GET = do_POST  # noqa: N815 - what a followed redirect would ask

        def log_message(self, *_arguments):
            """Say nothing."""

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1", asked
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_any_endpoint_of_the_common_form_can_propose(monkeypatch):
    monkeypatch.setenv("A_KEY", "sesame")
    said = json.dumps({"policy": "trim", "keep_last": 3, "min_tokens": 0})
    with endpoint(content=said) as (url, asked):
        spec, _ = ModelProposer(EndpointWriter(url, "m", key_variable="A_KEY")).propose(PAST)
    assert spec.text == "trim(keep_last=3)"
    path, key, body = asked[0]
    assert (path, key, body["model"]) == ("/v1/chat/completions", "Bearer sesame", "m")
    assert body["response_format"]["json_schema"]["schema"]["anyOf"]
    with pytest.raises(ProposerError):
        EndpointWriter(url, "m", timeout_s=1).write("", {}, seed=0)


@pytest.mark.parametrize(
    "url", ["file:///etc", "http://127.0.0.1:port/v1", "http://[::1/v1", "http://", "http://a b/v1"]
)
def test_an_address_that_is_none_is_told(url):
    with pytest.raises(ProposerError):
        EndpointWriter(url, "m", timeout_s=1).write("", {}, seed=0)


def test_an_answer_that_breaks_off_is_told():
    with endpoint(Content_Length="9999") as (url, _), pytest.raises(ProposerError, match="gave no answer"):
        EndpointWriter(url, "m", timeout_s=5).write("", {}, seed=0)


def test_the_key_goes_nowhere_else(monkeypatch):
    monkeypatch.setenv("A_KEY", "sesame")
    with (
        endpoint() as (other, seen),
        endpoint(302, Location=other) as (url, asked),
        pytest.raises(ProposerError, match="302"),
    ):
        EndpointWriter(url, "m", key_variable="A_KEY").write("", {}, seed=0)
    assert (len(asked), seen) == (1, [])


def test_the_key_is_sent_where_nobody_else_reads_it(monkeypatch):
    sent = []

    async def answer(_client, request, **_options):
        sent.append(request.headers.get("Authorization"))
        raise httpx2.ConnectError("nothing is asked in a test")

    monkeypatch.setenv("A_KEY", "sesame")
    monkeypatch.setattr(httpx2.AsyncClient, "send", answer)
    for url in ("https://example.org/v1", "http://localhost:1/v1"):
        with pytest.raises(ProposerError):
            EndpointWriter(url, "m", key_variable="A_KEY").write("", {}, seed=0)
    assert sent == ["Bearer sesame", "Bearer sesame"]


@pytest.mark.parametrize(
    ("url", "variable"), [("http://example.org/v1", "A_KEY"), ("https://example.org/v1", "NO_KEY")]
)
def test_a_key_that_cannot_be_sent_is_told_before_anything_is_tried(monkeypatch, url, variable):
    monkeypatch.setenv("A_KEY", "sesame")
    monkeypatch.delenv("NO_KEY", raising=False)
    with pytest.raises(ProposerError, match=f"plain http|{variable}") as caught:
        EndpointWriter(url, "m", key_variable=variable)
    assert caught.value.next_step


def test_no_key_is_sent_that_was_not_named(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sesame-open-up")
    said = json.dumps({"policy": "trim", "keep_last": 3, "min_tokens": 0})
    with endpoint(content=said) as (url, asked):
        ModelProposer(EndpointWriter(url, "m")).propose(PAST)
    assert [key for _, key, _ in asked] == [None]


def test_headers_are_not_shown():
    writer = EndpointWriter("https://example.org/v1", "m", headers={"X-Api-Key": "sesame-open-up"})
    assert "sesame" not in repr(writer)


ENDPOINT = ("--proposer", "endpoint", "--endpoint")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--key-env", "A_KEY"), "--proposer endpoint"),
        (("--endpoint", "https://example.org/v1"), "--proposer endpoint"),
        ((*ENDPOINT, "https://h/v1"), "--endpoint-model"),
        (
            (*ENDPOINT, "http://example.org/v1", "--endpoint-model", "m", "--key-env", "A_KEY"),
            "plain http",
        ),
        (
            (*ENDPOINT, "https://h/v1", "--endpoint-model", "m", "--key-env", "NO_KEY"),
            "NO_KEY",
        ),
    ],
)
def test_the_command_names_the_key_as_run_does(monkeypatch, tmp_path, words, told):
    monkeypatch.setenv("A_KEY", "sesame")
    monkeypatch.delenv("NO_KEY", raising=False)
    line = ["policy", "--trajectories", str(tmp_path / "none"), "--work", str(tmp_path), *words]
    failed = CliRunner().invoke(search.app, line).exception
    assert isinstance(failed, NexusError)
    assert told in f"{failed.problem} {failed.next_step}"


@pytest.mark.parametrize("named", [None, "A_KEY"])
def test_the_command_sends_the_key_that_it_was_given(monkeypatch, tmp_path, named):
    monkeypatch.setenv("A_KEY", "sesame")
    monkeypatch.setenv("OPENAI_API_KEY", "sesame-open-up")
    proposers = []

    def begun(_trajectories, proposer, **_options):
        proposers.append(proposer)
        raise NexusError("nothing is searched in a test")

    monkeypatch.setattr(policy_search, "search_policies", begun)
    with endpoint(content="{}") as (url, asked):
        line = ["policy", "--trajectories", "x", "--work", str(tmp_path), "--proposer", "endpoint"]
        line += ["--endpoint", url, "--endpoint-model", "m", *(["--key-env", named] if named else [])]
        CliRunner().invoke(search.app, line)
        with pytest.raises(ProposerError):
            proposers[0].propose(PAST)
    assert [key for _, key, _ in asked] == ["Bearer sesame" if named else None]


@pytest.mark.model
def test_the_local_model_is_held_to_the_schema(bundled_engine):
    spec, _ = ModelProposer(LocalWriter(bundled_engine), ("trim", "rolling_drop")).propose(PAST[:2])
    assert spec.name in {"trim", "rolling_drop"}
    # Hot enough to run on between two values, where a grammar lets it.
    hot = LocalWriter(bundled_engine, temperature=3.0)
    for seed in range(4):
        proposer = ModelProposer(hot, ("trim", "rolling_drop"), seed=seed)
        assert proposer.propose(PAST[:2])[0].name in {"trim", "rolling_drop"}
    assert bundled_engine.used_cells() == 0


class InTurn:
    """Proposes from a list."""

    name = "in turn"

    def __init__(self, *policies):
        self.policies, self.seen = list(policies), []

    def propose(self, past, *, attempt=0):
        self.seen.append((len(past), attempt))
        return parse_policy(self.policies[min(len(past) - 1 + attempt, len(self.policies) - 1)]), "as listed"


@pytest.fixture
def measured(monkeypatch):
    """Rows made of the policy's text, in place of a replay; says what was measured."""
    done = []

    def measure(task):
        done.append(task.policy)
        size = len(task.policy)
        declined = "too long" if task.policy == "trim" else None
        return [
            {
                "policy": task.policy, "trajectory": task.trajectory.name, "declined": declined,
                "declined_code": declined and PAST_TRAINING, "nll": 10.0 / size, "scored": 10, "wall_s": 1.0,
                "input_tokens": size, "tokens_prefilled": size, "tokens_decoded": 0, "cells_attended": 0,
                "cells_scanned": 0, "peak_cells": 1, "ttft_s": [1.0], "turn_s": [1.0], "active": [1],
            }
        ]  # fmt: skip

    monkeypatch.setattr(policy_search, "measure", measure)
    return done


def searching(folder, proposer, n_trials, *, first="full"):
    """Search with trials that are told, not run."""

    def tried(number, spec, who, why):
        return Trial(number=number, policy=spec.text, proposer=who, why=why, nll=1.0, cost=1.0)

    with policy_search.Journal(folder) as journal:
        search = policy_search._Search(journal, "trial", proposer, tried, None)
        search.go_on(parse_policies(first), n_trials)
    return search


def test_code_that_is_proposed_is_not_tried(tmp_path):
    with pytest.raises(ProposerError, match="runs code"):
        searching(tmp_path, InTurn("python(function=os:getcwd)"), 2)
    own = searching(tmp_path / "own", InTurn("full"), 1, first="python(function=os:getcwd)")
    assert [item.policy for item in own.trials] == ["python(function=os:getcwd)"]


def test_a_folder_runs_no_code_that_the_caller_did_not_name(tmp_path):
    own = "python(function=os:getcwd)"
    searching(tmp_path, InTurn("full"), 2, first=f"full,{own}")
    with pytest.raises(ResultsError, match="runs code"):
        searching(tmp_path, InTurn("full"), 2)
    again = searching(tmp_path, InTurn("full"), 2, first=f"{own},full")
    assert [item.policy for item in again.trials] == ["full", own]


@pytest.mark.parametrize(
    "rows",
    [
        [],
        ["full"],
        [{"policy": "full"}],
        [{"policy": 3, "proposer": "", "why": ""}],
        [{"policy": "forget", "proposer": "", "why": ""}],
    ],
)
def test_a_trial_that_cannot_be_read_is_told(rows, tmp_path):
    with policy_search.Journal(tmp_path) as journal:
        journal.add("trial 0", policy_search.Finished(rows, 1.0))
    with pytest.raises(ResultsError, match="trial 0"):
        searching(tmp_path, InTurn("full"), 1)


def test_an_answer_that_is_no_policy_is_asked_for_again(tmp_path):
    trim = {"policy": "trim", "keep_last": 3, "min_tokens": 0}
    writer = Says({"policy": "forget"}, {"policy": "trim", "keep_last": -1}, [], trim)
    search = searching(tmp_path, ModelProposer(writer), 2)
    assert [item.policy for item in search.trials] == ["full", "trim(keep_last=3)"]
    assert len({seed for _, _, seed in writer.prompts}) == 4
    assert search.declined is None


@pytest.mark.parametrize(
    ("answer", "code", "told"),
    [
        ({"policy": "forget"}, NO_POLICY, "8 of its answers were no policy"),
        ({"policy": "trim"}, REPEATS, "7 of its answers"),
    ],
)
def test_a_search_ends_where_no_answer_is_a_new_policy(answer, code, told, tmp_path):
    writer = Says(answer, *[{"policy": "forget"}] * 7)
    search = searching(tmp_path, ModelProposer(writer), 2, first="trim")
    assert (search.declined.code, len(search.trials)) == (code, 1)
    assert told in search.declined.reason


def test_an_endpoint_that_does_not_answer_ends_the_search(tmp_path):
    with endpoint(500) as (url, asked), pytest.raises(ProposerError, match="500"):
        searching(tmp_path, ModelProposer(EndpointWriter(url, "m")), 2)
    assert len(asked) == 1


def test_an_endpoint_that_dies_later_leaves_what_was_found(tmp_path):
    proposer = ModelProposer(Dies({"policy": "trim", "keep_last": 3, "min_tokens": 0}))
    search = searching(tmp_path, proposer, 4)
    assert [item.policy for item in search.trials] == ["full", "trim(keep_last=3)"]
    assert search.declined.code == FAILED
    assert "nobody answers" in search.declined.reason
    with pytest.raises(ProposerError, match="nobody answers"):  # of a search that it gave nothing
        searching(tmp_path, ModelProposer(Dies()), 4)


def test_code_that_is_proposed_late_is_not_tried_either(tmp_path):
    with pytest.raises(ProposerError, match="runs code"):
        searching(tmp_path, InTurn("trim", "python(function=os:getcwd)"), 4)


@pytest.mark.parametrize("count", ["n_trials", "limit", "n_turns"])
def test_a_count_below_one_is_refused(count, tmp_path):
    with pytest.raises(ResultsError, match=f"{count} = -1"):
        search_policies([TALK], InTurn("full"), work=tmp_path, **{count: -1})


@pytest.mark.model
def test_a_search_goes_on_where_it_was(measured, tmp_path):
    proposer = InTurn("full", "rolling_drop", "trim", "full")
    told = []
    with ThreadPoolExecutor(1) as executor:
        options = {"executor": executor, "work": tmp_path, "first": [PolicySpec("full")], "threads": 1}
        begun = search_policies([TALK], proposer, n_trials=2, **options)
        found = search_policies([TALK], proposer, n_trials=9, on_trial=told.append, **options)
    assert [item.policy for item in begun.trials] == ["full", "rolling_drop"]
    assert [item.policy for item in found.trials] == ["full", "rolling_drop", "trim"]
    assert measured == ["full", "rolling_drop", "trim"]  # each once
    assert found.trials == told
    assert [item.proposer for item in found.trials] == ["given", "in turn", "in turn"]
    assert found.trials[2].nll is None
    assert found.declined.code == REPEATS
    assert [item.policy for item in found.front] == ["full", "rolling_drop"]
    frame = found.to_frame()
    assert frame["on_front"].to_list() == [True, True, False]
    assert {result.metric for result in found.results().results} == {"nll_per_token", "cost", "declined"}
    assert found.figure().data[-1].name == "Pareto front"
    assert "rolling_drop" in found._repr_html_()
    assert found.overview()[1][2][3] == "declined 1"
