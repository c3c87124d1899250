"""A workbench whose model runs with an adapter: loaded, refused, shown in every form, kept and left out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from desk_tools import Asker, WordEmbedder, raw_config
from echo_tool import echo_spec
from tiny_adapters import write_lora
from tiny_models import write_kind

from nexus_lab.agent import TurnOutcome
from nexus_lab.arguments.scoring import Scoring
from nexus_lab.engine import AdapterMismatch, Engine, ModelNotFound, UnsupportedAdapter
from nexus_lab.engine.adapter import model_fingerprint
from nexus_lab.errors import NexusError
from nexus_lab.lab.adapter_words import adapter_name, named_with, weights_with
from nexus_lab.lab.desk import Desk
from nexus_lab.lab.workbench import Workbench
from nexus_lab.registry import McpServer, Registry, Toolbox
from nexus_lab.settings import Profile
from nexus_lab.trace import read_session
from nexus_lab.trace.report.facts import fact_boxes

HOSTILE = "mine <b>\u202e&"
SEEN = "mine <b>⟨U+202E⟩&"
SCORING = Scoring(evidence=1.0, likelihood=0.5, length=0.0, lead=3.0, most=6)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A model, an adapter of a hostile name for it that weighs calls, and one of another architecture."""
    folder = tmp_path_factory.mktemp("adapted")
    facts = {f"nexus_lab.{name}": value for name, value in SCORING.to_facts().items()}
    return (
        write_kind(folder / "model.gguf", "plain"),
        write_lora(folder / f"{HOSTILE}.gguf", header=facts),
        write_lora(folder / "other.gguf", architecture="qwen2"),
    )


@pytest.fixture
def open_desk(nexus_home):  # noqa: ARG001 - the user's own home stays untouched
    made = []

    def make(**given):
        desk = Desk(embedder=WordEmbedder(), profile=Profile(threads=1), n_ctx=512, **given)
        made.append(desk)
        desk.driver.submit("ready", lambda: None).get()
        return desk

    yield make
    for desk in made:
        desk.close()


def _loaded(desk):
    return next(row for row in desk.parts(["models"])["models"]["rows"] if row["loaded"])


def test_the_workbench_loads_the_model_that_engine_load_would(files, nexus_home):  # noqa: ARG001
    model, adapter, _ = files
    wb = Workbench(model=model, adapter=adapter, n_ctx=512, profile=Profile(threads=1))
    try:
        wb.wait()
        engine = wb.desk.engine
        assert engine.info.adapter.path == adapter
        assert engine.info.fingerprint == model_fingerprint(engine.info.sha256, engine.info.adapter)
        assert engine.info.fingerprint != model_fingerprint(engine.info.sha256, None)
        assert f"Desk(model + {SEEN}, " in repr(wb)
        assert "mine &lt;b&gt;⟨U+202E⟩&amp;" in wb.to_html()
    finally:
        wb.close()


def test_which_adapter_runs_is_in_every_form_and_its_name_is_escaped(files, open_desk):
    model, adapter, _ = files
    desk = open_desk(model=model, adapter=adapter)
    panel, sha256 = desk.panels["models"], desk.engine.info.adapter.sha256
    row, bar = _loaded(desk), desk.parts(["bar"])["bar"]
    assert row["adapter"]["name"] == SEEN
    assert (row["adapter"]["sha256"], row["adapter"]["lora_rank"], row["adapter"]["targets"]) == (
        sha256,
        3,
        35,
    )
    assert row["adapter"]["weighs_calls"] is True
    assert row["quantisation"] == bar["quantisation"] == f"+ {SEEN}"
    shown = Asker(desk)("models.estimate", n_ctx=1024)["rows"]
    assert [one.quantisation for one in shown if one.loaded] == [f"+ {SEEN}"]
    frame = panel.to_frame().filter(loaded=True)
    assert frame["adapter"].to_list() == [SEEN]
    assert frame["adapter_sha256"].to_list() == [sha256]
    assert frame["adapter_lora_rank"].to_list() == [3]
    assert frame["adapter_path"].item().endswith(f"{SEEN}.gguf")
    assert frame["quantisation"].to_list() == [None]
    html = panel.to_html()
    assert "<b>mine &lt;b&gt;⟨U+202E⟩&amp;</b>: rank 3,\n35 matrices" in html
    assert sha256[:12] in html
    assert "weighs close calls" in html
    assert "\u202e" not in html + repr(desk) + repr(panel)
    assert "\u202e" not in json.dumps(desk.parts(desk.part_names), ensure_ascii=False)
    assert repr(panel).endswith(f"loaded: model + {SEEN})")
    desk.driver.submit("recording", desk.crew.begin_run).get()
    assert {one["model"] for one in desk.parts(["session"])["session"]["runs"]} == {f"model + {SEEN}"}
    desk.driver.submit("ending", desk.crew.end_run).get()
    Asker(desk)("session.refresh")
    written = read_session(desk.session_path).manifest.latest
    assert written.model["adapter"]["sha256"] == sha256
    facts = {fact.label: fact.value for fact in fact_boxes(written)[0].facts}
    assert facts["Adapter"] == f"{HOSTILE}, rank 3"  # the page spells it out, as every text
    assert facts["Adapter's sha256"] == sha256
    assert {one["model"] for one in desk.parts(["session"])["session"]["runs"]} == {f"model + {SEEN}"}


def test_without_an_adapter_nothing_says_otherwise(files, open_desk):
    desk = open_desk(model=files[0])
    row = _loaded(desk)
    assert (row["adapter"], row["quantisation"]) == (None, None)
    assert desk.parts(["bar"])["bar"]["quantisation"] is None
    assert "adapter" not in desk.panels["models"].to_html()
    assert desk.panels["models"].to_frame()["adapter"].null_count() == len(desk.panels["models"].rows(512))


def test_an_adapter_that_does_not_fit_is_told_and_the_old_model_stays(files, open_desk, tmp_path):
    model, adapter, other = files
    desk = open_desk(model=model, adapter=adapter)
    ask, engine = Asker(desk), desk.engine
    (tmp_path / "full.gguf").write_bytes(Path(model).read_bytes())
    for path, error in (
        (str(other), AdapterMismatch),
        (str(tmp_path / "full.gguf"), UnsupportedAdapter),
        (str(tmp_path / "absent.gguf"), ModelNotFound),
    ):
        with pytest.raises(error):
            ask("models.load", path=str(model), adapter=path)
        assert desk.engine is engine
    broken = open_desk(model=model, adapter=other)
    notice = broken.parts(["bar"])["bar"]["notice"]
    assert notice["status"] == "bad"
    assert "is for the architecture 'qwen2'" in notice["text"]
    assert (broken.engine, broken.adapter) == (None, None)


def test_loading_again_keeps_the_adapter_and_another_model_has_none(files, open_desk, tmp_path):
    model, adapter, _ = files
    desk = open_desk(model=model, adapter=adapter)
    ask = Asker(desk)
    again = ask("models.load", path=str(model), n_ctx=256)
    assert (again["n_ctx"], again["adapter"]["name"]) == (256, SEEN)
    assert ask("models.load", path=str(model), adapter="")["adapter"] is None
    assert ask("models.load", path=str(model))["adapter"] is None
    assert ask("models.load", path=str(model), adapter=str(adapter))["adapter"]["lora_rank"] == 3
    twin = tmp_path / "twin.gguf"
    twin.write_bytes(Path(model).read_bytes())
    assert ask("models.load", path=str(twin))["adapter"] is None


def test_an_adapter_needs_a_model_to_be_loaded_with(files, nexus_home):  # noqa: ARG001
    model, adapter, _ = files
    with pytest.raises(NexusError, match="no model to run with"):
        Workbench(adapter=adapter)
    with Engine.load(model, n_ctx=128, threads=1) as engine:
        with pytest.raises(NexusError, match="with the engine"):
            Workbench(engine, adapter=adapter)
        with pytest.raises(NexusError, match="with the engine"):
            Desk(engine=engine, model=model, adapter=adapter)


def test_an_engine_that_brings_its_adapter_shows_it(files, open_desk):
    model, adapter, _ = files
    with Engine.load(model, n_ctx=256, threads=1, adapter=adapter) as engine:
        desk = open_desk(engine=engine)
        assert _loaded(desk)["adapter"]["name"] == SEEN
        Asker(desk)("models.unload")
        assert desk.adapter is None


def test_a_turn_shows_that_calls_were_weighed(files, open_desk):
    model, adapter, _ = files
    server = McpServer(raw_config())
    server.start()
    try:
        tools = Toolbox([server], Registry.of([echo_spec({"type": "string"})], name="test"))
        with Engine.load(model, n_ctx=2048, threads=1, adapter=adapter) as engine:
            desk = open_desk(engine=engine, tools=tools)
            holders = []
            desk.profile = desk.profile.changed(max_tokens=24, answer_tokens=4)
            desk.subscribe(lambda _names: holders.append(desk.bar.part()["holder"]))
            turn = desk.ask("echo 'red' or 'blue'").get()
            assert turn.outcome is TurnOutcome.CALLED, turn.problem
            assert len(turn.weighed.calls) == 4
            (card,) = desk.parts(["agent"])["agent"]["turns"]
            spans = {(span["kind"], span["name"]): span for span in card["spans"]}
            best = 1 + max(range(4), key=turn.weighed.likelihoods.__getitem__)
            assert f"prefers call {best} of 4" in spans["rerank", "calls"]["detail"]
            assert "4 calls weighed" in spans["arguments", "echo"]["detail"]
            assert "turn 1, weighing" in holders
    finally:
        server.close()


def test_words():
    assert adapter_name(None) is None
    assert named_with(None, None) is None
    assert named_with("model", None) == "model"
    assert weights_with("Q4_1", "mine") == "Q4_1 + mine"
    assert weights_with(None, "mine") == "+ mine"
    assert weights_with("Q4_1", None) == "Q4_1"
