"""What the commands share: errors in one line, as `whet` itself says them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

from whet.errors import RunFailed, UserError


def run_command(main: Callable[[Sequence[str]], None], arguments: Sequence[str]) -> int:
    """The exit code: 2 for wrong input, 1 for a measurement that broke."""
    try:
        main(arguments)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except RunFailed as error:
        print(f"failed: {error}", file=sys.stderr)
        return 1
    return 0
