"""How the agent loop holds up: threads, stops, servers that die, a long session; all with real servers."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nexus_lab.agent import Agent, EventKind, Turn, TurnOutcome
from nexus_lab.bench.base import (
    Result,
    ResultFile,
    ResultsError,
    insist_positive,
    median_interval,
    proportion,
)
from nexus_lab.engine import ContextFull, Engine
from nexus_lab.registry import ServerError
from nexus_lab.routing import Router
from nexus_lab.settings import Profile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from nexus_lab.agent import Event
    from nexus_lab.registry import Toolbox

__all__ = ["REQUESTS", "run"]

REQUESTS = (
    "Convert 14:30 from Europe/Berlin to America/New_York time.",
    "Which tables are in the database?",
    "Show the working tree status of the repository at ./inventory",
    "Run SELECT name, price FROM products WHERE stock > 1",
    "Convert 09:15 from Asia/Tokyo to Europe/London time.",
    "Show the commit log of ./inventory",
    "Run SELECT count(*) FROM orders",
    "Describe the table products",
    "List the branches of ./inventory",
    "Convert 18:45 from America/Sao_Paulo to Asia/Kolkata time.",
)
"""What is asked, in turn; each gives the same result whenever it is asked on one day."""

_N_CTX = 8192
_PER_CONVERSATION = 10
_LONG_WORDS = 1500
# Every row with every other: seconds of work for a server that answers SELECT alone.
_SLOW = " ".join(["SELECT count(*) FROM products", *(f", products p{number}" for number in range(13))])
_UNTIL_KILLED_S = 0.5
_WARM_TURNS = 10
_PROFILE = Profile(name="bench", policy="rolling_drop_repos", answer_tokens=16, max_tokens=96)


def run(
    tools: Toolbox,
    *,
    model: str | Path = "bundled",
    turns: int = 200,
    threads: int = 4,
    stops: int = 20,
    deaths: int = 5,
    session: int = 30,
    tell: Callable[[str], None] = lambda _text: None,
) -> ResultFile:
    """Put the loop through what goes wrong in use.

    Parameters
    ----------
    tools
        The servers ``time``, ``git`` and ``sqlite`` of `nexus_lab.demo`, which `REQUESTS` are for.
    model
        The model.
    turns, threads
        Turns in all, and the threads that ask them of one engine, each in conversations of its own.
    stops
        Turns that are stopped somewhere in a long prefill.
    deaths
        Calls whose server is killed while it works.
    session
        Turns of one conversation, whose tool responses are dropped.
    tell
        Called with what is measured now.

    Returns
    -------
    ``same_bytes``: share of turns that, asked from threads, come out as in one thread; in the order in which
    they held the engine, and one conversation after the other, where rows stand in other cells. ``stop_s``:
    from a stop to the end of the turn. ``stopped_right``, ``death_told``: turns that ended as they should,
    the one after them included. ``finished``: turns of the long session without an error of the context, and
    its ``peak_cells``, ``last_position`` and ``resident_growth``, in all and without what has a bound.

    Raises
    ------
    NexusError
        When the model does not load, or the servers are others.
    """
    insist_positive(turns=turns, threads=threads, stops=stops, deaths=deaths, session=session)
    if missing := sorted({"time", "git", "sqlite"} - set(tools.servers)):
        raise ResultsError(f"no server {missing[0]}", next_step="give the demonstration's tools")
    with Engine.load(model, n_ctx=_N_CTX) as engine:
        bench = _Bench(engine, tools, Router(tools.registry))
        results = [
            *_same_bytes(bench, turns, threads, tell),
            *_stopped(bench, stops, tell),
            *_deaths(bench, deaths, tell),
            *_session(bench, session, tell),
        ]
        facts = {"model": engine.info.name, "model_sha256": engine.info.sha256, "n_ctx": engine.n_ctx}
        return ResultFile.now("bench agent", results, settings=facts, threads=engine.threads)


@dataclass(frozen=True, slots=True)
class _Bench:
    engine: Engine
    tools: Toolbox
    router: Router

    def agent(self, **options: Any) -> Agent:
        profile = options.pop("profile", _PROFILE)
        return Agent(
            self.engine, self.tools, router=self.router, profile=profile, ask_before="never", **options
        )


# -- threads ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Job:
    """Turn `number` of the agent `who`, or the new conversation that it begins before that turn."""

    who: int
    number: int
    fresh: bool = False

    @property
    def request(self) -> str:
        return REQUESTS[(3 * self.who + self.number) % len(REQUESTS)]


class _Order:
    """Notes what holds the engine; an agent's routing is the first that a turn does with it."""

    def __init__(self, engine: Engine) -> None:
        self.jobs: list[_Job] = []
        self._engine = engine

    def of(self, who: int) -> _Turns:
        return _Turns(who, self.jobs)

    def begin(self, agent: Agent, job: _Job) -> None:
        """Begin a new conversation, noted too: later rows stand in the cells that the one before frees."""
        with self._engine.turn():
            self.jobs.append(job)
            agent.new_conversation()


@dataclass(slots=True)
class _Turns:
    who: int
    jobs: list[_Job]
    count: int = 0

    def on_event(self, event: Event) -> None:
        if event.kind is EventKind.RETRIEVAL and event.duration_ns is None:
            self.jobs.append(_Job(self.who, self.count))
            self.count += 1


def _same_bytes(bench: _Bench, turns: int, threads: int, tell: Callable[[str], None]) -> Iterator[Result]:
    each = -(-turns // threads)
    order = _Order(bench.engine)
    tell(f"{turns} turns from {threads} threads")
    with ThreadPoolExecutor(threads) as pool:
        agents = [bench.agent(observers=[order.of(who)]) for who in range(threads)]
        parts = [pool.submit(_ask_all, agent, order, who, each) for who, agent in enumerate(agents)]
        threaded = {job: said for part in parts for job, said in part.result().items()}
        _close(bench, agents)
    for name, jobs in (
        ("in the same order", order.jobs),
        (
            "one conversation after the other",
            sorted(order.jobs, key=lambda job: (job.who, job.number, not job.fresh)),
        ),
    ):
        tell(f"the same turns {name}, from one thread")
        alone = _alone(bench, jobs, threads)
        same = sum(alone.get(job) == said for job, said in threaded.items())
        case = {"threads": threads, "peer": f"one thread, {name}"}
        yield proportion(same, len(threaded), case=case, metric="same_bytes")


def _ask_all(agent: Agent, order: _Order, who: int, count: int) -> dict[_Job, tuple[Any, ...]]:
    """Ask the turns of one agent, in a new conversation from time to time."""
    said = {}
    for number in range(count):
        if number % _PER_CONVERSATION == 0:
            order.begin(agent, _Job(who, number, fresh=True))
        job = _Job(who, number)
        said[job] = _ask(agent, job)
    return said


def _alone(bench: _Bench, jobs: Sequence[_Job], threads: int) -> dict[_Job, tuple[Any, ...]]:
    """Ask the same turns from one thread, in the order of `jobs`."""
    agents = [bench.agent() for _ in range(threads)]
    said = {}
    for job in jobs:
        if job.fresh:
            agents[job.who].new_conversation()
        else:
            said[job] = _ask(agents[job.who], job)
    _close(bench, agents)
    return said


def _ask(agent: Agent, job: _Job) -> tuple[Any, ...]:
    """Ask one turn; returns everything that it came to."""
    turn = agent.ask(job.request)
    routed = turn.decision and (turn.decision.candidates, turn.decision.margin)
    result = turn.result and turn.result.text
    return routed, turn.outcome, turn.tool, turn.arguments, result, turn.answer, turn.prompt_tokens


def _close(bench: _Bench, agents: Sequence[Agent]) -> None:
    for agent in agents:
        agent.close()
    bench.engine.clear()


# -- what goes wrong --------------------------------------------------------------------------------------


def _stopped(bench: _Bench, stops: int, tell: Callable[[str], None]) -> Iterator[Result]:
    tell(f"{stops} stops in a long prefill")
    words = " ".join(REQUESTS).split()
    shown = " ".join((words * (1 + _LONG_WORDS // len(words)))[:_LONG_WORDS])
    draw = random.Random(0)  # noqa: S311 - where a turn is stopped is no secret
    seconds, right = [], 0
    with bench.agent() as agent:
        for _ in range(stops):
            took, turn = _stop_at(agent, f"Say something about this. {shown}", draw.random())
            seconds.append(took)
            after = agent.ask(REQUESTS[0])
            right += turn.outcome is TurnOutcome.CANCELLED and after.outcome is TurnOutcome.CALLED
            agent.new_conversation()
    bench.engine.clear()
    case = {"stage": "prefill"}
    yield median_interval(seconds, case=case, metric="stop_s", unit="s")
    yield Result(case=case, metric="stop_s_max", value=max(seconds), n=stops, unit="s")
    yield proportion(right, stops, case=case, metric="stopped_right")


def _stop_at(agent: Agent, request: str, share: float) -> tuple[float, Turn]:
    """Stop a turn once `share` of its prefill is done; returns the seconds from then to its end."""
    reached = threading.Event()

    def look(done: int, total: int) -> None:
        if done >= share * total:
            reached.set()

    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(agent.ask, request, on_progress=look)
        while not reached.wait(0.01) and not asked.done():
            pass
        began = time.perf_counter()
        agent.stop()
        turn = asked.result()
        return time.perf_counter() - began, turn


def _deaths(bench: _Bench, deaths: int, tell: Callable[[str], None]) -> Iterator[Result]:
    tell(f"{deaths} servers killed while they work")
    server = bench.tools.servers["sqlite"]

    timers: list[threading.Timer] = []

    def kill_soon(*_call: object) -> dict[str, str]:
        pid = server.pid
        if pid is not None:
            timers.append(threading.Timer(_UNTIL_KILLED_S, os.kill, (pid, signal.SIGKILL)))
            timers[-1].start()
        return {"query": _SLOW}

    told = 0
    for _ in range(deaths):
        with bench.agent(approve=kill_soon) as agent:
            agent.ask_before = "every"
            turn = agent.ask(REQUESTS[3])
            for timer in timers:
                timer.cancel()  # a call that ended before must not cost the next one its server
            agent.ask_before = "never"
            after = agent.ask(REQUESTS[6])
            told += isinstance(turn.problem, ServerError) and after.outcome is TurnOutcome.CALLED
    bench.engine.clear()
    yield proportion(told, deaths, case={}, metric="death_told")


def _session(bench: _Bench, session: int, tell: Callable[[str], None]) -> Iterator[Result]:
    tell(f"a session of {session} turns")
    engine, finished, full = bench.engine, 0, 0
    memory: list[_Memory] = []
    with bench.agent() as agent:
        for number in range(session):
            turn = agent.ask(REQUESTS[number % len(REQUESTS)])
            finished += turn.outcome in {TurnOutcome.CALLED, TurnOutcome.ABSTAINED}
            full += isinstance(turn.problem, ContextFull)
            memory.append(_Memory.now(engine, agent, memory[-1] if memory else None))
        last = agent.conversation.runner.snapshot.state.next_position
    engine.clear()
    peak = memory[-1].cells
    case = {"policy": _PROFILE.policy, "turns": session}
    yield proportion(finished, session, case=case, metric="finished")
    yield Result(case=case, metric="context_full", value=float(full), n=session, unit="turns")
    yield Result(case=case, metric="peak_cells", value=float(peak), n=session, unit="cells")
    yield Result(case=case, metric="last_position", value=float(last), n=session, unit="positions")
    if session > _WARM_TURNS and memory[-1].resident:
        n, before = session - _WARM_TURNS, memory[_WARM_TURNS - 1]
        for of, grown in memory[-1].growth(before).items():
            where = {**case, "of": of}
            yield Result(case=where, metric="resident_growth", value=grown / 2**20, n=n, unit="MiB")


@dataclass(frozen=True, slots=True)
class _Memory:
    """What stands in memory after a turn.

    Attributes
    ----------
    resident, snapshots, row
        Bytes of the process, of the arena's fullest moment, and of a row of the KV cache.
    cells
        Most cells in use after a turn so far; the system gives their memory when they are first written.
    """

    resident: int
    snapshots: int
    row: int
    cells: int

    @classmethod
    def now(cls, engine: Engine, agent: Agent, before: _Memory | None) -> _Memory:
        info = engine.info
        return cls(
            _resident_bytes(),
            agent.conversation.runner.store.counters()["arena_peak_used_bytes"],
            2 * info.n_layer * info.n_head_kv * (info.head_dim_k + info.head_dim_v),
            max(engine.used_cells(), before.cells if before else 0),
        )

    def growth(self, before: _Memory) -> dict[str, float]:
        """Return by how many bytes the process grew, and what of it is not bounded by what was set aside."""
        grown = self.resident - before.resident
        bounded = self.snapshots - before.snapshots + (self.cells - before.cells) * self.row
        return {"all": grown, "all but KV rows and snapshots, which are bounded": grown - bounded}


def _resident_bytes() -> int:
    """Bytes of this process that stand in memory; 0 where the system does not say."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0
