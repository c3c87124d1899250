"""Fixtures of the routing tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from routing_tools import WordEmbedder, tool

from nexus_lab.registry import Registry

if TYPE_CHECKING:
    from nexus_lab.routing import SentenceEmbedder


@pytest.fixture
def words() -> WordEmbedder:
    return WordEmbedder()


@pytest.fixture(autouse=True)
def _own_home(nexus_home: object) -> None:
    """Calibrations and vectors of the user take no part."""


@pytest.fixture(scope="session")
def minilm() -> SentenceEmbedder:
    from nexus_lab.routing import load_embedder

    return load_embedder()


@pytest.fixture
def registry() -> Registry:
    return Registry.of(
        [
            tool(
                "list_issues",
                "List the issues of a repository. Newest first.",
                server="github",
                state={"enum": ["open", "closed"]},
            ),
            tool(
                "create_branch",
                "Create a branch in a repository.",
                server="github",
                branch={"type": "string"},
            ),
            tool(
                "get_current_time", "Tell the time in a timezone.", server="time", timezone={"type": "string"}
            ),
            tool("fetch", "Download a web page as text.", server="web", url={"type": "string"}),
            tool("search", "Search the web for pages.", server="web", query={"type": "string"}),
            tool("search", "Search files on disk.", server="files", pattern={"type": "string"}),
        ]
    )
