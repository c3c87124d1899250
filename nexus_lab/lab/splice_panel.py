"""The Splice panel: trying a block at a depth, step by step, and what it costs in fidelity."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from nexus_lab.agent import SYSTEM_PROMPT, EventKind
from nexus_lab.agent.base import DriftFrame, FidelityRow
from nexus_lab.errors import Decline
from nexus_lab.lab.panel import Panel
from nexus_lab.lab.splice_film import MEASURES
from nexus_lab.lab.splice_parts import TrialError, block_tokens, compile_contexts, trial_parts
from nexus_lab.lab.splice_records import SpliceSettings, SpliceTrial
from nexus_lab.lab.splice_trial import run_trial
from nexus_lab.lab.wire import Reply, instant, job
from nexus_lab.splice import BlockLibrary, stored_calibration

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import polars as pl

    from nexus_lab.agent import Event, Turn
    from nexus_lab.engine import Engine
    from nexus_lab.lab.desk import Desk
    from nexus_lab.registry import Registry, ToolSpec
    from nexus_lab.splice import BlockContext

__all__ = ["SplicePanel"]

_KEPT = 8
_LAST = 50
_DEPTH = 512
_EPSILON = 0.02
_NO_MODEL = Decline("no_model", "no model is loaded", "load one under Models")


@dataclass(frozen=True, slots=True)
class _ToolRow:
    tool: str
    tokens: int | None
    compiled: tuple[str, ...]
    """The contexts that it is compiled behind."""


class SplicePanel(Panel):
    """Tries splices on scratch sequences of the engine, beside the live conversation."""

    name = "splice"

    def __init__(self, desk: Desk) -> None:
        super().__init__(desk)
        self._lock = threading.Lock()
        self._trials: dict[str, SpliceTrial] = {}
        self._count = 0
        self._settings: SpliceSettings | None = None
        self._last: tuple[dict[str, Any], ...] = ()
        self._turn: int | None = None
        self._requests: dict[str, str] = {}
        self._library: BlockLibrary | None = None
        self._tools: tuple[_ToolRow, ...] = ()
        self._blocks: dict[ToolSpec, tuple[int, dict[str, Path]]] = {}
        self._contexts: tuple[Engine, tuple[int, ...], dict[str, BlockContext]] | None = None
        self._calibrated: dict[str, Any] = {}

    # -- what views show ----------------------------------------------------------------------------------

    def part(self) -> dict[str, Any]:
        """Return the newest trial and what can be tried, as ``SplicePart`` of the wire."""
        desk, profile, trial = self.desk, self.desk.profile, self.newest
        names = desk.registry.tools
        known = {row.tool: row for row in self._tools}
        return {
            "tools": [known.get(tool.name) or _ToolRow(tool.name, None, ()) for tool in names],
            "constants": {"k": profile.k, "m": profile.m, "r_base": profile.r_base},
            "n_ctx": desk.engine.n_ctx if desk.engine is not None else 0,
            "settings": self._settings or self._first_settings(),
            "run": None if trial is None else trial.to_part(),
            "unavailable": self._unavailable,
            "calibrated": self._calibrated,
            "last": self._last,
        }

    @property
    def newest(self) -> SpliceTrial | None:
        """The newest trial."""
        with self._lock:
            return next(reversed(self._trials.values()), None)

    @property
    def trials(self) -> tuple[SpliceTrial, ...]:
        """The trials that are kept, oldest first."""
        with self._lock:
            return tuple(self._trials.values())

    @property
    def _unavailable(self) -> Decline | None:
        engine = self.desk.engine
        return _NO_MODEL if engine is None else engine.declines.get("splice")

    def _first_settings(self) -> SpliceSettings | None:
        desk = self.desk
        if not len(desk.registry):
            return None
        tool = str(self._last[0]["tool"]) if self._last else desk.registry.tools[0].name
        if tool not in desk.registry:
            tool = desk.registry.tools[0].name
        room = desk.engine.n_ctx // 4 if desk.engine is not None else _DEPTH
        return SpliceSettings(
            tool=tool,
            n_past=min(_DEPTH, room),
            repair=desk.profile.repair,
            budget=desk.profile.repair_budget,
            k=desk.profile.k,
        )

    # -- trials -------------------------------------------------------------------------------------------

    @job("splice trial")
    def run(self, settings: Mapping[str, Any] | SpliceSettings) -> SpliceTrial | dict[str, Any]:
        """Try a splice; the reply of a view is ``SpliceRun`` of the wire.

        Raises
        ------
        TrialError
            When no model is loaded, there is no such tool, or a setting means nothing.
        ContextFull, Cancelled
            When it does not fit, or was stopped.
        """
        chosen = settings if isinstance(settings, SpliceSettings) else _settings_of(settings)
        driver = self.desk.driver
        if driver.is_mine:
            return self._try(chosen).to_part()
        return driver.submit("splice trial", lambda: self._try(chosen)).get()

    @instant
    def frame(self, run: str, step: int, tensor: str = "k", measure: str = "relative") -> Reply:
        """Return the drift after a step as a buffer, float32 [rows, cols], NaN for "no value".

        A second buffer of the same shape has the noise floor of each cell, where it was measured.
        """
        with self._lock:
            trial = self._trials.get(run)
        if trial is None:
            raise TrialError(
                f"trial {run!r} is not kept", next_step=f"only the last {_KEPT} are; run it again"
            )
        frames = trial.frames(tensor, measure)
        if frames is None or not 0 <= step < len(frames):
            raise TrialError(
                f"there is no frame of {tensor} after step {step}",
                next_step="run it with the measure on"
                if frames is None
                else f"choose 0 to {len(frames) - 1}",
            )
        values = np.ascontiguousarray(frames[step])
        result = {
            "rows": values.shape[0],
            "cols": values.shape[1],
            "row_label": "layer",
            "col_label": "query head" if tensor == "attention" else "KV head",
            "step_range": _range(values),
            "run_range": _range(frames),
            "cached_range": _range(frames[_first_cached(trial) :]),
        }
        floor = trial.floor(tensor, measure)
        return Reply(result, (values,) if floor is None else (values, np.ascontiguousarray(floor)))

    def _try(self, settings: SpliceSettings) -> SpliceTrial:
        desk, engine = self.desk, self.desk.engine
        if engine is None:
            raise TrialError("no model is loaded", next_step="load one under Models")
        spec = self._spec(settings.tool)
        self._settings = settings
        conversation = desk.agent.live if desk.agent is not None else None
        plain = conversation is not None and conversation.is_plain
        parts = trial_parts(
            engine,
            spec,
            system=self._system,
            n_past=settings.n_past,
            live=conversation.tokens if conversation is not None and plain else (),
            request=self._requests.get(spec.name, ""),
        )
        self._count += 1
        profile = desk.profile
        behind = self._contexts_of(engine, parts.context)[settings.context]
        trial = run_trial(
            engine,
            self._library_of(engine),
            parts,
            settings,
            name=f"s-{self._count:03d}",
            behind=behind,
            m=profile.m,
            r_base=profile.r_base,
            watch=lambda stage: desk.driver.progress(f"splice of {spec.name}: {stage}"),
        )
        desk.bar.used = engine.used_cells()
        with self._lock:
            self._trials[trial.id] = trial
            while len(self._trials) > _KEPT:
                del self._trials[next(iter(self._trials))]
        self._tell(trial)
        self._measure_tools()
        self.changed()
        return trial

    def _spec(self, tool: str) -> ToolSpec:
        registry: Registry = self.desk.registry
        if tool not in registry:
            raise TrialError(f"there is no tool {tool!r}", next_step="choose one that stands under Registry")
        return registry[tool]

    @property
    def _system(self) -> str:
        agent = self.desk.agent
        return agent.system if agent is not None else SYSTEM_PROMPT

    def _library_of(self, engine: Engine) -> BlockLibrary:
        if self.desk.agent is not None:
            return self.desk.agent.library
        if self._library is None or self._library.engine is not engine:
            self._library = BlockLibrary(engine)
        return self._library

    def _contexts_of(self, engine: Engine, context: tuple[int, ...]) -> dict[str, BlockContext]:
        kept = self._contexts
        if kept is None or kept[0] is not engine or kept[1] != context:
            kept = engine, context, compile_contexts(engine, context, system=self._system)
            self._contexts = kept
        return kept[2]

    def _tell(self, trial: SpliceTrial) -> None:
        """Put the trial into the run that is being recorded, with the relative drift of each step."""
        if self.desk.recorder is None:
            return
        measured, settings = trial.measured, trial.settings
        row = FidelityRow(
            path=_path(trial),
            tool=settings.tool,
            n_past=settings.n_past,
            n_tokens=trial.n_tokens,
            repaired=trial.repaired,
            strategy=trial.plan,
            budget=trial.repaired / trial.n_tokens,
            contract="trial",
            dkl=measured.dkl if measured else None,
            noise_floor=measured.noise_floor if measured else None,
            top1=measured.top1 if measured else None,
            n_positions=measured.n_positions if measured else None,
            ttft_s=trial.ttft_ms / 1e3,
            prefill_s=measured.prefill_ms / 1e3 if measured else None,
            decline=trial.declined,
        )
        frames = [
            DriftFrame(
                step=number,
                label=step.name,
                tensor=tensor,
                measure="relative",
                values=drift[number - 1].tolist(),
            )
            for tensor in ("k", "v")
            if (drift := trial.frames(tensor, "relative")) is not None
            for number, step in enumerate(trial.steps, start=1)
        ]
        self.desk.emitter.point(EventKind.FIDELITY, "splice trial", row, *frames, trial=trial.id)

    # -- hearing ------------------------------------------------------------------------------------------

    def on_event(self, event: Event) -> None:
        """Keep the splices of turns, and what was last asked of each tool."""
        if event.kind is EventKind.TURN:
            number = event.attributes.get("turn")
            self._turn = number if event.duration_ns is None and isinstance(number, int) else None
            tool, request = event.attributes.get("tool"), event.contents.get("request")
            if isinstance(tool, str) and isinstance(request, str):
                self._requests[tool] = request
        elif self._turn is not None:
            rows = [row for row in event.rows if isinstance(row, FidelityRow)]
            self._last = (*(_last_row(self._turn, row) for row in rows), *self._last)[:_LAST]
            if rows:
                self.changed()

    def on_turn(self, turn: Turn) -> None:  # noqa: ARG002 - the contract
        """Look again which blocks are compiled."""
        self._measure_tools()

    def on_tools(self) -> None:
        """Count the blocks of other tools."""
        self._measure_tools()

    def on_engine(self) -> None:
        """Count the blocks anew, for another model."""
        self._library = self._contexts = None
        self._tools, self._blocks, self._calibrated = (), {}, {}
        self._measure_tools()

    def on_run(self) -> None:
        """Begin the list of splices anew."""
        self._last = ()
        self.changed()

    def _measure_tools(self) -> None:
        """Post the count of each tool's block, which needs the tokenizer but not the context."""
        engine = self.desk.engine
        if engine is not None and len(self.desk.registry):
            self.desk.side.submit("counting blocks", lambda: self._count_blocks(engine))

    def _count_blocks(self, engine: Engine) -> None:
        """Count what was not counted yet, and look which blocks have a file."""
        library, rows = self._library_of(engine), []
        for spec in self.desk.registry.tools if "splice" not in engine.declines else ():
            if self.desk.engine is not engine:  # it is being unloaded, and waits for this
                return
            if spec not in self._blocks:
                context, block, _ = block_tokens(engine, spec, system=self._system)
                contexts = self._contexts_of(engine, context)
                self._blocks[spec] = (
                    len(block),
                    {name: library.path(library.address(block, behind)) for name, behind in contexts.items()},
                )
                if not self._calibrated:
                    self._calibrated = {
                        name: _calibrated(engine, behind) for name, behind in contexts.items()
                    }
            n_tokens, paths = self._blocks[spec]
            compiled = tuple(name for name, path in paths.items() if path.exists())
            rows.append(_ToolRow(spec.name, n_tokens, compiled))
        if tuple(rows) != self._tools:
            self._tools = tuple(rows)
            self.changed()

    # -- as a table and a page ----------------------------------------------------------------------------

    def trials_frame(self) -> pl.DataFrame:
        """Return one row per trial: what was asked for, what it led to, and what it cost.

        ``strategy`` was asked for, ``repair`` ran. Divergences are in nats, times in ms, and null where there
        was no measure.
        """
        import polars as pl

        schema = {
            "trial": pl.String,
            "tool": pl.String,
            "n_past": pl.Int64,
            "context": pl.String,
            "contract": pl.String,
            "strategy": pl.String,
            "path": pl.String,
            "repair": pl.String,
            "n_tokens": pl.Int64,
            "repaired": pl.Int64,
            "repair_path": pl.String,
            "declined": pl.String,
            "reason": pl.String,
            "repair_reason": pl.String,
            "dkl": pl.Float64,
            "noise_floor": pl.Float64,
            "top1": pl.Float64,
            "ttft_ms": pl.Float64,
            "prefill_ms": pl.Float64,
        }
        return pl.DataFrame([_trial_row(trial) for trial in self.trials], schema=schema, orient="row")

    def to_frame(self) -> pl.DataFrame:
        """Return the drift of all trials, one row per trial, step, tensor, measure, layer and head.

        ``floor`` is the noise floor of the cell, null where it was not measured.
        """
        import polars as pl

        tables = [
            _long(trial, tensor, measure)
            for trial in self.trials
            for tensor in ("k", "v", "attention")
            for measure in MEASURES
        ]
        schema = {
            "trial": pl.String,
            "tool": pl.String,
            "step": pl.Int64,
            "label": pl.String,
            "tensor": pl.String,
            "measure": pl.String,
            "layer": pl.Int64,
            "head": pl.Int64,
            "value": pl.Float32,
            "floor": pl.Float32,
        }
        return pl.concat([pl.DataFrame(schema=schema), *(table for table in tables if table is not None)])

    def to_html(self) -> str:
        """Return the newest trial as a fragment."""
        from nexus_lab.lab.static_html import splice_fragment

        return splice_fragment(self.newest, self._last, self._unavailable)

    def __repr__(self) -> str:
        trial = self.newest
        if trial is None:
            return "SplicePanel(nothing tried yet)"
        found = f"D_KL {trial.measured.dkl:.4f} nats" if trial.measured else "not measured"
        return f"SplicePanel({found})\n" + "\n".join(trial.led)


def _settings_of(values: Mapping[str, Any]) -> SpliceSettings:
    try:
        return SpliceSettings(**values)
    except TypeError as error:
        raise TrialError(
            f"wrong settings: {error}", next_step="give tool, n_past, repair, budget, k"
        ) from None


def _path(trial: SpliceTrial) -> str:
    if trial.declined is not None or trial.repaired == trial.n_tokens:
        return "prefill"
    if trial.repaired:
        return "repaired"
    return "anchored" if trial.anchored else "unrepaired"


def _last_row(turn: int, row: FidelityRow) -> dict[str, Any]:
    return {
        "turn": turn,
        "tool": row.tool or "",
        "n_past": row.n_past,
        "dkl": row.dkl,
        "noise_floor": row.noise_floor,
        "path": row.path,
        "declined": row.decline,
    }


def _range(values: Any) -> tuple[float, float]:
    real = values[np.isfinite(values)]
    return (float(real.min()), float(real.max())) if real.size else (0.0, 0.0)


def _first_cached(trial: SpliceTrial) -> int:
    """Return the step after which the block's rows stand in the cache."""
    return next((at for at, step in enumerate(trial.steps) if step.name == "write"), 0)


def _calibrated(engine: Engine, behind: BlockContext) -> dict[str, Any] | None:
    """Return the smallest measured budget per depth that keeps D_KL under the usual bound."""
    found = stored_calibration(engine, behind.hash)
    if found is None or isinstance(found, Decline):
        return None
    depths = []
    for depth in found.depths:
        budgets = [cell.budget for cell in found.cells if cell.depth == depth and cell.dkl_upper <= _EPSILON]
        depths.append({"n_past": depth, "budget": min(budgets, default=None)})
    return {"repair": found.strategy, "epsilon": _EPSILON, "depths": depths}


def _trial_row(trial: SpliceTrial) -> tuple[Any, ...]:
    asked, declined, found = trial.settings, trial.declined, trial.measured
    epsilon = f"({asked.epsilon:g})" if asked.contract == "bounded" else ""
    return (
        trial.id,
        asked.tool,
        asked.n_past,
        asked.context,
        asked.contract + epsilon,
        asked.repair if asked.contract == "fixed" else None,
        _path(trial),
        trial.plan,
        trial.n_tokens,
        trial.repaired,
        trial.repair_path,
        declined.code if declined else None,
        declined.reason if declined else None,
        trial.repair_declined.reason if trial.repair_declined else None,
        *((found.dkl, found.noise_floor, found.top1) if found else (None,) * 3),
        trial.ttft_ms,
        found.prefill_ms if found else None,
    )


def _long(trial: SpliceTrial, tensor: str, measure: str) -> pl.DataFrame | None:
    import polars as pl

    frames = trial.frames(tensor, measure)
    if frames is None:
        return None
    floor = trial.floor(tensor, measure)
    step, layer, head = (index.ravel() for index in np.indices(frames.shape))
    names = np.array([item.name for item in trial.steps])
    return pl.DataFrame(
        {
            "trial": [trial.id] * frames.size,
            "tool": [trial.settings.tool] * frames.size,
            "step": step.astype(np.int64) + 1,
            "label": names[step].tolist(),
            "tensor": [tensor] * frames.size,
            "measure": [measure] * frames.size,
            "layer": layer.astype(np.int64),
            "head": head.astype(np.int64),
            "value": np.ascontiguousarray(frames).ravel(),
            "floor": pl.Series(
                [None] * frames.size if floor is None else np.tile(floor.ravel(), len(frames)),
                dtype=pl.Float32,
            ),
        }
    )
