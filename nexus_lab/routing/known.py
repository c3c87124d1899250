"""Requests for tools of public servers that come with the package, so that those tools have examples at once.

They are ours: written for this project, and what the models of this room were tuned on. A tool gets them only
where its name and its whole description are the ones that they were written for. Some requests have no tool;
whether that holds depends on what else is there, see `package_rows_for`.
"""

from __future__ import annotations

import hashlib
import json
from functools import cache
from importlib.resources import as_file, files
from typing import TYPE_CHECKING, Any

import numpy as np

from nexus_lab.json_lines import json_lines
from nexus_lab.paths import atomic_write
from nexus_lab.routing.index import LEVELS, clip_of, quantise
from nexus_lab.routing.lexical import words
from nexus_lab.routing.normalise import normalise

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from nexus_lab.registry import Registry, ToolSpec
    from nexus_lab.routing.base import Embedder

    Floats = NDArray[np.float32]

__all__ = [
    "description_digest",
    "digests_of",
    "known_requests",
    "known_vectors",
    "known_without_tool",
    "package_rows",
    "package_rows_for",
    "write_known_vectors",
]

_FOLDER = "requests"
_TOOLS = "tools.json"
_VECTORS = "vectors.safetensors"
_KEY_BYTES = 12


def known_requests(tool: ToolSpec) -> tuple[str, ...]:
    """Return requests that are known to belong to `tool`; none where it is another one, or a newer one."""
    if not _is_known(tool):
        return ()
    return _by_tool().get(tool.name, ())


def known_without_tool(registry: Registry) -> tuple[str, ...]:
    """Return requests for jobs that no tool does, of servers whose tools in `registry` are known ones.

    They tell what such a server is asked for in vain, as examples tell what a tool is asked for.
    """
    rows = (row for row in package_rows_for(registry) if row.get("tool") is None and not row.get("context"))
    return tuple(row["request"] for row in rows if row.get("near"))


def description_digest(tool: ToolSpec) -> str:
    """Return what a tool's description is recognised by."""
    return hashlib.sha256(tool.description.encode()).hexdigest()[:16]


@cache
def package_rows() -> tuple[dict[str, Any], ...]:
    """Return the rows that come with the package: ``tool``, ``server``, ``request`` and more."""
    return tuple(
        json.loads(line)
        for file in sorted(files(__package__).joinpath(_FOLDER).iterdir(), key=lambda file: file.name)
        if file.name.endswith(".jsonl")
        for _, line in json_lines(file.read_text(encoding="utf-8"))
    )


def package_rows_for(registry: Registry) -> list[dict[str, Any]]:
    """Return the rows of the package that hold over `registry`, with tools called as decisions over it do.

    Requests for a tool are there where that very tool is, and where they bring its description along.

    Requests without a tool were held against the tools of ``tools.json``; what does the job of one after all
    is named in its ``fitted_by``. Any other tool may do it as well, so that a request is there only where it
    was written beside a tool of `registry`, or beside none and all tools are of that file; and not where the
    name of another tool shares a word with it.
    """
    keys = _known_keys(registry)
    others = [_stems(tool.name) for tool in _all(registry) if not _is_known(tool)]
    found = (
        row if row.get("description") is not None else _row_for(row, registry, keys, others)
        for row in package_rows()
    )
    return [row for row in found if row is not None]


def _row_for(
    row: dict[str, Any], registry: Registry, keys: Mapping[str, str], others: Sequence[set[str]]
) -> dict[str, Any] | None:
    name, told = row.get("tool"), dict(row)
    for field in ("near", "also_ok"):
        if field in row:
            told[field] = [keys[other] for other in row[field] if other in keys]
    if name is not None:
        return {**told, "tool": keys[name]} if name in keys else None
    strange = bool(row.get("near") or others) and not told.get("near")
    fitted = any(other in registry for other in row.get("fitted_by", ()))
    if strange or fitted or any(_stems(row["request"]) & other for other in others):
        return None
    return told


def _all(registry: Registry) -> tuple[ToolSpec, ...]:
    return (*registry.tools, *registry.shadowed)


def _is_known(tool: ToolSpec) -> bool:
    return description_digest(tool) in _digests().get(tool.name, ())


def _known_keys(registry: Registry) -> dict[str, str]:
    """Return what decisions call the known tools of a registry, by their names."""
    qualified = {tool.name: tool.qualified_name for tool in registry.shadowed if _is_known(tool)}
    return qualified | {tool.name: tool.name for tool in registry.tools if _is_known(tool)}


def _stems(text: str) -> set[str]:
    return {word.rstrip("s").removesuffix("e") for word in words(text)}


def digests_of(tools: Iterable[ToolSpec]) -> str:
    """Return the text of the file that says which tools the rows were written for or held against."""
    found: dict[str, list[str]] = {}
    for tool in tools:
        found.setdefault(tool.name, []).append(description_digest(tool))
    return json.dumps(dict(sorted(found.items())), indent=0) + "\n"


def known_vectors(embedder: str, texts: Sequence[str]) -> dict[str, Floats]:
    """Return the vectors of those `texts` that come with the package, by text.

    Parameters
    ----------
    embedder
        Fingerprint of the embedder that they are wanted of; the package has those of the bundled one.
    texts
        As they are matched, see `normalise`.

    Returns
    -------
    Each float32 [dim], to within half a level of INT8, which is how the index keeps them anyway.
    """
    places, rows = _vectors(embedder)
    return {text: rows[places[key]] for text in texts if (key := _key(text)) in places}


def write_known_vectors(path: Path, embedder: Embedder) -> None:
    """Write the vectors of all requests of the package, as `embedder` makes them."""
    from safetensors.numpy import save

    without = [row["request"] for row in package_rows() if row.get("tool") is None and not row.get("context")]
    asked = [*(request for some in _by_tool().values() for request in some), *without]
    texts = list(dict.fromkeys(normalise(request).text for request in asked))
    rows = quantise(embedder.embed_queries(texts), clip_of(embedder.dim))
    keys = np.frombuffer(b"".join(_key(text) for text in texts), np.uint8).reshape(len(texts), _KEY_BYTES)
    atomic_write(path, save({"keys": keys, "rows": rows}, metadata={"embedder": embedder.fingerprint}))


def _key(text: str) -> bytes:
    return hashlib.sha256(text.encode(errors="surrogatepass")).digest()[:_KEY_BYTES]


@cache
def _vectors(embedder: str) -> tuple[dict[bytes, int], Floats]:
    from safetensors import safe_open

    path = files(__package__).joinpath(_FOLDER, _VECTORS)
    with as_file(path) as file, safe_open(file, framework="numpy") as opened:
        if (opened.metadata() or {}).get("embedder") != embedder:
            return {}, np.zeros((0, 0), np.float32)
        keys, rows = opened.get_tensor("keys"), opened.get_tensor("rows")
    step = np.float32(clip_of(rows.shape[1]) / LEVELS)
    return {key.tobytes(): place for place, key in enumerate(keys)}, rows.astype(np.float32) * step


@cache
def _digests() -> dict[str, tuple[str, ...]]:
    file = files(__package__).joinpath(_FOLDER, _TOOLS)
    return {name: tuple(digests) for name, digests in json.loads(file.read_text(encoding="utf-8")).items()}


@cache
def _by_tool() -> dict[str, tuple[str, ...]]:
    found: dict[str, list[str]] = {}
    for row in package_rows():
        # A request that leans on what was said before is no example: by itself it may mean any tool.
        if row.get("tool") and not row.get("context"):
            found.setdefault(row["tool"], []).append(row["request"])
    return {name: tuple(dict.fromkeys(requests)) for name, requests in found.items()}
