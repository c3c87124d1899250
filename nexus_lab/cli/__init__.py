"""The ``nexus-lab`` command: one module per group, each importing its room only when it runs."""

from __future__ import annotations

import sys

__all__ = ["main"]

_INTERRUPTED = 130
_FAILED = 2


def main() -> None:
    """Run the command line; what fails prints why and the next step, and exits with 2, Ctrl-C with 130."""
    from nexus_lab.cli._app import app
    from nexus_lab.cli._output import print_error
    from nexus_lab.errors import Cancelled, NexusError

    try:
        app(standalone_mode=True)
    except NexusError as error:
        print_error(error)
        sys.exit(_INTERRUPTED if isinstance(error, Cancelled) else _FAILED)
    except OSError as error:
        next_step = "check the path, its permissions and the free disk space"
        print_error(NexusError(f"a file cannot be used: {error}", next_step=next_step))
        sys.exit(_FAILED)
    except KeyboardInterrupt:
        sys.exit(_INTERRUPTED)
