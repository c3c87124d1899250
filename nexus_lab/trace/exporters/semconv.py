"""How spans are named and described for OpenTelemetry: the GenAI semantic conventions, in one version.

What the conventions have a name for takes that name; everything else stands under ``nexus.``. A span whose
kind they do not know carries ``openinference.span.kind``, so that viewers can still place it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from nexus_lab.agent.base import EventKind
from nexus_lab.trace.schema import to_json

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nexus_lab.trace.tree import SpanNode

__all__ = ["PROVIDER", "SEMCONV_NAME", "SEMCONV_VERSION", "Context", "describe"]

SEMCONV_NAME = "opentelemetry semantic-conventions-genai"
SEMCONV_VERSION = "0.1.0"
PROVIDER = "llama_cpp"


class Context(NamedTuple):
    """What a span's description needs to know of its surroundings."""

    model: str
    conversation: str
    routing: Mapping[str, Any] | None
    op: Mapping[str, Any] | None
    fidelity: Mapping[str, Any] | None
    turn: Mapping[str, Any] | None


class _Standard(NamedTuple):
    operation: str
    subject: str  # attribute that completes the span's name
    names: Mapping[str, str]
    content_names: Mapping[str, str]


_STANDARD: dict[str, _Standard] = {
    EventKind.TURN: _Standard("invoke_agent", "agent", {"agent": "gen_ai.agent.name"}, {}),
    EventKind.EMBEDDINGS: _Standard(
        "embeddings",
        "model",
        {
            "model": "gen_ai.request.model",
            "dimensions": "gen_ai.embeddings.dimension.count",
            "input_tokens": "gen_ai.usage.input_tokens",
        },
        {},
    ),
    EventKind.RETRIEVAL: _Standard(
        "retrieval",
        "registry",
        {"registry": "gen_ai.data_source.id", "top_k": "gen_ai.retrieval.top_k"},
        {"query": "gen_ai.retrieval.query.text"},
    ),
    EventKind.GENERATE: _Standard(
        "chat",
        "model",
        {
            "model": "gen_ai.request.model",
            "input_tokens": "gen_ai.usage.input_tokens",
            "cached_tokens": "gen_ai.usage.cache_read.input_tokens",
            "output_tokens": "gen_ai.usage.output_tokens",
            "tokens": "gen_ai.usage.output_tokens",
            "ttft_s": "gen_ai.response.time_to_first_chunk",
            "temperature": "gen_ai.request.temperature",
            "top_p": "gen_ai.request.top_p",
            "top_k": "gen_ai.request.top_k",
            "seed": "gen_ai.request.seed",
            "max_tokens": "gen_ai.request.max_tokens",
        },
        {},
    ),
    EventKind.TOOL: _Standard(
        "execute_tool",
        "tool",
        {"tool": "gen_ai.tool.name", "call_id": "gen_ai.tool.call.id"},
        {"arguments": "gen_ai.tool.call.arguments", "result": "gen_ai.tool.call.result"},
    ),
}

_OPENINFERENCE: dict[str, str] = {
    EventKind.RERANK: "RERANKER",
    EventKind.GATE: "EVALUATOR",
    EventKind.FIDELITY: "EVALUATOR",
    EventKind.CORRECTION: "EVALUATOR",
}

_SPAN_NAMES: dict[str, str] = {EventKind.REPAIR: "nexus.redecode", EventKind.CACHE_OP: "nexus.cache"}


def describe(node: SpanNode, context: Context) -> tuple[str, dict[str, Any]]:
    """Return the span's name and its attributes; values are JSON values."""
    attributes: dict[str, Any] = {}
    standard = _STANDARD.get(node.kind)
    if standard is None:
        name = _SPAN_NAMES.get(node.kind, f"nexus.{node.kind}")
        attributes["openinference.span.kind"] = _OPENINFERENCE.get(node.kind, "CHAIN")
        attributes["nexus.name"] = node.name
    else:
        name = _standard_span(node, standard, context, attributes)
    names = standard.names if standard else {}
    for key, value in node.attributes.items():
        attributes.setdefault(names.get(key, f"nexus.{node.kind}.{key}"), value)
    _add_contents(node, standard, attributes)
    _add_rows(context, attributes)
    if "error_type" in node.attributes:
        attributes["error.type"] = node.attributes["error_type"]
    return name, {key: value for key, value in attributes.items() if value is not None}


def _standard_span(node: SpanNode, standard: _Standard, context: Context, attributes: dict[str, Any]) -> str:
    """Add what every standard span has, and return its name."""
    attributes["gen_ai.operation.name"] = standard.operation
    if node.kind != EventKind.TOOL:
        attributes["gen_ai.provider.name"] = node.attributes.get("provider", PROVIDER)
    if node.kind in (EventKind.TURN, EventKind.GENERATE):
        attributes["gen_ai.conversation.id"] = node.attributes.get("conversation", context.conversation)
        attributes["gen_ai.request.model"] = node.attributes.get("model", context.model)
    if node.kind == EventKind.TOOL:
        attributes["gen_ai.tool.type"] = "function"
        attributes["gen_ai.tool.name"] = node.attributes.get("tool") or node.name
    if node.kind == EventKind.GENERATE and node.attributes.get("stop_reason"):
        attributes["gen_ai.response.finish_reasons"] = [node.attributes["stop_reason"]]
    known = {"model": context.model, "agent": "nexus_lab", "tool": node.name}
    subject = known | {key: value for key, value in node.attributes.items() if value is not None}
    attributes["nexus.name"] = node.name
    return " ".join(str(part) for part in (standard.operation, subject.get(standard.subject)) if part)


def _add_contents(node: SpanNode, standard: _Standard | None, attributes: dict[str, Any]) -> None:
    contents = dict(node.contents)
    if node.kind in (EventKind.TURN, EventKind.GENERATE):
        asked = contents.pop("request", None) or contents.pop("prompt", None)
        said = contents.pop("answer", None) or contents.pop("text", None)
        if asked is not None:
            attributes["gen_ai.input.messages"] = to_json([_message("user", asked)], strict=True)
        if said is not None:
            reason = {"finish_reason": str(node.attributes.get("stop_reason", "stop"))}
            attributes["gen_ai.output.messages"] = to_json(
                [_message("assistant", said) | reason], strict=True
            )
    names = standard.content_names if standard else {}
    for key, value in contents.items():
        attributes[names.get(key, f"nexus.{node.kind}.{key}")] = value


def _message(role: str, content: Any) -> dict[str, Any]:
    text = content if isinstance(content, str) else to_json(content, strict=True)
    return {"role": role, "parts": [{"type": "text", "content": text}]}


def _add_rows(context: Context, attributes: dict[str, Any]) -> None:
    """Add the numbers of the typed rows that the span carries."""
    if context.routing is not None:
        _add_routing(context.routing, attributes)
    if context.op is not None:
        for key in ("op", "state_id", "parent_state_id", "tokens", "active_tokens", "next_position", "block"):
            attributes[f"nexus.cache.{key}"] = context.op[key]
        attributes["nexus.cache.positions"] = to_json(context.op["positions"])
    if context.fidelity is not None:
        keys = ("path", "block", "n_past", "n_tokens", "repaired", "strategy", "dkl", "noise_floor", "top1")
        for key in (*keys, "ttft_s", "prefill_s", "decline_code", "decline_reason", "decline_instead"):
            attributes[f"nexus.fidelity.{key}"] = context.fidelity[key]
    if context.turn is not None:
        for key in ("outcome", "schema_mode", "ttft_s", "problem"):
            attributes[f"nexus.turn.{key}"] = context.turn[key]
        attributes["gen_ai.usage.input_tokens"] = context.turn["prompt_tokens"]
        attributes["gen_ai.usage.cache_read.input_tokens"] = context.turn["reused_tokens"]
        attributes["gen_ai.usage.output_tokens"] = context.turn["generated_tokens"]


def _add_routing(routing: Mapping[str, Any], attributes: dict[str, Any]) -> None:
    for key in ("margin", "tau", "decision", "tool", "reason"):
        attributes[f"nexus.gate.{key}"] = routing[key]
    documents = [{"id": item["tool"], "score": item["score"]} for item in routing["candidates"] or ()]
    attributes["gen_ai.retrieval.documents"] = to_json(documents, strict=True)
