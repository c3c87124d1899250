"""Looking through the block files of a library: what each is, and which of them are of no use."""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from nexus_lab.splice.base import BlockRefused
from nexus_lab.splice.blocks import ToolBlock
from nexus_lab.splice.library import MODEL_FILE
from nexus_lab.splice.model import block_fingerprint
from nexus_lab.splice.shelf import entries, leftovers, touch

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from nexus_lab.engine import Engine
    from nexus_lab.splice.shelf import BlockEntry

__all__ = ["BlockReport", "BlockState", "model_label", "survey"]


class BlockState(StrEnum):
    """What a file of the library is good for.

    ``whole`` is a block that can be spliced. ``damaged`` is no whole block file, or its payload is not the
    one its header names. ``foreign`` fits another model, build of llama.cpp, rotation or tokenizer than what
    it is looked at with, or than its folder says. ``stale`` is whole, but of no tool as the registry has it
    now. ``unfinished`` is what a writer that was killed left behind.
    """

    WHOLE = "whole"
    DAMAGED = "damaged"
    FOREIGN = "foreign"
    STALE = "stale"
    UNFINISHED = "unfinished"


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockReport:
    """One file of the library.

    Attributes
    ----------
    path
        The file.
    state, detail
        What it is good for, and why when that is nothing.
    model
        Fingerprint of model and build in whose folder it lies.
    label
        Name of that model, or its fingerprint where the folder does not say.
    nbytes
        Length, in bytes.
    used_ns
        When it was last used, in nanoseconds since the epoch.
    tool
        Name of the tool; ``None`` where no registry was given, or it has none with these tokens.
    n_tokens, anchor
        Length of the block and position of its first token; ``None`` when the file cannot be read.
    """

    path: Path
    state: BlockState
    detail: str = ""
    model: str
    label: str
    nbytes: int
    used_ns: int
    tool: str | None = None
    n_tokens: int | None = None
    anchor: int | None = None


def survey(
    root: Path,
    *,
    engine: Engine | None = None,
    tools: Mapping[tuple[int, ...], str] | None = None,
    verify: bool = True,
    on_progress: Callable[[int, int], None] | None = None,
) -> tuple[BlockReport, ...]:
    """Look at every file below `root`, the block used longest ago first; counts as no use of any.

    Parameters
    ----------
    root
        Folder of the blocks of all models.
    engine
        Running model to compare the headers with; without one a block is compared with its folder alone.
    tools
        Tokens of the blocks of a registry's tools under that model, and the names of the tools.
    verify
        Check the hashes of the payloads, which reads all files whole.
    on_progress
        Called with the files done and all of them.

    Returns
    -------
    tuple of BlockReport
        Files that vanish meanwhile are left out.
    """
    found = entries(root)
    reports = []
    for done, entry in enumerate(found, start=1):
        report = _looked_at(entry, engine, tools, verify=verify)
        if report is not None:
            reports.append(report)
        if on_progress is not None:
            on_progress(done, len(found))
    return (*reports, *filter(None, map(_leftover, leftovers(root))))


def model_label(folder: Path) -> str:
    """Name of the model whose blocks lie in `folder`; the folder's own name where it does not say."""
    return str(_said(folder).get("name", "")) or folder.name


def _said(folder: Path) -> dict[str, Any]:
    """Return what a folder says of its blocks, if anything."""
    try:
        said = json.loads((folder / MODEL_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return said if isinstance(said, dict) else {}


def _looked_at(
    entry: BlockEntry,
    engine: Engine | None,
    tools: Mapping[tuple[int, ...], str] | None,
    *,
    verify: bool,
) -> BlockReport | None:
    try:
        block = ToolBlock(entry.path, verify=verify)
    except FileNotFoundError:
        return None
    except BlockRefused as refused:
        return _report(entry, BlockState.DAMAGED, _difference(refused))
    except OSError as error:
        return _report(entry, BlockState.DAMAGED, f"it cannot be read: {error.strerror or error}")
    finally:
        touch(entry.path, used_ns=entry.used_ns)
    state, detail = _fit(entry, block, engine)
    tool = None
    if tools is not None and engine is not None and entry.model == block_fingerprint(engine):
        tool = tools.get(block.tokens)
        if state is BlockState.WHOLE and tool is None:
            state, detail = BlockState.STALE, "no tool of the registry has these tokens"
    return _report(entry, state, detail, tool=tool, n_tokens=block.n_tokens, anchor=block.anchor)


def _fit(entry: BlockEntry, block: ToolBlock, engine: Engine | None) -> tuple[BlockState, str]:
    """Compare a whole block with its folder, and with the running model."""
    fingerprint = bytes(block.header.fingerprint).hex()
    if fingerprint != entry.model:
        return BlockState.FOREIGN, f"fingerprint is {fingerprint}, its folder's is {entry.model}"
    if engine is None:
        return BlockState.WHOLE, ""
    try:
        block.check(engine)
    except BlockRefused as refused:
        return BlockState.FOREIGN, _other_build(entry, engine) or _difference(refused)
    return BlockState.WHOLE, ""


def _other_build(entry: BlockEntry, engine: Engine) -> str:
    """Say that a block of the running model is of another build; empty where it is not."""
    # Before builds were told apart, a folder was named by the model alone.
    said = _said(entry.path.parent)
    model = said.get("fingerprint", entry.model)
    if entry.model == block_fingerprint(engine) or model != engine.info.fingerprint:
        return ""
    build = str(said.get("build", "")) or "a build of llama.cpp that it does not name"
    return f"fingerprint: it is of {build:.200}, and {engine.build} runs"


def _difference(refused: BlockRefused) -> str:
    return f"{refused.field} is {refused.found}, expected {refused.expected}"


def _report(
    entry: BlockEntry,
    state: BlockState,
    detail: str,
    *,
    tool: str | None = None,
    n_tokens: int | None = None,
    anchor: int | None = None,
) -> BlockReport:
    return BlockReport(
        path=entry.path,
        state=state,
        detail=detail,
        model=entry.model,
        label=model_label(entry.path.parent),
        nbytes=entry.nbytes,
        used_ns=entry.used_ns,
        tool=tool,
        n_tokens=n_tokens,
        anchor=anchor,
    )


def _leftover(path: Path) -> BlockReport | None:
    try:
        facts = path.stat()
    except OSError:
        return None
    return BlockReport(
        path=path,
        state=BlockState.UNFINISHED,
        detail="its writer ended before it was done",
        model=path.parent.name,
        label=model_label(path.parent),
        nbytes=facts.st_size,
        used_ns=facts.st_mtime_ns,
    )
