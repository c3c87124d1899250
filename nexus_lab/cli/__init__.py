"""The ``nexus-lab`` command: one module per group, each importing its room only when it runs."""

from __future__ import annotations

import sys

__all__ = ["main"]

_INTERRUPTED = 130
_FAILED = 2


def main() -> None:
    """Run the command line; a typed error prints what and why, and exits with 2, Ctrl-C with 130."""
    from nexus_lab.cli._app import app
    from nexus_lab.cli._output import print_error
    from nexus_lab.errors import Cancelled, NexusError

    try:
        app(standalone_mode=True)
    except NexusError as error:
        print_error(error)
        sys.exit(_INTERRUPTED if isinstance(error, Cancelled) else _FAILED)
    except KeyboardInterrupt:
        sys.exit(_INTERRUPTED)
