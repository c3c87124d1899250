"""Loading a registry from whatever form it comes in. Nothing here starts a process or opens a connection."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any

from nexus_lab.registry.clients import server_entries, servers_from_entries
from nexus_lab.registry.collection import FORMAT, Registry
from nexus_lab.registry.config import ServerConfig
from nexus_lab.registry.errors import RegistryFormatError, SchemaRefused
from nexus_lab.registry.json_values import copy_json, kind_of, parse_json
from nexus_lab.registry.lists import tool_entries, tools_from_entries
from nexus_lab.registry.openapi import is_openapi, tools_from_openapi
from nexus_lab.registry.text import neutralise

__all__ = ["SourceFormat", "detect_format", "load_registry", "load_registry_text"]

_ACCEPTED = (
    "MCP tools/list JSON",
    "an OpenAI or Anthropic tool list",
    "OpenAPI 3 (JSON or YAML)",
    "a client's mcpServers JSON",
    "a registry saved by nexus-lab",
)
_FILE_LIMIT = 64 * 1024 * 1024
_DOCUMENT_LIMITS = {"max_depth": 200, "max_nodes": 2_000_000, "max_text": _FILE_LIMIT}
_YAML_SUFFIXES = (".yaml", ".yml")


class SourceFormat(StrEnum):
    """What a document is."""

    SAVED = "nexus-lab registry"
    TOOLS = "tool list"
    OPENAPI = "OpenAPI 3"
    CLIENT = "client configuration"


def load_registry(
    source: str | Path | Mapping[str, Any] | list[Any], *, name: str | None = None, server: str | None = None
) -> Registry:
    """Read a registry of tools; the form is found out from the content.

    Parameters
    ----------
    source
        Path of a file, or a document that was already parsed: MCP ``tools/list``, an OpenAI or Anthropic
        tool list, OpenAPI 3, a client's ``mcpServers`` (its servers are listed, none is started), or a
        registry that was saved. YAML is read where PyYAML is installed.
    name
        Name of the registry; the document's or the file's by default.
    server
        Server that the tools belong to, where the document names none.

    Raises
    ------
    RegistryFormatError
        When the source cannot be read or is none of these; it says what was found.

    Examples
    --------
    >>> load_registry([{"name": "now", "description": "Tell the time", "inputSchema": {"type": "object"}}])
    Registry('registry', 1 tools, 0 problems)
    """
    origin = "the source"
    document: Any = source
    if isinstance(source, str | Path):
        path = Path(source).expanduser()
        origin = neutralise(str(path), limit=200)
        document = _read(path, origin)
        name = name or _own_name(document) or path.stem
    return _load_document(document, origin, name, server)


def load_registry_text(text: str, *, name: str | None = None, server: str | None = None) -> Registry:
    """Read a registry of tools from the text of such a file, for example one that was pasted.

    Raises
    ------
    RegistryFormatError
        As `load_registry` does.
    """
    origin = "the text"
    if len(text) > _FILE_LIMIT:
        raise RegistryFormatError(
            f"{origin} has {len(text) / 1e6:.0f} million characters", next_step="give the tool list alone"
        )
    document = _parse(text, origin, yaml=False)
    return _load_document(document, origin, name or _own_name(document), server)


def _load_document(document: Any, origin: str, name: str | None, server: str | None) -> Registry:
    try:
        document = copy_json(document, **_DOCUMENT_LIMITS)
    except SchemaRefused as error:
        raise RegistryFormatError(f"{origin}: {error.problem}", accepted=_ACCEPTED) from error
    return _load(document, detect_format(document, origin=origin), name or _own_name(document), server)


def _own_name(document: Any) -> str | None:
    given = document.get("name") if isinstance(document, Mapping) else None
    return given if isinstance(given, str) and given else None


def _load(document: Any, form: SourceFormat, name: str | None, server: str | None) -> Registry:
    title = neutralise(name or "registry", limit=120)
    if form is SourceFormat.OPENAPI:
        tools, problems = tools_from_openapi(document, server=server)
        return Registry.of(tools, name=title, problems=problems)
    if form is SourceFormat.CLIENT:
        servers, problems = servers_from_entries(server_entries(document) or {})
        return Registry.of((), name=title, problems=problems, servers=servers)
    tools, problems = tools_from_entries(tool_entries(document) or (), server=server)
    return Registry.of(tools, name=title, problems=problems, servers=_saved_servers(document, form))


def _saved_servers(document: Any, form: SourceFormat) -> list[ServerConfig]:
    if form is not SourceFormat.SAVED:
        return []
    entries = document.get("servers")
    return [
        ServerConfig.from_dict(entry["name"], entry)
        for entry in (entries if isinstance(entries, list) else ())
        if isinstance(entry, dict) and isinstance(entry.get("name"), str)
    ]


def detect_format(document: Any, *, origin: str = "the source") -> SourceFormat:
    """Say which form a parsed document has.

    Raises
    ------
    RegistryFormatError
        When it has none; the error says what was found and what is accepted.
    """
    if is_openapi(document):
        _check_openapi_version(document, origin)
        return SourceFormat.OPENAPI
    if isinstance(document, dict) and document.get("format") == FORMAT:
        return SourceFormat.SAVED
    entries = tool_entries(document)
    if entries is not None and (not entries or _some_tools(entries)):
        return SourceFormat.TOOLS
    if server_entries(document) is not None:
        return SourceFormat.CLIENT
    found = _describe(document, entries)
    raise RegistryFormatError(f"{origin} holds no tools: it is {found}", found=found, accepted=_ACCEPTED)


def _some_tools(entries: list[Any]) -> bool:
    return any(
        isinstance(entry, dict) and ("name" in entry or "function" in entry or "type" in entry)
        for entry in entries
    )


def _check_openapi_version(document: Mapping[str, Any], origin: str) -> None:
    version = str(document.get("openapi") or document.get("swagger"))
    shown = neutralise(version, limit=20)
    if "openapi" not in document or not version.startswith("3."):
        raise RegistryFormatError(
            f"{origin} is OpenAPI (Swagger) {shown}; version 3 is needed",
            found=f"OpenAPI {shown}",
            next_step="convert it to OpenAPI 3 first",
        )
    if not isinstance(document.get("paths"), dict):
        raise RegistryFormatError(
            f"{origin} is OpenAPI {shown} without paths, so that it has no operations",
            found="OpenAPI without paths",
            next_step="give the document that holds the paths",
        )


def _describe(document: Any, entries: list[Any] | None) -> str:
    if entries is not None:
        return f"a list that begins with {kind_of(entries[0])}, and names no tool"
    if isinstance(document, dict):
        keys = ", ".join(neutralise(key, limit=30) for key in list(document)[:6])
        return f"an object with the keys {keys}" if keys else "an empty object"
    return kind_of(document)


def _read(path: Path, origin: str) -> Any:
    return _parse(_read_text(path, origin), origin, yaml=path.suffix.lower() in _YAML_SUFFIXES)


def _parse(text: str, origin: str, *, yaml: bool) -> Any:
    if not text.strip():
        raise RegistryFormatError(f"{origin} is empty", found="nothing", accepted=_ACCEPTED)
    looks_yaml = yaml or text.startswith(("openapi:", "swagger:", "---"))
    return _parse_yaml(text, origin) if looks_yaml else parse_json(text, origin=origin)


def _read_text(path: Path, origin: str) -> str:
    try:
        size = path.stat().st_size
        if size > _FILE_LIMIT:
            raise RegistryFormatError(
                f"{origin} has {size / 1e6:.0f} MB; {_FILE_LIMIT / 1e6:.0f} MB are accepted",
                next_step="give the tool list alone",
            )
        return path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise RegistryFormatError(f"no file {origin}", next_step="check the path") from None
    except UnicodeDecodeError as error:
        raise RegistryFormatError(
            f"{origin} is not UTF-8 text (byte {error.start})", found="binary data", accepted=_ACCEPTED
        ) from error
    except OSError as error:
        raise RegistryFormatError(
            f"{origin} cannot be read: {error.strerror}", next_step="check path and permissions"
        ) from error


def _parse_yaml(text: str, origin: str) -> Any:
    import importlib

    try:
        yaml: Any = importlib.import_module("yaml")
    except ImportError as error:
        raise RegistryFormatError(
            f"{origin} is YAML, and PyYAML is not installed",
            found="YAML",
            next_step="pip install pyyaml, or give the document as JSON",
        ) from error
    base = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    loader = type("_PlainLoader", (base,), {"yaml_implicit_resolvers": _without_dates(base)})
    try:
        return _text_keys(yaml.load(text, Loader=loader), levels=_DOCUMENT_LIMITS["max_depth"])
    except yaml.YAMLError as error:
        problem = neutralise(" ".join(str(error).split()), limit=200)
        raise RegistryFormatError(f"{origin} is not YAML: {problem}", next_step="mend the file") from error
    except (RecursionError, ValueError) as error:
        raise RegistryFormatError(
            f"{origin} cannot be read as YAML: {error}", next_step="give it as JSON"
        ) from error


def _without_dates(loader: Any) -> dict[str, Any]:
    """Return the loader's rules without the one that makes dates of texts: JSON has none."""
    return {
        first: [(tag, rule) for tag, rule in rules if tag != "tag:yaml.org,2002:timestamp"]
        for first, rules in loader.yaml_implicit_resolvers.items()
    }


def _text_keys(value: Any, *, levels: int) -> Any:
    """Return `value` with keys such as ``200`` as text; aliases stay shared, so that the work is bounded."""
    seen: dict[int, Any] = {}

    def convert(part: Any, left: int) -> Any:
        if left < 0:
            raise ValueError("it is nested too deeply")
        if not isinstance(part, dict | list):
            return part
        if id(part) not in seen:
            seen[id(part)] = None
            seen[id(part)] = (
                {str(key): convert(inner, left - 1) for key, inner in part.items()}
                if isinstance(part, dict)
                else [convert(inner, left - 1) for inner in part]
            )
        return seen[id(part)]

    return convert(value, levels)
