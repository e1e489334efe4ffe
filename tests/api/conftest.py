"""The command in this process, beside the library."""

from tests.cli.conftest import whet as command  # noqa: F401
