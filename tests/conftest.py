"""Settings that every test runs under."""

import os

# As the command does: see whet.cli.app.main.
os.environ.setdefault("GOMP_SPINCOUNT", "10000")
