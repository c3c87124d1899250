"""The registry's panel: which tools there are, what they cost, and the servers that bring them."""

from __future__ import annotations

from dataclasses import replace
from itertools import count
from typing import TYPE_CHECKING, Any, ClassVar

from nexus_lab.arguments import tool_text
from nexus_lab.lab.fragments import fragment
from nexus_lab.lab.panel import Panel
from nexus_lab.lab.servers import chosen, config_of, end_server, read_source, start_servers
from nexus_lab.lab.splice_parts import block_tokens
from nexus_lab.lab.token_costs import ToolFacts
from nexus_lab.lab.wire import Lane, error_info, instant, job, to_json
from nexus_lab.registry import RegistryFormatError, Severity, neutralise

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    import polars as pl

    from nexus_lab.agent import Turn
    from nexus_lab.lab.desk import Desk
    from nexus_lab.lab.sources import ToolSource
    from nexus_lab.registry import Problem, Registry, ToolSpec

__all__ = ["RegistryPanel"]

_DESCRIPTION = 400
_TEMPLATE = """
<section class="nl-registry"><h2>Registry {{ part.name }}</h2>
<p>{{ part.tools | length | number }} tools,
{{ part.signature_tokens | number }} tokens as signatures, {{ part.schema_tokens | number }} as schemas</p>
<table><thead><tr><th>Server</th><th>Status</th><th>Tools</th><th>Note</th></tr></thead><tbody>
{% for row in part.servers %}
<tr><td>{{ row.name }}</td><td>{{ row.status }}</td><td>{{ row.tools }}</td>
<td>{{ row.problem.message if row.problem else row.command or "" }}</td></tr>
{% endfor %}
</tbody></table>
{% for item in part.problems %}<p>{{ item.severity }}: {{ item.text }}</p>{% endfor %}
<table><thead><tr><th>Tool</th><th>Server</th><th>Signature</th><th>Schema</th><th>Reads only</th>
<th>Checks</th></tr></thead><tbody>
{% for row in part.tools %}
<tr><td><code>{{ row.name }}</code> {{ row.description }}</td><td>{{ row.server }}</td>
<td>{{ row.signature_tokens | number }}</td><td>{{ row.schema_tokens | number }}</td>
<td>{{ "yes" if row.read_only else "no" }}</td>
<td>{% for check in row.checks %}{{ check.severity }}: {{ check.text }} {% endfor %}</td></tr>
{% endfor %}
</tbody></table></section>
"""


class RegistryPanel(Panel):
    """Loads tools, starts and ends servers, and says what each tool costs."""

    name: ClassVar[str] = "registry"

    def __init__(self, desk: Desk) -> None:
        super().__init__(desk)
        self._facts = ToolFacts(desk, self.changed)

    def __repr__(self) -> str:
        registry = self.desk.registry
        return (
            f"RegistryPanel({registry.name!r}, {len(registry)} tools, {len(self.desk.sources.all)} sources)"
        )

    # -- what views show ----------------------------------------------------------------------------------

    def part(self) -> dict[str, Any]:
        """Return servers, and one row per tool."""
        registry, engine = self.desk.registry, self.desk.engine
        tools = self._tools()
        return {
            "name": registry.name,
            "servers": [self._server_row(source) for source in self.desk.sources.all],
            "tools": self._tool_rows(),
            "problems": self._left_out(),
            **self._totals(tools),
            "n_ctx": engine.n_ctx if engine is not None else None,
        }

    def _left_out(self) -> list[dict[str, str]]:
        """Return what is wrong with servers, and with tools that are not there because of it."""
        names = {tool.name for tool in self._tools()}
        return [
            {"severity": item.severity.value, "text": str(item).partition(": ")[2]}
            for item in self.desk.registry.problems
            if item.tool not in names and item.severity is not Severity.NOTE
        ]

    def on_turn(self, turn: Turn) -> None:  # noqa: ARG002 - the contract
        """Show a server that has died in the turn."""
        if any(row["status"] == "failed" for row in map(self._server_row, self.desk.sources.all)):
            self.changed()

    def on_tools(self) -> None:
        """Count what is new."""
        self._facts.gather()
        self.changed()

    def on_engine(self) -> None:
        """Count with the other tokenizer."""
        self._facts.gather()
        self.changed()

    def _tools(self) -> tuple[ToolSpec, ...]:
        return (*self.desk.registry.tools, *self.desk.registry.shadowed)

    def _totals(self, tools: Iterable[ToolSpec]) -> dict[str, int | None]:
        costs = [self._facts.cost(tool) for tool in tools]
        known = [cost for cost in costs if cost is not None]
        whole = len(known) == len(costs) and bool(known)
        return {
            "schema_tokens": sum(cost.schema for cost in known) if whole else None,
            "signature_tokens": sum(cost.signature for cost in known) if whole else None,
        }

    def _server_row(self, source: ToolSource) -> dict[str, Any]:
        died = source.state == "ready" and source.server is not None and not source.server.running
        problem = error_info(source.error) if source.error is not None else None
        if died:
            step = "retry, or call one of its tools, which starts it again"
            problem = {"type": "ServerDied", "message": "its process has ended", "next_step": step}
        return {
            "name": source.name,
            "transport": source.transport,
            "status": "failed" if died else source.state,
            "tools": len(source.tools),
            **self._totals(source.tools),
            "problem": problem,
            "last_line": source.last_line,
            "command": source.config.shown() if source.config is not None else None,
            "line": source.config.line() if source.config is not None else None,
            "variables": list(source.config.env) if source.config is not None else [],
        }

    def _tool_rows(self) -> list[dict[str, Any]]:
        registry = self.desk.registry
        problems: dict[str | None, list[Problem]] = {}
        for item in registry.problems:
            problems.setdefault(item.tool, []).append(item)
        owners = {id(tool): source.name for source in self.desk.sources.all for tool in source.tools}
        return [
            {
                **self._tool_row(tool, registry, problems.get(tool.name, ())),
                "server": owners.get(id(tool), tool.server or registry.name),
            }
            for tool in self._tools()
        ]

    def _tool_row(self, tool: ToolSpec, registry: Registry, problems: Sequence[Problem]) -> dict[str, Any]:
        cost = self._facts.cost(tool)
        return {
            "name": self._shown_name(tool, registry),
            "read_only": tool.read_only,
            "description": tool.description[:_DESCRIPTION],
            "arguments": list(tool.properties),
            "schema_tokens": cost.schema if cost else None,
            "signature_tokens": cost.signature if cost else None,
            "checks": self._checks(tool, problems),
        }

    @staticmethod
    def _shown_name(tool: ToolSpec, registry: Registry) -> str:
        """Return the name that finds it: qualified where another server's tool has the plain one."""
        return tool.name if registry.get(tool.name) is tool else tool.qualified_name

    def _checks(self, tool: ToolSpec, problems: Sequence[Problem]) -> list[dict[str, str]]:
        found = [item for item in problems if item.server in (None, tool.server)]
        shown = dict.fromkeys((*found, *self._facts.checks(tool)))
        return [
            {"severity": item.severity.value, "text": item.message}
            for item in shown
            if item.severity is not Severity.NOTE
        ]

    # -- what it is asked ---------------------------------------------------------------------------------

    @instant
    def tool(self, name: str) -> dict[str, Any]:
        """Return everything about one tool, with its texts exactly as the model sees them."""
        spec = self.desk.registry[name]
        cost, agent = self._facts.cost(spec), self.desk.panels.get("agent")
        turns: Any = agent.turns if agent is not None else ()  # type: ignore[attr-defined]
        routing: Any = self.desk.panels.get("routing")
        return {
            "name": name,
            "server": spec.server or self.desk.registry.name,
            "description": spec.description,
            "read_only": spec.read_only,
            "signature": tool_text(spec, mode="signature"),
            "signature_tokens": cost.signature if cost else None,
            "schema": tool_text(spec, mode="full"),
            "schema_tokens": cost.schema if cost else None,
            "block": self._block(spec),
            "examples": routing.examples_of(spec) if routing is not None else [],
            "used": {"count": sum(card.tool == spec.name for card in turns), "of": len(turns)},
        }

    def _block(self, spec: ToolSpec) -> dict[str, int] | None:
        """Return the compiled block of a tool, when its file is there."""
        engine, agent = self.desk.engine, self.desk.agent
        if engine is None or agent is None or "splice" in engine.declines:
            return None
        context, block, _ = block_tokens(engine, spec, system=agent.system)
        path = agent.library.path(agent.library.address(block, context))
        if not path.exists():
            return None
        return {"tokens": len(block), "bytes": path.stat().st_size, "anchor": len(context)}

    @job("reading tools", lane=Lane.SIDE)
    def load_file(self, path: str) -> dict[str, Any]:
        """Add the tools of a file; servers in it are listed, and none is started."""
        return self._add(read_source(path=path, text=None))

    @job("reading tools", lane=Lane.SIDE)
    def load_text(self, text: str) -> dict[str, Any]:
        """Add the tools of a text; servers in it are listed, and none is started."""
        found, names = read_source(path=None, text=text), {source.name for source in self.desk.sources.all}
        numbers = (f"{found.name} {number}" for number in count(2))
        name = found.name if found.name not in names else next(name for name in numbers if name not in names)
        return self._add(replace(found, name=name))

    @job("reading servers", lane=Lane.SIDE)
    def list_servers(self, path: str | None = None, text: str | None = None) -> dict[str, Any]:
        """Return the servers that a configuration lists; starts nothing and changes nothing."""
        found = read_source(path=path, text=text)
        return {
            "servers": [
                {
                    "name": config.name,
                    "transport": "http" if config.url else "stdio",
                    "command": config.shown(),
                }
                for config in found.servers
            ],
            "problems": [str(item) for item in found.problems if item.severity is Severity.ERROR],
        }

    @job("starting servers")
    def start(self, names: list[str], path: str | None = None, text: str | None = None) -> dict[str, Any]:
        """Start servers of a configuration, or ones that are listed here already."""
        if path is None and text is None:
            configs = [source.config for source in self.desk.sources.all if source.config is not None]
        else:
            configs = list(read_source(path=path, text=text).servers)
        before = len(self._tools())
        problems = start_servers(self.desk, chosen(configs, names))
        return {"added": max(0, len(self._tools()) - before), "problems": problems}

    @job("connecting")
    def connect(self, name: str, command: str | None = None, url: str | None = None) -> dict[str, Any]:
        """Start a server by its command line, or reach one at an address."""
        before = len(self._tools())
        sources = self.desk.sources.all
        running = {source.name for source in sources if source.server is not None and source.server.running}
        problems = start_servers(self.desk, [config_of(name, command=command, url=url, taken=running)])
        return {"added": max(0, len(self._tools()) - before), "problems": problems}

    @job("starting a server")
    def retry(
        self, name: str, line: str | None = None, env: dict[str, str | None] | None = None
    ) -> dict[str, Any]:
        """Start a server again that failed, ended or was stopped, as it was or with changes.

        Parameters
        ----------
        line
            Another command line or address; what is masked in it stays what it was.
        env
            Variables to set, and with ``None`` to remove; the others stay.
        """
        source = self.desk.sources.get(name)
        if source is None or source.config is None:
            raise RegistryFormatError(
                f"there is no server {neutralise(name, limit=60)!r}", next_step="choose one that is listed"
            )
        config = source.config.edited(line, env)
        if source.server is not None and not source.server.running:
            source.server.close()
        problems = start_servers(self.desk, [config])
        renewed = self.desk.sources.get(name)
        return {"added": len(renewed.tools) if renewed is not None else 0, "problems": problems}

    @job("stopping a server")
    def stop(self, name: str) -> None:
        """End a server; its tools leave the registry."""
        end_server(self.desk, name)

    def _add(self, found: Registry) -> dict[str, Any]:
        before = len(self._tools())
        if not self.desk.sources.all:
            self.desk.sources.name = found.name
        self.desk.sources.add_registry(found)
        self.desk.crew.compose()
        self.desk.crew.refit()
        problems = [str(item) for item in found.problems if item.severity is not Severity.NOTE]
        return {"added": max(0, len(self._tools()) - before), "problems": problems}

    # -- plain Python -------------------------------------------------------------------------------------

    def load(self, source: str | Path) -> dict[str, Any]:
        """Add the tools of a file, from plain Python; see `load_file`."""
        return self._add(read_source(path=str(source), text=None))

    def to_frame(self) -> pl.DataFrame:
        """Return one row per tool: name, server, costs in tokens, and what is wrong with it."""
        import polars as pl

        rows = [
            (
                row["name"],
                row["server"],
                row["read_only"],
                row["signature_tokens"],
                row["schema_tokens"],
                row["arguments"],
                [check["text"] for check in row["checks"]],
                tool.description,
            )
            for tool, row in zip(self._tools(), self._tool_rows(), strict=True)
        ]
        schema: dict[str, Any] = {
            "tool": pl.String,
            "server": pl.String,
            "read_only": pl.Boolean,
            "signature_tokens": pl.Int64,
            "schema_tokens": pl.Int64,
            "arguments": pl.List(pl.String),
            "checks": pl.List(pl.String),
            "description": pl.String,
        }
        return pl.DataFrame(rows, schema=schema, orient="row")

    def to_html(self) -> str:
        """Return servers and tools as a static fragment."""
        return fragment(_TEMPLATE, part=to_json(self.part()))
