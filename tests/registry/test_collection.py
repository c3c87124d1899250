"""A registry is immutable, finds tools by both names, and survives being saved."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nexus_lab.registry import ProblemKind, Registry, ServerConfig, ToolNotFound, ToolSpec, load_registry


def tool(name: str, server: str | None = None, text: str = "x") -> ToolSpec:
    return ToolSpec(name, text, {"type": "object", "properties": {}}, server=server)


def test_lookup_by_name_and_qualified_name():
    registry = Registry.of([tool("a", "s"), tool("b", "s"), tool("c")])
    assert registry["a"] is registry["s.a"]
    assert registry["c"].server is None
    assert "s.b" in registry
    assert "s.c" not in registry
    assert registry.get("nope") is None
    assert registry.names == ("a", "b", "c")
    assert len(registry) == 3
    assert [t.name for t in registry.of_server("s")] == ["a", "b"]


def test_a_missing_tool_names_the_nearest():
    registry = Registry.of([tool("create_issue"), tool("close_issue")])
    with pytest.raises(ToolNotFound) as caught:
        registry["create_isue"]
    assert "create_issue" in caught.value.next_step


def test_the_first_server_keeps_a_name_and_the_other_stays_reachable():
    registry = Registry.of([tool("search", "github"), tool("search", "gitlab")])
    assert registry["search"].server == "github"
    assert registry["gitlab.search"].server == "gitlab"
    assert registry.names == ("search",)
    (problem,) = registry.problems
    assert problem.kind is ProblemKind.DUPLICATE_NAME
    assert (problem.tool, problem.server) == ("search", "gitlab")
    assert "gitlab.search" in problem.message


def test_a_name_twice_on_one_server_keeps_the_first():
    registry = Registry.of([tool("a", "s", "first"), tool("a", "s", "second")])
    assert registry["a"].description == "first"
    assert registry.shadowed == ()
    assert [problem.kind for problem in registry.problems] == [ProblemKind.DUPLICATE_NAME]


def test_a_plain_name_wins_over_a_qualified_one():
    registry = Registry.of([tool("b", "a", "qualified"), tool("a.b", None, "plain")])
    assert registry["a.b"].description == "plain"


def test_adding_removing_and_replacing_give_new_registries():
    before = Registry.of([tool("a", "s"), tool("a", "t")])
    grown = before.add(tool("b"))
    assert before.names == ("a",)
    assert grown.names == ("a", "b")
    assert len(grown.problems) == 1
    removed = grown.remove("a")
    assert removed["a"].server == "t"
    assert removed.problems == ()
    changed = grown.replace(tool("a", "t", "new"))
    assert changed["t.a"].description == "new"
    assert changed["a"].description == "x"
    with pytest.raises(ToolNotFound):
        grown.replace(tool("zzz"))
    with pytest.raises(ToolNotFound):
        grown.remove("zzz")


def test_removing_a_server_frees_its_names():
    registry = Registry.of([tool("a", "s"), tool("a", "t"), tool("b", "s")])
    assert registry.remove_server("s").names == ("a",)
    assert registry.remove_server("s")["a"].server == "t"


def test_merging_keeps_what_is_there_first():
    first, second = Registry.of([tool("a", "s")], name="one"), Registry.of([tool("a", "t"), tool("b", "t")])
    merged = first.merge(second)
    assert merged.name == "one"
    assert merged.names == ("a", "b")
    assert merged["t.a"].server == "t"
    assert len(merged.problems) == 1


def test_the_fingerprint_follows_the_content_of_the_tools():
    base = Registry.of([tool("a"), tool("b")], name="x")
    assert base.fingerprint == Registry.of([tool("a"), tool("b")], name="y").fingerprint
    others = [
        Registry.of([tool("b"), tool("a")]),
        Registry.of([tool("a"), tool("b", text="other")]),
        Registry.of([tool("a"), tool("b", "server")]),
        Registry.of([tool("a")]),
    ]
    assert len({registry.fingerprint for registry in (base, *others)}) == 5


NAMES = st.text(alphabet="abc.名\x1b ", min_size=1, max_size=6).filter(str.strip)
TOOLS = st.builds(tool, NAMES, st.none() | st.sampled_from(["s", "t"]), st.text(max_size=10))


@settings(max_examples=50, deadline=None)
@given(st.lists(TOOLS, max_size=8))
def test_a_saved_registry_is_read_back_equal(tools):
    registry = Registry.of(tools, name="saved")
    again = load_registry(json.loads(json.dumps(registry.to_dict())))
    assert again == registry
    assert again.fingerprint == registry.fingerprint


@settings(max_examples=50, deadline=None)
@given(st.lists(TOOLS, max_size=8))
def test_every_tool_is_found_by_a_name_of_its_own(tools):
    registry = Registry.of(tools)
    assert len(set(registry.names)) == len(registry.names)
    for name in registry.names:
        assert registry[name].name == name


def test_saving_is_whole_and_holds_no_secrets(tmp_path):
    config = ServerConfig(
        "s",
        command="server",
        args=("--token", "hunter22", "--port", "80"),
        env={"API_KEY": "sk-1234567890"},
    )
    remote = ServerConfig(
        "r", url="https://u:pw@h.example/mcp?key=abc", headers={"Authorization": "Bearer zzzz"}
    )
    registry = Registry.of([tool("a", "s")], servers=[config, remote])
    path = registry.save(str(tmp_path / "folder" / "registry.json"))
    text = path.read_text()
    assert not any(secret in text for secret in ("hunter22", "sk-1234567890", "pw@", "abc", "zzzz"))
    again = load_registry(path)
    assert again.tools == registry.tools
    assert [server.name for server in again.servers] == ["s", "r"]
    assert again.servers[0].env == {"API_KEY": None}


def test_an_empty_registry_says_so():
    assert [problem.kind for problem in load_registry([]).problems] == [ProblemKind.NO_TOOLS]
