"""Policies as pure functions, and one of them at work."""

from __future__ import annotations

import pytest

from nexus_lab.cache import (
    Append,
    CacheProgram,
    Drop,
    FullPolicy,
    MessageSpan,
    Policy,
    ProgramError,
    Repos,
    RollingDropPolicy,
    fold,
    make_policy,
)


def conversation(*roles):
    """Messages of ten tokens each, and the state that holds them."""
    spans = [MessageSpan(role, 10 * i, 10 * i + 10) for i, role in enumerate(roles)]
    return spans, fold(CacheProgram((Append(tuple(range(10 * len(roles)))),)))


def test_full_keeps_everything():
    assert FullPolicy().next_ops(*conversation("user", "tool", "assistant", "tool")) == ()


@pytest.mark.parametrize(
    ("roles", "keep", "ranges"),
    [
        (("user", "tool", "assistant", "tool", "assistant"), 2, None),
        (("user", "tool", "assistant", "tool", "assistant", "tool"), 2, ((10, 20),)),
        (("tool", "assistant", "tool", "assistant", "tool", "assistant"), 1, ((0, 10), (20, 30))),
        (("user", "tool", "assistant"), 0, ((10, 20),)),
        (("user", "tool"), 0, None),  # not read yet
        (("user", "tool", "tool", "tool"), 1, None),  # called together, none read yet
        (("tool", "assistant", "tool", "tool"), 2, ((0, 10),)),
        (("tool", "assistant", "tool", "tool"), 3, None),
        ((), 2, None),
    ],
)
def test_rolling_drop_takes_the_oldest_responses(roles, keep, ranges):
    expected = () if ranges is None else (Drop(ranges),)
    assert RollingDropPolicy(keep_last=keep, repos=False).next_ops(*conversation(*roles)) == expected
    with_repos = RollingDropPolicy(keep_last=keep).next_ops(*conversation(*roles))
    assert with_repos == ((*expected, Repos()) if expected else ())


def test_what_is_dropped_is_not_dropped_again():
    spans, _ = conversation("tool", "assistant", "tool", "assistant", "tool")
    program = CacheProgram((Append(tuple(range(50))),))
    policy = RollingDropPolicy(keep_last=1, repos=False)
    first = policy.next_ops(spans[:3], fold(program))
    assert first == (Drop(((0, 10),)),)
    second = policy.next_ops(spans, fold(program.then(*first)))
    assert second == (Drop(((20, 30),)),)
    assert policy.next_ops(spans, fold(program.then(*first, *second))) == ()


def test_policies_by_name():
    assert make_policy("full").name == "full"
    assert make_policy("rolling_drop", keep_last=3, repos=False) == RollingDropPolicy(
        keep_last=3, repos=False
    )
    assert make_policy("rolling_drop", repos=True).name == "rolling_drop_repos"
    assert make_policy("rolling_drop_repos", repos=False).name == "rolling_drop_repos"
    assert isinstance(make_policy("full"), Policy)
    with pytest.raises(ProgramError):
        make_policy("forget_all")
    with pytest.raises(ProgramError):
        RollingDropPolicy(keep_last=-1)


@pytest.mark.model
def test_a_rolling_conversation_stays_small(engine, words, runner):
    policy = RollingDropPolicy(keep_last=1)
    spans: list[MessageSpan] = []
    prefilled = 0
    for _ in range(4):
        for role, length in (("tool", 12), ("assistant", 4)):
            start = len(runner.program.layout)
            result = runner.step(Append(words[start : start + length]))
            prefilled += sum(batch.count for batch in result.schedule.batches if batch.start == start)
            spans.append(MessageSpan(role, start, start + length))
            for op in policy.next_ops(spans, runner.snapshot.state):
                result = runner.step(op)
    state = result.state
    assert prefilled == len(state) == 64
    assert state.n_active == state.next_position == 12 + 4 * 4
    assert engine.used_cells() == state.n_active
    assert [run.start for run in state.runs()] == [12, 28, 44]
    assert state.dropped() == ((0, 12), (16, 28), (32, 44))
