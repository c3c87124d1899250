"""What the demonstration asks, and of which kind each request is."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["DEMO_REQUESTS", "DemoRequest"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoRequest:
    """One request of the demonstration.

    Attributes
    ----------
    kind
        What it shows.
    text
        What the user says.
    continues
        Whether it goes on in the conversation of the request before it.
    schema_mode
        What the model sees of the routed tool.
    """

    kind: str
    text: str
    continues: bool = False
    schema_mode: str = "signature"


DEMO_REQUESTS = (
    DemoRequest(kind="world knowledge", text="What time is it in Tokyo right now?"),
    DemoRequest(kind="three values", text="Convert 14:30 from Europe/Berlin to America/New_York time."),
    DemoRequest(kind="path", text="Show the working tree status of the repository at ./inventory"),
    DemoRequest(kind="coreference", text="Create a new branch named restock there.", continues=True),
    DemoRequest(kind="full schema", text="Show the commit log of ./inventory", schema_mode="full"),
    DemoRequest(
        kind="spliced schema",
        text="Convert 09:15 from Asia/Tokyo to Europe/London time.",
        schema_mode="splice(bounded(0.05))",
        continues=True,
    ),
    DemoRequest(kind="no arguments", text="Which tables are in the database?"),
    DemoRequest(kind="query", text="Run SELECT name, price FROM products WHERE stock > 1"),
    DemoRequest(kind="no tool fits", text="Translate good morning into French."),
)
