"""How many tokens a tool takes as a signature, beside its full schema."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from statistics import median
from typing import TYPE_CHECKING

from nexus_lab.bench.base import Result, ResultFile
from nexus_lab.bench.splice_tools import SPLICE_CASES
from nexus_lab.registry import (
    Registry,
    RegistryFormatError,
    SignatureDetail,
    load_registry,
    schema_text,
    signature,
)

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["Tokenize", "measure", "run"]

Tokenize = Callable[[str], Sequence[int]]


def run(
    registry: Path | str | None = None, *, tokenize: Tokenize | None = None, model: str = "bundled"
) -> ResultFile:
    """Count the tokens of every tool of a registry, at each detail of the signature and in full.

    Parameters
    ----------
    registry
        What `load_registry` reads; the few tools that this package measures with by default.
    tokenize
        The tokenizer; by default the one of `model`, which is loaded for it.
    model
        Model whose tokenizer counts: ``bundled``, a GGUF file, or ``hf:owner/repo/file``.

    Returns
    -------
    ``tokens_median``, ``tokens_p99`` and ``tokens_total`` for each system (``full_schema``, ``dense``,
    ``line``, ``brief``, ``inline``), and ``token_saving``: the share of the full schemas' tokens that a
    signature does without, over the whole registry. A census of the registry, so that there are no intervals.

    Raises
    ------
    RegistryFormatError
        When the registry cannot be read, or has no tools.
    """
    tools = load_registry(registry) if registry is not None else _own_tools()
    settings = {"registry": tools.name, "fingerprint": tools.fingerprint, "tokenizer": model}
    if tokenize is not None:
        return ResultFile.now(
            "bench signatures", measure(tools, tokenize), settings={**settings, "tokenizer": "given"}
        )
    from nexus_lab.engine import Engine

    with Engine.load(model, n_ctx=512) as engine:
        results = measure(tools, lambda text: engine.tokenize(text, special=False))
    return ResultFile.now("bench signatures", results, settings=settings)


def measure(registry: Registry, tokenize: Tokenize) -> list[Result]:
    """Return the figures of `registry` under one tokenizer.

    Raises
    ------
    RegistryFormatError
        When it has no tools.
    """
    if not len(registry):
        raise RegistryFormatError("the registry has no tools to count", next_step="give one that has")
    full = [len(tokenize(schema_text(tool))) for tool in registry]
    results = _figures("full_schema", full, full)
    for detail in SignatureDetail:
        counts = [len(tokenize(signature(tool, detail=detail))) for tool in registry]
        results += _figures(detail.value, counts, full)
    return results


def _figures(system: str, counts: list[int], full: list[int]) -> list[Result]:
    number = len(counts)
    case = {"n_tools": number, "system": system}
    values = {
        "tokens_median": float(median(counts)),
        "tokens_p99": float(sorted(counts)[-(-99 * number // 100) - 1]),
        "tokens_total": float(sum(counts)),
    }
    results = [
        Result(case=case, metric=metric, value=value, n=number, unit="tokens")
        for metric, value in values.items()
    ]
    if counts is not full:
        results.append(Result(case=case, metric="token_saving", value=1 - sum(counts) / sum(full), n=number))
    return results


def _own_tools() -> Registry:
    return load_registry([json.loads(case.schema_text) for case in SPLICE_CASES], name="bench")
