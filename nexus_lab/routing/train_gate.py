"""Training the models of the gate on requests with known tools: `nexus-lab train-gate`.

The cross-encoder that comes with the package was trained by the same function, on the requests in
``routing/requests`` and the development part of BFCL; its card says how.
"""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from nexus_lab.paths import home
from nexus_lab.routing.base import RoutingError
from nexus_lab.routing.embedder import load_embedder, transformer_of
from nexus_lab.routing.reader import NAME, bare_reader
from nexus_lab.routing.store import EmbeddingStore
from nexus_lab.routing.training_rows import described_tools, share_of, training_pool
from nexus_lab.routing.tune_embedder import EmbedderRecipe, tune_embedder
from nexus_lab.routing.tune_reader import ReaderRecipe, tune_reader
from nexus_lab.routing.tuning_lists import candidate_lists
from nexus_lab.routing.weights import Trained, fill, read_weights, weights_folder, write_weights

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from pathlib import Path

    from nexus_lab.registry import Registry
    from nexus_lab.routing.training_rows import Pool

    Progress = Callable[[str, float], None]

__all__ = ["Lesson", "Trained", "train_embedder", "train_reader"]

_EMBEDDER = "embedder"


@dataclass(frozen=True, slots=True)
class Lesson:
    """A registry, and rows of requests for its tools.

    Attributes
    ----------
    kept_apart
        Share of the tools, by a hash of their names, that takes no part.
    """

    registry: Registry
    rows: Sequence[Mapping[str, Any]]
    kept_apart: float = 0.0


@dataclass(frozen=True, slots=True)
class _Apart:
    """Whose tools, and which share of the requests, took no part."""

    servers: Collection[str]
    held: float


def train_reader(
    lessons: Sequence[Lesson],
    *,
    folder: Path | None = None,
    start: str = "shipped",
    recipe: ReaderRecipe | None = None,
    without_servers: Collection[str] = (),
    held: float = 0.1,
    checkpoints: Path | None = None,
    command: str = "",
    on_progress: Progress | None = None,
) -> Trained:
    """Train the cross-encoder, and write its weights once it is done; a break leaves the old ones.

    Parameters
    ----------
    lessons
        Registries with their requests.
    folder
        Where the weights go; ``None`` takes where routers of this user look for them.
    start
        ``shipped``: go on from the cross-encoder in use; ``embedder``: from the bundled embedder.
    without_servers
        Servers whose tools take no part.
    held
        Share of the requests, by a hash of their text, that is kept for the calibration.
    checkpoints
        Folder in which the weights so far are written now and then; nothing looks there by itself.
    command
        For the card.

    Raises
    ------
    RoutingError
        When no request belongs to its registry.
    """
    tell = on_progress or (lambda _what, _done: None)
    recipe = recipe or ReaderRecipe()
    pools = _pools(lessons, without_servers, held)
    embedder, plain = EmbeddingStore(load_embedder("bundled"), queries=True), load_embedder("stock")
    lists = []
    for number, pool in enumerate(pools):
        tell(
            f"finding what {len(pool.rows)} requests of {pool.name} are mistaken for",
            0.2 * number / len(pools),
        )
        lists += candidate_lists(pool, embedder, plain=plain)
    model, tokenizer = bare_reader()
    _begin(model, start)

    def card(done: Mapping[str, Any]) -> dict[str, Any]:
        return _card(
            "MiniLM reader",
            lessons,
            pools,
            {**done, "start": start},
            recipe,
            apart=_Apart(without_servers, held),
            command=command,
        )

    def checkpoint(done: Mapping[str, Any]) -> None:
        if checkpoints is not None:
            _written(checkpoints, NAME, model, card({**done, "finished": False}))

    done = tune_reader(
        model,
        tokenizer,
        lists,
        recipe,
        lambda what, part: tell(what, 0.2 + 0.8 * part),
        checkpoint=checkpoint,
    )
    return _written(folder, NAME, model, card(done))


def train_embedder(
    lessons: Sequence[Lesson],
    *,
    folder: Path | None = None,
    recipe: EmbedderRecipe | None = None,
    without_servers: Collection[str] = (),
    held: float = 0.1,
    command: str = "",
    on_progress: Progress | None = None,
) -> Trained:
    """Tune the stock embedder, and write its weights once it is done.

    A cross-encoder and a calibration that were made with another embedder want to be made again. Parameters
    are those of `train_reader`.
    """
    tell = on_progress or (lambda _what, _done: None)
    recipe = recipe or EmbedderRecipe()
    pools = _pools(lessons, without_servers, held)
    model = load_embedder("stock").model
    done = tune_embedder(model, pools, recipe, tell)
    card = _card(
        "all-MiniLM-L6-v2 tuned",
        lessons,
        pools,
        done,
        recipe,
        apart=_Apart(without_servers, held),
        command=command,
    )
    return _written(folder, _EMBEDDER, transformer_of(model), card)


def _pools(lessons: Sequence[Lesson], without: Collection[str], held: float) -> list[Pool]:
    """Return the pools; a request belongs to the first registry that has its tool."""
    pools: list[Pool] = []
    taken: set[str] = set()
    for lesson in lessons:
        rows = [row for row in lesson.rows if share_of(_text(row)) >= held and _text(row) not in taken]
        own = described_tools(rows)
        for registry, share in ((lesson.registry, lesson.kept_apart), (own, 0.0)):
            ours = [row for row in rows if (_tool(row) in own) == (registry is own)]
            if ours:
                pool = training_pool(registry, ours, without_servers=without, kept_apart=share)
                taken |= {row.request for row in pool.rows}
                pools.append(pool)
    if not any(row.tools for pool in pools for row in pool.rows):
        raise RoutingError("no request has its tool in a registry", next_step="give the matching registries")
    return pools


def _tool(row: Mapping[str, Any]) -> str | None:
    name = row.get("tool")
    return name if isinstance(name, str) else None


def _text(row: Mapping[str, Any]) -> str:
    return str(row.get("request", row.get("query", "")))


def _begin(model: Any, start: str) -> None:
    """Give the cross-encoder the weights that it starts from."""
    if start == "shipped":
        fill(model, read_weights(weights_folder(NAME), NAME), name=NAME)
    elif start == "embedder":
        layers = read_weights(weights_folder(_EMBEDDER), _EMBEDDER)
        fill(model.bert, {key: rows for key, rows in layers.items() if key.startswith("encoder.")}, name=NAME)
    else:
        raise RoutingError(f"start = {start!r}", next_step="choose shipped or embedder")


def _card(
    name: str,
    lessons: Sequence[Lesson],
    pools: Sequence[Pool],
    done: Mapping[str, Any],
    recipe: EmbedderRecipe | ReaderRecipe,
    *,
    apart: _Apart,
    command: str,
) -> dict[str, Any]:
    """Return what is told of new weights: what they learned from, how, and by which command."""
    learned = [
        {
            "pool": pool.name,
            "tools": len(pool.tools),
            "requests": len(pool.rows),
            "without_tool": sum(not row.tools for row in pool.rows),
            "sha256": _digest([pool]),
        }
        for pool in pools
    ]
    shares = {lesson.registry.name: lesson.kept_apart for lesson in lessons if lesson.kept_apart}
    return {
        "name": name,
        "base": "all-MiniLM-L6-v2 (Apache-2.0), token embeddings unchanged",
        "learned_from": learned,
        "requests_sha256": _digest(pools),
        "tools_kept_apart": shares,
        "servers_kept_apart": sorted(apart.servers),
        "requests_held": apart.held,
        "done": {**done, "note": _passes(done, sum(len(pool.rows) for pool in pools))},
        "recipe": asdict(recipe),
        "command": command,
    }


def _digest(pools: Sequence[Pool]) -> str:
    """Return the SHA-256 (hex) of the requests, one a line."""
    return hashlib.sha256("\n".join(row.request for pool in pools for row in pool.rows).encode()).hexdigest()


def _passes(done: Mapping[str, Any], count: int) -> str:
    """Return in words how far it came with so many requests, before time or epochs were over."""
    import torch

    far = f"{done['requests'] / count:.2f} passes" if "requests" in done else f"{done['steps']} steps"
    threads = torch.get_num_threads()
    return f"{far} over {count} requests, on {threads} thread{'s' * (threads != 1)}"


def _written(folder: Path | None, name: str, module: Any, card: Mapping[str, Any]) -> Trained:
    arrays = {
        key: values.detach().numpy()
        for key, values in module.state_dict().items()
        if "embeddings" not in key and values.is_floating_point()
    }
    path = write_weights(folder or home() / "gate", name, arrays, card)
    return Trained(path, card)
