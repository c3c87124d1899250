"""Policies as pure functions, and one of them at work."""

from __future__ import annotations

from contextlib import contextmanager

import pytest

from nexus_lab.cache import (
    Append,
    CacheProgram,
    Drop,
    Edit,
    FullPolicy,
    FunctionPolicy,
    MessageSpan,
    Moment,
    Policy,
    ProgramError,
    Repos,
    RollingDropPolicy,
    SummarisePolicy,
    TextMessage,
    ToolPolicy,
    TrimPolicy,
    make_policy,
)
from nexus_lab.policy_text import POLICIES, KnobKind, PolicyTextError, parse_policies, parse_policy


def conversation(*roles, host=None):
    """Messages of ten tokens each, and what holds them; ``call`` is an assistant that calls a tool."""
    spans = tuple(
        MessageSpan(
            "assistant" if role == "call" else role,
            10 * i,
            10 * i + 10,
            f"{role} {i}",
            role == "call",
            (10 * i, 10 * i + 4) if role == "call" else None,
        )
        for i, role in enumerate(roles)
    )
    program = CacheProgram((Append(tuple(range(10 * len(roles)))),))
    return Moment(messages=spans, program=program, host=host)


class Host:
    """Answers an aside with what it was given, and remembers what it was told."""

    def __init__(self, *answers):
        self.answers, self.told, self.open = list(answers), [], 0

    @contextmanager
    def aside(self):
        self.open += 1
        yield self
        self.open -= 1

    def say(self, text):
        assert self.open == 1
        self.told.append(text)

    def answer(self, *, max_tokens, schema=None):
        assert max_tokens > 0
        self.schema = schema
        return self.answers.pop(0)


def test_full_keeps_everything():
    assert FullPolicy().decide(conversation("user", "tool", "assistant", "tool")) == Edit()


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
    assert RollingDropPolicy(keep_last=keep, repos=False).decide(conversation(*roles)).ops == expected
    with_repos = RollingDropPolicy(keep_last=keep).decide(conversation(*roles)).ops
    assert with_repos == ((*expected, Repos()) if expected else ())


@pytest.mark.parametrize(
    ("text", "ranges"),
    [
        ("drop_reasoning(repos=no)", ((10, 20),)),
        ("drop_reasoning(repos=no,scope=thoughts)", ((10, 14),)),
        ("drop_reasoning(repos=no,keep_reasoning=0)", ((10, 20),)),  # the newest call is not read yet
        ("drop_both(repos=no,keep_last=1)", ((10, 30),)),
        ("rolling_drop(keep_last=1,keep_head=3)", ((23, 30),)),
        ("rolling_drop(keep_last=1,min_tokens=11)", None),
    ],
)
def test_what_is_dropped_can_be_chosen(text, ranges):
    moment = conversation("user", "call", "tool", "call", "tool")
    assert make_policy(text).decide(moment).ops == (() if ranges is None else (Drop(ranges),))


def test_what_is_dropped_is_not_dropped_again():
    moment = conversation("tool", "assistant", "tool", "assistant", "tool")
    spans, program = moment.messages, moment.program
    policy = RollingDropPolicy(keep_last=1, repos=False)
    first = policy.decide(Moment(messages=spans[:3], program=program)).ops
    assert first == (Drop(((0, 10),)),)
    second = policy.decide(Moment(messages=spans, program=program.then(*first))).ops
    assert second == (Drop(((20, 30),)),)
    assert policy.decide(Moment(messages=spans, program=program.then(*first, *second))) == Edit()


def test_several_drops_share_a_repos():
    moment = conversation(*("tool", "assistant") * 4)
    policy, program, kinds = make_policy("rolling_drop_repos(keep_last=0,repos_every=2)"), moment.program, []
    for read in (2, 4, 6, 8):
        ops = policy.decide(Moment(messages=moment.messages[:read], program=program)).ops
        program = program.then(*ops)
        kinds.append([type(op) for op in ops])
    assert kinds == [[Drop], [Drop, Repos], [Drop], [Drop, Repos]]


def test_trimming_replaces_the_texts_that_a_drop_would_take():
    moment = conversation("system", "user", "call", "tool", "call", "tool")
    edit = TrimPolicy(keep_last=1).decide(moment)
    assert [text.text for text in edit.texts] == [
        "system 0", "user 1", "call 2", "[trimmed]", "call 4", "tool 5",
    ]  # fmt: skip
    trimmed = tuple(
        MessageSpan(text.role, span.start, span.stop, text.text)
        for text, span in zip(edit.texts, moment.messages, strict=True)
    )
    assert TrimPolicy(keep_last=1).decide(Moment(messages=trimmed, program=moment.program)) == Edit()


def test_a_summary_takes_the_place_of_all_but_the_last_messages():
    host = Host(" the gist ")
    moment = conversation("system", "user", "call", "tool", "call", "tool", host=host)
    edit = SummarisePolicy(above=50, keep_last=1).decide(moment)
    assert [(text.role, text.source) for text in edit.texts] == [
        ("system", 0), ("user", None), ("assistant", 4), ("tool", 5),
    ]  # fmt: skip
    assert edit.texts[1].text.endswith("the gist")
    assert "Summarise" in host.told[0]
    assert host.open == 0
    assert SummarisePolicy(above=60, keep_last=1).decide(moment) == Edit()
    without = Moment(messages=moment.messages, program=moment.program)
    assert SummarisePolicy(above=50, keep_last=1).decide(without) == Edit()


def test_the_model_lists_and_drops_spans():
    host = Host('{"tool":"cache_list"}', '{"tool":"cache_drop","spans":[3,0,5]}')
    moment = conversation("system", "user", "call", "tool", "call", "tool", host=host)
    edit = ToolPolicy(every=2, repos=False).decide(moment)
    assert edit.ops == (Drop(((30, 40),)),)  # neither the system prompt nor the newest response
    assert "cache_drop" in host.told[0]
    assert "3: tool, 10 tokens: tool 3" in host.told[1]
    assert host.schema["anyOf"][1]["properties"]["spans"]["items"] == {"enum": [1, 2, 3, 4]}


@pytest.mark.parametrize("answer", ['{"tool":"cache_keep"}', '{"tool":"cache_drop","spans":[9', "[]"])
def test_a_model_that_keeps_or_is_cut_off_drops_nothing(answer):
    moment = conversation("system", "call", "tool", host=Host(answer))
    assert ToolPolicy(every=1).decide(moment) == Edit()
    assert ToolPolicy(every=2).decide(moment) == Edit()  # not asked


@pytest.mark.parametrize(
    ("roles", "asked"),
    [
        (("user", "call", "tool"), True),  # before the reply
        (("user", "call", "tool", "assistant"), True),  # when the turn has ended
        (("user", "call", "tool", "assistant", "user"), False),
        (("user", "call", "tool", "assistant", "user", "assistant"), False),
        (("call", "tool", "call", "tool"), True),
    ],
)
def test_the_model_is_asked_once_a_response(roles, asked):
    host = Host('{"tool":"cache_keep"}')
    ToolPolicy(every=1).decide(conversation(*roles, host=host))
    assert bool(host.told) == asked


def test_a_function_of_the_user(tmp_path):
    source = tmp_path / "mine.py"
    source.write_text(
        "def calls(moment):\n    return [(m.start, m.stop) for m in moment.messages if m.calls]\n"
    )
    moment = conversation("user", "call", "tool")
    assert make_policy(f"python(function={source}:calls)").decide(moment).ops == (Drop(((10, 20),)),)
    assert FunctionPolicy(lambda _moment: None).decide(moment) == Edit()
    assert FunctionPolicy(lambda _moment: [Repos()]).decide(moment).ops == (Repos(),)
    with pytest.raises(ProgramError, match="ZeroDivisionError"):
        FunctionPolicy(lambda _moment: 1 // 0).decide(moment)
    with pytest.raises(ProgramError, match="returned"):
        FunctionPolicy(lambda _moment: ["all"]).decide(moment)
    for wrong in ("", "nothing", f"{source}:missing", f"{tmp_path}/none.py:calls"):
        with pytest.raises(ProgramError):
            make_policy(f"python(function={wrong})" if wrong else "python")


def failing_late(moment):
    yield (0, 1)
    raise LookupError(len(moment.messages))


@pytest.mark.parametrize(
    ("said", "problem"),
    [
        (5, "TypeError"),
        (True, "TypeError"),
        (Edit(ops=5), "TypeError"),
        (Edit(ops=("all",)), "returned 'all'"),
        (Edit(texts=("all",)), "returned 'all' for a text"),
        (Edit(texts=(TextMessage("user", None),)), "for a text"),
        (failing_late, "LookupError: 2"),
    ],
)
def test_whatever_a_function_returns_is_a_typed_error(said, problem):
    function = said if callable(said) else lambda _moment: said
    with pytest.raises(ProgramError, match=problem):
        FunctionPolicy(function).decide(conversation("user", "call"))


def test_a_function_may_return_one_operation_or_an_edit_of_pairs():
    moment = conversation("user", "call")
    assert FunctionPolicy(lambda _moment: Drop(((0, 3),))).decide(moment).ops == (Drop(((0, 3),)),)
    texts = (TextMessage("user", "Hello."),)
    edit = FunctionPolicy(lambda _moment: Edit(ops=[(0, 3)], texts=list(texts))).decide(moment)
    assert edit == Edit(ops=(Drop(((0, 3),)),), texts=texts)


def test_policies_by_name():
    assert make_policy("full").name == "full"
    assert make_policy("rolling_drop", keep_last=3, repos=False) == RollingDropPolicy(
        keep_last=3, repos=False
    )
    assert make_policy("rolling_drop(keep_last=1)", keep_last=3) == RollingDropPolicy(
        keep_last=1, repos=False
    )
    assert make_policy("rolling_drop", repos=True).name == "rolling_drop_repos"
    assert make_policy("rolling_drop_repos", repos=False).name == "rolling_drop_repos"
    assert isinstance(make_policy("full"), Policy)
    with pytest.raises(ProgramError):
        make_policy("forget_all")
    with pytest.raises(ProgramError):
        RollingDropPolicy(keep_last=-1)
    with pytest.raises(ProgramError):
        RollingDropPolicy(keep_last=None)


@pytest.mark.parametrize("name", [name for name in POLICIES if name != "python"])
def test_every_named_policy_has_its_name_and_its_knobs(name):
    assert make_policy(name).name == name
    for knob in POLICIES[name].knobs:
        value = {KnobKind.COUNT: knob.low, KnobKind.FLAG: "no", KnobKind.CHOICE: knob.choices[-1:]}[knob.kind]
        word = value[0] if isinstance(value, tuple) else value
        policy = make_policy(f"{name}({knob.name}={word})")
        assert getattr(policy, knob.name) == knob.read(str(word))


def test_policies_as_text():
    told = "full, rolling_drop_repos(keep_last=2, repos_every=3), drop_both(repos=no,scope=thoughts)"
    assert [spec.text for spec in parse_policies(told)] == [
        "full", "rolling_drop_repos(repos_every=3)", "drop_both(scope=thoughts,repos=no)",
    ]  # fmt: skip
    for wrong in (
        "forget",
        "full(keep_last=1)",
        "trim(keep_last)",
        "trim(keep_last=-1)",
        "trim(keep_last=9999999999)",
        f"trim(keep_last={'9' * 5000})",
        "agent(repos=?)",
        "a b",
    ):
        with pytest.raises(PolicyTextError):
            parse_policy(wrong)


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
            for op in policy.decide(Moment(messages=tuple(spans), program=runner.program)).ops:
                result = runner.step(op)
    state = result.state
    assert prefilled == len(state) == 64
    assert state.n_active == state.next_position == 12 + 4 * 4
    assert engine.used_cells() == state.n_active
    assert [run.start for run in state.runs()] == [12, 28, 44]
    assert state.dropped() == ((0, 12), (16, 28), (32, 44))


@pytest.mark.model
def test_a_forced_append_tells_what_the_model_expected(engine, words, runner):
    seq = engine.acquire_sequence()
    expected = engine.prefill(seq, words[:40], logits="all")
    engine.release_sequence(seq)
    engine.clear()
    runner.step(Append(words[:20]))
    logits, result = runner.force(words[20:40])
    assert logits.shape == (21, engine.info.n_vocab)
    assert (logits.argmax(1) == expected[19:].argmax(1)).all()
    assert result.program == CacheProgram((Append(words[:40]),))
    assert (result.logits == logits[-1]).all()
