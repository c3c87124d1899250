"""Every form a registry comes in is read, and what is none says what it is instead."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from nexus_lab.registry import (
    ProblemKind,
    RegistryFormatError,
    Severity,
    SourceFormat,
    Transport,
    load_registry,
    loading,
    signature,
)
from nexus_lab.registry.loading import detect_format

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
MCP = {
    "name": "weather",
    "description": "Tell the weather",
    "inputSchema": SCHEMA,
    "annotations": {"readOnlyHint": True},
}
CHAT = {
    "type": "function",
    "function": {"name": "weather", "description": "Tell the weather", "parameters": SCHEMA},
}
RESPONSES = {"type": "function", "name": "weather", "description": "Tell the weather", "parameters": SCHEMA}
ANTHROPIC = {"name": "weather", "description": "Tell the weather", "input_schema": SCHEMA}
FUNCTIONS = {"name": "weather", "description": "Tell the weather", "parameters": SCHEMA}


@pytest.mark.parametrize(
    "document",
    [
        [MCP],
        {"tools": [MCP]},
        {"jsonrpc": "2.0", "id": 1, "result": {"tools": [MCP], "nextCursor": None}},
        [CHAT],
        {"model": "m", "tools": [CHAT]},
        [RESPONSES],
        {"tools": [RESPONSES]},
        [ANTHROPIC],
        {"tools": [ANTHROPIC]},
        [FUNCTIONS],
        {"functions": [FUNCTIONS]},
    ],
)
def test_tool_lists_of_every_form(document):
    registry = load_registry(document)
    assert registry.problems == ()
    (tool,) = registry
    assert signature(tool) == "weather(city: string) - Tell the weather"
    assert tool.input_schema == SCHEMA


def test_forms_may_be_mixed_and_strangers_are_named():
    provider = {"type": "web_search_20250305", "name": "web_search", "max_uses": 3}
    registry = load_registry([MCP, {**CHAT["function"], "name": "b"}, provider, {"foo": 1}, 7])
    assert registry.names == ("weather", "b")
    assert [(problem.kind, problem.severity) for problem in registry.problems] == [
        (ProblemKind.PROVIDER_TOOL, Severity.NOTE),
        (ProblemKind.NOT_A_TOOL, Severity.ERROR),
        (ProblemKind.NOT_A_TOOL, Severity.ERROR),
    ]


def test_annotations_and_servers_are_kept():
    registry = load_registry([{**MCP, "server": "a"}, {**MCP, "name": "other"}], server="b")
    assert registry["weather"].read_only
    assert registry["a.weather"].server == "a"
    assert registry["other"].server == "b"


def test_files_are_read_by_content(tmp_path):
    path = tmp_path / "my-tools.txt"
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps({"tools": [MCP]}).encode())
    registry = load_registry(path)
    assert registry.name == "my-tools"
    assert len(registry) == 1
    assert load_registry(str(path), name="given").name == "given"


CLIENT = {
    "mcpServers": {
        "time": {"command": "uvx", "args": ["mcp-server-time"], "env": {"API_KEY": "sk-verysecret"}},
        "web": {
            "type": "http",
            "url": "https://example.org/mcp",
            "headers": {"Authorization": "Bearer abcdefgh"},
        },
        "old": {"type": "sse", "url": "https://example.org/sse"},
        "broken": {"args": []},
        "worse": "text",
        "typed": {"command": ["uvx"]},
    }
}


@pytest.mark.parametrize(
    "document",
    [
        CLIENT,
        {"servers": CLIENT["mcpServers"]},
        {"mcp": {"servers": CLIENT["mcpServers"]}},
        {"theme": "dark", "context_servers": CLIENT["mcpServers"]},
    ],
)
def test_client_configurations_are_listed(document):
    registry = load_registry(document)
    assert [(server.name, server.transport) for server in registry.servers] == [
        ("time", Transport.STDIO),
        ("web", Transport.HTTP),
        ("old", Transport.SSE),
    ]
    assert len(registry) == 0
    assert [problem.server for problem in registry.errors] == ["broken", "worse", "typed"]
    assert registry.servers[0].args == ("mcp-server-time",)
    for text in (
        repr(registry),
        repr(registry.servers),
        str(registry.to_dict()),
        *map(str, registry.problems),
    ):
        assert "sk-verysecret" not in text
        assert "abcdefgh" not in text


def test_loading_a_client_configuration_starts_nothing(tmp_path):
    marker = tmp_path / "started"
    config = {"mcpServers": {"x": {"command": sys.executable, "args": ["-c", f"open({str(marker)!r}, 'w')"]}}}
    path = tmp_path / "client.json"
    path.write_text(json.dumps(config))
    assert len(load_registry(path).servers) == 1
    assert not marker.exists()


@pytest.mark.parametrize(
    ("document", "found"),
    [
        ({}, "an empty object"),
        ({"a": 1, "b": 2}, "the keys a, b"),
        (["x", "y"], "a list that begins with a text"),
        ([{"foo": 1}], "a list that begins with an object"),
        ({"tools": {"a": 1}}, "the keys tools"),
        ({"openapi": "2.0"}, "OpenAPI 2.0"),
        ({"swagger": "2.0", "paths": {}}, "OpenAPI 2.0"),
        ({"openapi": "3.1.0"}, "OpenAPI without paths"),
        ({"evil\x1b[31m": 1}, "evil\\x1b[31m"),
    ],
)
def test_what_is_no_registry_says_what_it_is(document, found):
    with pytest.raises(RegistryFormatError) as caught:
        load_registry(document)
    assert found in caught.value.found
    assert caught.value.next_step


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.json", b"", "is empty"),
        ("a.json", b"{not json", "line 1"),
        ("a.json", b"\xff\xfe\x00", "not UTF-8"),
        ("a.json", b"[" * 100_000, "deeply"),
        ("a.json", b'{"tools": [{"name": "a", "inputSchema": {"maximum": NaN}}]}', "NaN"),
        ("a.yaml", b"a: [1", "not YAML"),
        ("a.yaml", b"just text", "it is a text"),
        ("a.json", b'"text"', "it is a text"),
    ],
)
def test_unreadable_files_give_typed_errors(tmp_path, name, content, said):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(RegistryFormatError, match=said):
        load_registry(path)


def test_missing_files_and_folders(tmp_path):
    with pytest.raises(RegistryFormatError, match="no file"):
        load_registry(tmp_path / "none.json")
    with pytest.raises(RegistryFormatError, match="cannot be read"):
        load_registry(tmp_path)


def test_huge_documents_are_refused(tmp_path):
    path = tmp_path / "huge.json"
    with path.open("wb") as file:
        file.truncate(65 * 1024 * 1024)
    with pytest.raises(RegistryFormatError, match="MB"):
        load_registry(path)


def test_a_yaml_bomb_is_refused(tmp_path, monkeypatch):
    monkeypatch.setitem(loading._DOCUMENT_LIMITS, "max_nodes", 100_000)
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 12)]
    path = tmp_path / "bomb.yaml"
    path.write_text("\n".join([*lines, "tools: *a11"]))
    with pytest.raises(RegistryFormatError, match="too many parts"):
        load_registry(path)


def test_without_pyyaml_the_error_says_what_to_do(tmp_path):
    path = tmp_path / "api.yaml"
    path.write_text("openapi: 3.0.0\npaths: {}\n")
    code = (
        "import sys; sys.modules['yaml'] = None\n"
        "from nexus_lab.registry import load_registry, RegistryFormatError\n"
        f"try: load_registry({str(path)!r})\n"
        "except RegistryFormatError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pip install pyyaml" in done.stdout


def test_detection():
    assert detect_format([]) is SourceFormat.TOOLS
    assert detect_format({"openapi": "3.0.0", "paths": {}}) is SourceFormat.OPENAPI
    assert detect_format(CLIENT) is SourceFormat.CLIENT


def test_importing_the_room_is_cheap():
    heavy = ("mcp", "jsonschema", "yaml", "httpx2", "anyio", "pydantic", "rich")
    code = f"import sys, nexus_lab.registry; print([m for m in {heavy!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("file", "count"),
    [
        ("n10", 10),
        ("n50", 50),
        ("n100", 100),
        ("n250", 250),
        ("scale", 1651),
        ("github_all", 117),
        ("gitlab", 201),
        ("metatool", 199),
        ("bfcl_functions.dev", 716),
        ("tau_airline", 14),
    ],
)
def test_real_registries_load_whole(data_dir, tmp_path, file, count):
    registry = load_registry(data_dir / "registries" / f"{file}.json")
    assert len(registry) == count
    assert registry.errors == ()
    if count <= 250:
        assert load_registry(registry.save(tmp_path / "saved.json")) == registry
