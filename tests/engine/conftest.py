"""Engines that the tests of this room share. One thread each: the tests are about bits, not about speed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from tiny_models import write_kind

from nexus_lab.engine import Engine

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

STORY = (
    "It was a dark and stormy night; the rain fell in torrents, except when it was checked by a violent gust "
    "of wind which swept up the streets, rattling along the house-tops and fiercely agitating the scanty "
    "flame of the lamps that struggled against the darkness. Nobody had seen such a storm for years. "
)


@pytest.fixture(scope="session")
def tiny_path(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Path of a small random model by kind, written on first use."""
    folder = tmp_path_factory.mktemp("models")

    def path(name: str) -> Path:
        file = folder / f"{name}.gguf"
        return file if file.exists() else write_kind(file, name)

    return path


@pytest.fixture(scope="session")
def tiny_session(tiny_path: Callable[[str], Path]) -> Iterator[Engine]:
    with Engine.load(tiny_path("plain"), n_ctx=512, n_ubatch=64, threads=1) as engine:
        yield engine


@pytest.fixture
def tiny(tiny_session: Engine) -> Iterator[Engine]:
    """An engine over a small random model, empty and with all slots free."""
    yield from _clean(tiny_session)


@pytest.fixture(scope="session")
def smol_session() -> Iterator[Engine]:
    with Engine.load(n_ctx=1024, threads=1) as engine:
        yield engine


@pytest.fixture
def smol(smol_session: Engine) -> Iterator[Engine]:
    """An engine over the bundled model, empty and with all slots free."""
    yield from _clean(smol_session)


@pytest.fixture(scope="session")
def flash_session() -> Iterator[Engine]:
    with Engine.load(n_ctx=1024, threads=1, flash_attention=True) as engine:
        yield engine


@pytest.fixture
def flash(flash_session: Engine) -> Iterator[Engine]:
    """As `smol`, with flash attention."""
    yield from _clean(flash_session)


def _clean(engine: Engine) -> Iterator[Engine]:
    engine.clear()
    yield engine
    engine._runtime.ledger.check_integrity()
    for seq in range(32):
        if seq not in engine._slots:
            engine.release_sequence(seq)
    assert engine.used_cells() == 0, "a released engine holds no cells"


@pytest.fixture(scope="session")
def story(smol_session: Engine) -> np.ndarray:
    """Tokens of some prose, int32 [400]."""
    return np.array(smol_session.tokenize(STORY * 8)[:400], np.int32)


@pytest.fixture
def tiny_tokens() -> np.ndarray:
    """Tokens for the small models, int32 [150]."""
    return np.random.default_rng(11).integers(3, 269, 150).astype(np.int32)
