"""The server of the page: starlette, on this machine only unless asked, read-only."""
