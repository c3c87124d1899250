"""What the tests with a browser have in common."""

from __future__ import annotations

from playwright.sync_api import expect

# Page, server, kernel and other tests share the machine: what is expected may take far longer than usual.
expect.set_options(timeout=60_000)
