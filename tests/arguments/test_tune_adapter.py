"""Training an adapter: what counts, that llama.cpp runs what was trained, and what a break leaves behind."""

from __future__ import annotations

import hashlib
import json
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from tiny_models import KINDS, Kind, _head_norms, _llama, write_kind, write_model
from typer.testing import CliRunner

from nexus_lab.arguments import ArgumentsError, tune_adapter
from nexus_lab.arguments.tune_adapter import (
    AdapterRecipe,
    AnswerRow,
    Extra,
    adapted,
    load_weights,
    logits_of,
    pairs_of,
    rates,
)
from nexus_lab.bench import train_arguments as training
from nexus_lab.bench.argument_exercises import Exercise
from nexus_lab.bench.train_arguments import Disagreement, train_arguments
from nexus_lab.cli._app import app
from nexus_lab.engine import AdapterMismatch, Engine, UnsupportedModel
from nexus_lab.engine import adapter_writing as writing
from nexus_lab.engine.adapter_writing import check_trainable, write_adapter
from nexus_lab.engine.gguf_file import read_gguf
from nexus_lab.registry import ToolSpec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

MISSING = [name for name in tune_adapter._NEEDED if find_spec(name) is None]
needs_extra = pytest.mark.skipif(
    bool(MISSING), reason=f"{', '.join(MISSING)} not installed: pip install 'nexus_lab[adapter]'"
)
# transformers takes the width of its heads for granted.
QWEN3 = (
    "qwen3",
    Kind(head_dim=128, blocks=lambda kind, layer: {**_llama(kind, layer), **_head_norms(kind)}),
)
TOKENS = np.random.default_rng(11).integers(3, 269, 60).astype(np.int32)
TOOL = ToolSpec(
    "see", "See it.", {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
)
RECIPE = AdapterRecipe(rank=4, seconds=60, epochs=1, checks=2, learning_rate=1e-2)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    torch = pytest.importorskip("torch")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Path of a small random model by kind, in a folder of its own."""

    def path(name: str) -> Path:
        file = tmp_path_factory.mktemp(name) / f"{name}.gguf"
        return write_model(file, *QWEN3) if name == "qwen3" else write_kind(file, name)

    return path


def random_adapter(path: Path, seed: int = 1) -> Any:
    """The weights of a file with an adapter whose B is not zero."""
    import torch

    model = adapted(load_weights(path), RECIPE)
    torch.manual_seed(seed)
    for name, values in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(values, std=0.1)
    return model


def engine_logits(model: Path, adapter: Path | None = None) -> np.ndarray:
    loading = Engine.load(model, n_ctx=128, n_ubatch=64, threads=1, adapter=adapter)
    with loading as engine, engine.scratch_sequence() as seq:
        return np.asarray(engine.prefill(seq, TOKENS, logits="all"))


def apart(one: np.ndarray, other: np.ndarray) -> float:
    return float(np.abs(one - other).max() / np.abs(one).max())


@needs_extra
@pytest.mark.parametrize("kind", ["plain", "wide", "neox", "qwen3"])
def test_llama_cpp_runs_the_adapter_that_was_trained(
    kind: str, model_path: Callable[[str], Path], tmp_path: Path
):
    path = model_path(kind)
    model = random_adapter(path)
    with model.disable_adapter():
        plain = logits_of(model, TOKENS)
    without = apart(engine_logits(path), plain)
    write_adapter(tmp_path / "a.gguf", pairs_of(model), read_gguf(path), alpha=RECIPE.alpha)
    ours = engine_logits(path, tmp_path / "a.gguf")
    # Of the cache, which llama.cpp keeps in float16.
    assert without < 5e-3
    assert apart(ours, logits_of(model, TOKENS)) < 3 * without + 2e-3
    assert apart(ours, plain) > 0.1


@needs_extra
def test_rows_of_q_and_k_have_to_be_put_back(
    model_path: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    path = model_path("plain")
    model = random_adapter(path)
    monkeypatch.setitem(writing._INTERLEAVED, "llama", False)
    write_adapter(tmp_path / "a.gguf", pairs_of(model), read_gguf(path), alpha=RECIPE.alpha)
    assert apart(engine_logits(path, tmp_path / "a.gguf"), logits_of(model, TOKENS)) > 0.05


def test_halves_of_a_head_lie_side_by_side(model_path: Callable[[str], Path]):
    gguf = read_gguf(model_path("plain"))
    rows = np.arange(64, dtype=np.float32)[:, None]
    found = writing._rows("blk.0.attn_q.weight", rows, gguf)[:, 0]
    assert found[:6].tolist() == [0, 8, 1, 9, 2, 10], "heads of 16 rows"
    assert found[16:20].tolist() == [16, 24, 17, 25]
    assert writing._rows("blk.0.attn_v.weight", rows, gguf) is rows


def test_a_module_that_the_model_has_not_is_refused(model_path: Callable[[str], Path], tmp_path: Path):
    pair = (np.zeros((2, 64)), np.zeros((64, 2)))
    for name in ("model.layers.9.self_attn.q_proj", "model.embed_tokens", "model.layers.0.mlp.other"):
        with pytest.raises(AdapterMismatch, match="no matrix"):
            write_adapter(tmp_path / "a.gguf", {name: pair}, read_gguf(model_path("plain")), alpha=1.0)
    assert not (tmp_path / "a.gguf").exists()


@pytest.mark.parametrize("kind", ["uneven_heads", "latent", "sliding", "recurrent"])
def test_models_whose_adapters_are_not_written_are_declined(kind: str, model_path: Callable[[str], Path]):
    with pytest.raises(UnsupportedModel, match="no adapter can be trained"):
        check_trainable(read_gguf(model_path(kind)))
    assert kind in KINDS


@needs_extra
def test_only_the_answers_tokens_count(model_path: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch):
    import torch

    monkeypatch.setattr(tune_adapter, "halves_are_faster", lambda: False)
    model = random_adapter(model_path("plain"))
    rows = [AnswerRow(tuple(TOKENS[:20].tolist()), 14), AnswerRow(tuple(TOKENS[20:31].tolist()), 9)]
    expected = []
    for row in rows:
        chances = torch.log_softmax(torch.from_numpy(logits_of(model, row.tokens)), dim=-1)
        expected += [-float(chances[n - 1, row.tokens[n]]) for n in range(row.start, len(row.tokens))]
    with torch.no_grad():
        losses, _ = tune_adapter._losses(model, rows)
    assert len(losses) == 6 + 2
    np.testing.assert_allclose(losses.numpy(), expected, rtol=1e-4)
    assert rates(model, rows).loss == pytest.approx(np.mean(expected), rel=1e-4)


@needs_extra
def test_halves_change_the_loss_by_little(model_path: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch):
    model = random_adapter(model_path("plain"))
    rows = [AnswerRow(tuple(TOKENS[:20].tolist()), 14), AnswerRow(tuple(TOKENS[20:31].tolist()), 9)]
    found = []
    for halves in (False, True):
        monkeypatch.setattr(tune_adapter, "halves_are_faster", lambda halves=halves: halves)
        found.append(rates(model, rows).loss)
    assert found[0] != found[1]
    assert found[0] == pytest.approx(found[1], rel=0.03)


@needs_extra
def test_an_answer_is_right_when_every_token_is_the_likeliest(model_path: Callable[[str], Path]):
    model = random_adapter(model_path("plain"))
    prompt = TOKENS[:12].tolist()
    first = int(logits_of(model, prompt)[-1].argmax())
    second = int(logits_of(model, [*prompt, first])[-1].argmax())
    right = AnswerRow((*prompt, first, second), 12)
    wrong = AnswerRow((*prompt, first, (second + 1) % 269), 12)
    assert rates(model, [right, wrong, wrong, right, right]).answers == pytest.approx(0.6)
    assert rates(model, []).rows == 0


def exercises(count: int = 30) -> list[Exercise]:
    return [
        Exercise(tool=TOOL, request=f"the {n} of red", context=(), answer={"n": n}, group=str(n))
        for n in range(1, count + 1)
    ]


@needs_extra
def test_a_training_from_requests_to_an_adapter_that_runs(model_path: Callable[[str], Path], tmp_path: Path):
    path, told = model_path("plain"), list[str]()
    (tmp_path / f"arguments-{'0' * 12}.gguf").write_bytes(b"an earlier one")
    trained = train_arguments(
        exercises()[:24],
        apart=exercises()[24:],
        model=path,
        folder=tmp_path,
        recipe=RECIPE,
        threads=1,
        sources={"cases.jsonl": "ab"},
        command="nexus-lab train-arguments",
        on_progress=lambda what, _done: told.append(what),
    )
    card = json.loads((tmp_path / "arguments.json").read_text())
    assert card == json.loads(json.dumps(trained.card))
    assert card["sha256"] == hashlib.sha256(trained.path.read_bytes()).hexdigest()
    assert sorted(file.name for file in tmp_path.iterdir()) == [trained.path.name, "arguments.json"]
    assert (card["files"], card["command"]) == ({"cases.jsonl": "ab"}, "nexus-lab train-arguments")
    assert card["done"]["finished"] is True
    assert card["rows_kept_apart"]["with"]["rows"] == 6
    assert card["rows_kept_apart"]["with"]["loss"] < card["rows_kept_apart"]["without"]["loss"] - 1
    assert max(card["nats_from_llama_cpp"].values()) < 1e-3
    assert min(card["done"]["held"]) == card["done"]["held"][card["done"]["best"]]
    with Engine.load(path, n_ctx=128, threads=1, adapter=trained.path) as engine:
        assert engine.info.adapter is not None
        assert engine.info.adapter.rank == 4
    assert any("tokens a second" in what for what in told)


class Stopper:
    """Presses Ctrl-C at the n-th word of progress that begins in a certain way."""

    def __init__(self, start: str, number: int) -> None:
        self._start, self._left = start, number

    def __call__(self, what: str, _done: float) -> None:
        if what.startswith(self._start):
            self._left -= 1
            if self._left == 0:
                raise KeyboardInterrupt


@needs_extra
def test_ctrl_c_keeps_the_best_so_far(model_path: Callable[[str], Path], tmp_path: Path):
    stop = Stopper("reading the held rows", 3)
    trained = train_arguments(
        exercises(), model=model_path("plain"), folder=tmp_path, recipe=RECIPE, threads=1, on_progress=stop
    )
    assert trained.card["done"]["finished"] is False
    assert trained.card["done"]["best"] == 1
    assert len(trained.card["done"]["held"]) == 2
    assert trained.path.is_file()


@needs_extra
def test_ctrl_c_while_calls_are_weighed_keeps_the_adapter(model_path: Callable[[str], Path], tmp_path: Path):
    stop = Stopper("weighing", 1)
    trained = train_arguments(
        exercises(), model=model_path("plain"), folder=tmp_path, recipe=RECIPE, threads=1, on_progress=stop
    )
    assert trained.path.is_file()
    assert trained.card["scoring"] is None
    assert trained.card["done"]["finished"] is True


@needs_extra
def test_ctrl_c_before_anything_was_learned_leaves_nothing(model_path: Callable[[str], Path], tmp_path: Path):
    with pytest.raises(KeyboardInterrupt):
        train_arguments(
            exercises(),
            model=model_path("plain"),
            folder=tmp_path,
            recipe=RECIPE,
            threads=1,
            on_progress=Stopper("tuning", 1),
        )
    assert list(tmp_path.iterdir()) == []


@needs_extra
def test_weights_that_are_read_otherwise_end_the_training(
    model_path: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    other = write_model(tmp_path / "other.gguf", *KINDS["plain"], seed=4)
    monkeypatch.setattr(training, "load_weights", lambda _path: load_weights(other))
    with pytest.raises(Disagreement, match="the weights"):
        train_arguments(exercises(), model=model_path("plain"), folder=tmp_path / "out", threads=1)
    assert not (tmp_path / "out").exists()


@needs_extra
def test_an_adapter_that_is_written_otherwise_is_taken_back(
    model_path: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(training, "_MOST_NATS", 1e-9)
    monkeypatch.setattr(training, "_checked", _only_the_weights(training._checked))
    with pytest.raises(Disagreement, match="the adapter"):
        train_arguments(exercises(), model=model_path("plain"), folder=tmp_path, recipe=RECIPE, threads=1)
    assert list(tmp_path.iterdir()) == []


def _only_the_weights(check: Callable[..., float]) -> Callable[..., float]:
    def checked(theirs: Any, tuned: Any, tokens: Any, what: str) -> float:
        return 0.0 if what == "the weights" else check(theirs, tuned, tokens, what)

    return checked


@needs_extra
@pytest.mark.parametrize("some", [[], exercises(1)])
def test_too_little_to_learn_from_is_told(
    some: list[Exercise], model_path: Callable[[str], Path], tmp_path: Path
):
    with pytest.raises(ArgumentsError, match=r"nothing to learn|too few"):
        train_arguments(some, model=model_path("plain"), folder=tmp_path, threads=1)


def test_a_missing_extra_is_told_with_the_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr(tune_adapter, "find_spec", lambda name: None if name == "peft" else name)
    with pytest.raises(Extra, match="needs peft") as caught:
        train_arguments(exercises(), folder=tmp_path)
    assert "pip install" in caught.value.next_step
    assert "nexus_lab[adapter]" in caught.value.next_step


@needs_extra
def test_the_command_trains_on_cases_and_says_what_came_of_it(
    model_path: Callable[[str], Path], tmp_path: Path
):
    spec = {"name": TOOL.name, "description": TOOL.description, "inputSchema": TOOL.input_schema}
    rows = [
        {"id": str(n), "query": f"the {n} of red", "gold_tool": "see", "gold_args": {"n": n}}
        for n in range(40)
    ]
    (tmp_path / "cases.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "tools.json").write_text(json.dumps({"name": "mine", "tools": [spec]}))
    words = [
        "train-arguments",
        "--registry",
        str(tmp_path / "tools.json"),
        "--model",
        str(model_path("plain")),
    ]
    words += ["--cases", str(tmp_path / "cases.jsonl"), "--out", str(tmp_path / "out"), "--threads", "1"]
    done = CliRunner().invoke(app, [*words, "--epochs", "1", "--rank", "4", "--rate", "0.01", "--no-swaps"])
    assert done.exception is None, done.output
    assert "answers right to the last token" in done.output
    assert "arguments-" in "".join(done.output.split())
    card = json.loads((tmp_path / "out" / "arguments.json").read_text())
    assert set(card["files"]) == {"cases.jsonl", "tools.json"}
    assert (
        card["learned_from"]["rows"]
        + card["learned_from"]["rows_held"]
        + card["rows_kept_apart"]["with"]["rows"]
        == 40
    )


@pytest.mark.parametrize(
    ("words", "said"), [([], "nothing to learn"), (["--sessions", "a.nexus"], "--registry")]
)
def test_what_is_missing_is_said_before_anything_is_loaded(words: list[str], said: str):
    done = CliRunner().invoke(app, ["train-arguments", *words])
    assert said in f"{done.exception}"
