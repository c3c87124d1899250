from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nexus_lab.engine import HiddenBlock, PatchFailed, PatchPlan

blocks = st.lists(
    st.builds(
        lambda a, b, p, q: HiddenBlock(min(a, b), max(a, b), p, p + q),
        st.integers(0, 20),
        st.integers(0, 20),
        st.integers(0, 50),
        st.integers(0, 9),
    ),
    max_size=8,
)


@given(blocks, st.integers(1, 20))
def test_pieces_hide_what_the_whole_hides(hidden: list[HiddenBlock], chunk: int):
    plan = PatchPlan(n_tokens=20, hidden=tuple(hidden))
    for first in range(0, 20, chunk):
        last = min(first + chunk, 20)
        offsets, ranges = plan.piece(first, last)
        assert (offsets[0], offsets[-1], len(offsets)) == (0, len(ranges), last - first + 1)
        for query in range(first, last):
            found = ranges[offsets[query - first] : offsets[query - first + 1]].tolist()
            wanted = [
                [block.first_position, block.last_position]
                for block in hidden
                if block.first_query <= query < block.last_query
            ]
            assert sorted(found) == sorted(wanted)


def test_plans_that_contradict_themselves_are_refused():
    with pytest.raises(PatchFailed):
        PatchPlan(n_tokens=3, positions=np.zeros(2, np.int32))
    with pytest.raises(PatchFailed):
        PatchPlan(n_tokens=3, hidden=(HiddenBlock(0, 4, 0, 1),))
    with pytest.raises(PatchFailed):
        PatchPlan.for_recompute(np.array([5, 3], np.int32))
    with pytest.raises(PatchFailed):
        PatchPlan(n_tokens=2, in_place=True)
    with pytest.raises(PatchFailed):
        PatchPlan(
            n_tokens=2,
            positions=np.array([3, 5], np.int32),
            hidden=(HiddenBlock(0, 1, 0, 1),),
            in_place=True,
        )
