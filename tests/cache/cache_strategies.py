"""Random cache programs for property tests."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from nexus_lab.cache import Append, CacheProgram, Drop, Repair, Repos, Splice

TOKENS = st.integers(0, 5)
KINDS = ("append", "append", "splice", "repair", "drop", "drop", "repos")


@st.composite
def ranges(draw: st.DrawFn, length: int) -> list[tuple[int, int]]:
    pairs = draw(st.lists(st.tuples(st.integers(0, length), st.integers(0, length)), max_size=3))
    return [(min(pair), max(pair)) for pair in pairs]


@st.composite
def next_op(draw: st.DrawFn, program: CacheProgram) -> Any:
    layout = program.layout
    match draw(st.sampled_from(KINDS)):
        case "append":
            return Append(tuple(draw(st.lists(TOKENS, max_size=5))))
        case "splice":
            block = draw(st.sampled_from(("a", "b")))
            tokens = {"a": (1, 2, 3), "b": (4, 4)}[block]
            return Splice(block, tokens, draw(st.integers(0, 2)))
        case "repair":
            active = layout.active_indices().tolist()
            chosen = draw(st.lists(st.sampled_from(active), max_size=4)) if active else []
            return Repair(tuple(chosen), carry=draw(st.booleans()))
        case "drop":
            return Drop(tuple(draw(ranges(len(layout)))))
        case _:
            return Repos()


@st.composite
def programs(draw: st.DrawFn, max_ops: int = 8) -> CacheProgram:
    program = CacheProgram()
    for _ in range(draw(st.integers(0, max_ops))):
        program = program.then(draw(next_op(program)))
    return program
