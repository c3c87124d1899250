"""The tool-name mask beside a naive twin."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nexus_lab.arguments import ArgumentsError, ToolNameTrie

END = b'"'
NAMES = ["issue", "issue_read", "issue_write", "list_issues", "get-me", "détail"]
PIECES = [
    b"",
    *(bytes((byte,)) for byte in range(256)),
    b"is",
    b"issue",
    b"_re",
    b'ad"',
    b'e"',
    b"list_",
    b"issues",
    b"\xc3\xa9ta",
    b"me",
]


def naive(names: list[str], written: bytes, pieces: list[bytes]) -> set[int]:
    """Return the tokens after which the text is still the beginning of a name and its end."""
    whole = [name.encode() + END for name in names]
    return {
        token
        for token, piece in enumerate(pieces)
        if piece and any(text.startswith(written + piece) for text in whole)
    }


@given(
    names=st.lists(st.text("abc_é", min_size=1, max_size=6), min_size=1, max_size=6, unique=True),
    more=st.lists(st.text('abc_é"', min_size=2, max_size=4).map(str.encode), max_size=12),
    data=st.data(),
)
@settings(deadline=None)
def test_the_mask_allows_what_its_naive_twin_allows(names: list[str], more: list[bytes], data: st.DataObject):
    pieces = [b"", *(bytes((byte,)) for byte in range(256)), *more]
    mask = ToolNameTrie(names, pieces).start()
    written = b""
    while not mask.stopped:
        logits = np.zeros(len(pieces) + 3, np.float32)
        mask.mask(logits)
        allowed = {int(token) for token in np.flatnonzero(np.isfinite(logits))}
        assert allowed == naive(names, written, pieces)
        token = data.draw(st.sampled_from(sorted(allowed)))
        mask.accept(token)
        written += pieces[token]
    assert mask.name is not None
    assert written == mask.name.encode() + END
    assert mask.name in names


def test_a_name_that_begins_another_is_told_apart_by_its_end():
    trie = ToolNameTrie(NAMES, PIECES)
    short, long = trie.start(), trie.start()
    for mask, tokens in ((short, [b"issue", END]), (long, [b"issue", b"_re", b'ad"'])):
        for piece in tokens:
            assert not mask.stopped
            mask.accept(PIECES.index(piece))
    assert (short.name, long.name) == ("issue", "issue_read")


def test_the_logits_of_allowed_tokens_are_left_alone():
    mask = ToolNameTrie(NAMES, PIECES).start()
    logits = np.arange(len(PIECES), dtype=np.float32)
    mask.mask(logits)
    allowed = np.flatnonzero(np.isfinite(logits))
    assert np.array_equal(logits[allowed], allowed.astype(np.float32))
    assert PIECES.index(b"issue") in allowed
    assert PIECES.index(b"_re") not in allowed


def test_masks_of_one_trie_do_not_disturb_each_other():
    trie = ToolNameTrie(NAMES, PIECES)
    first, second = trie.start(), trie.start()
    first.accept(PIECES.index(b"list_"))
    second.accept(PIECES.index(b"issue"))
    first.accept(PIECES.index(b"issues"))
    first.accept(PIECES.index(END))
    assert first.name == "list_issues"
    assert second.name is None


@pytest.mark.parametrize("token", [PIECES.index(b"me"), 0, -1, 10_000])
def test_a_token_that_leads_nowhere_is_refused(token: int):
    mask = ToolNameTrie(NAMES, PIECES).start()
    with pytest.raises(ArgumentsError, match="leads to no tool name"):
        mask.accept(token)


@pytest.mark.parametrize(
    ("names", "pieces", "terminator", "why"),
    [
        ([], PIECES, END, "at least one name"),
        (["a"], PIECES, b"", "terminator"),
        (['a"b'], PIECES, END, "holds the terminator"),
        ([""], PIECES, END, "is empty"),
        (["a"], [b"", b"x"], END, "begins a tool name"),
    ],
)
def test_a_mask_that_could_never_end_is_refused(
    names: list[str], pieces: list[bytes], terminator: bytes, why: str
):
    with pytest.raises(ArgumentsError, match=why):
        ToolNameTrie(names, pieces, terminator=terminator)


def test_a_large_registry_has_a_mask(data_dir):
    import json

    tools = json.loads((data_dir / "registries" / "scale.json").read_text())["tools"]
    names = [tool["name"] for tool in tools]
    logits = np.zeros(len(PIECES), np.float32)
    ToolNameTrie(names, PIECES).start().mask(logits)
    assert {int(token) for token in np.flatnonzero(np.isfinite(logits))} == naive(names, b"", PIECES)
