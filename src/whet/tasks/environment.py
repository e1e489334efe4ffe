"""What a worker sees of the environment: everything but secrets, which a recipe hands over by name."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from whet.errors import UserError
from whet.imports import nearest

# Words between underscores: TOKENIZERS_PARALLELISM and KEYBOARD hold no secret, HF_TOKEN and SSH_KEY_PATH may.
SECRET = re.compile(
    r"(^|_)(API_?KEYS?|KEYS?|TOKENS?|SECRETS?|PASS|PASSPHRASE|CREDENTIALS?|CREDS|PAT|DSN|CONNECTION_STRING)(_|$)"
    r"|APIKEY|PASSWORD|PASSWD|^(AWS|AZURE)_|^(DATABASE_URL|SSH_AUTH_SOCK|NETRC)$",
    re.IGNORECASE,
)


def is_secret(name: str) -> bool:
    """Whether a variable of this name usually holds a secret, or opens the way to one."""
    return SECRET.search(name) is not None


def withheld(environment: Mapping[str, str], passed: Sequence[str]) -> list[str]:
    """The variables that the worker does not see, because their names look like those of secrets."""
    return sorted(name for name in environment if is_secret(name) and name not in passed)


def worker_environment(environment: Mapping[str, str], passed: Sequence[str]) -> dict[str, str]:
    """The variables that are no secrets, and those that are `passed` by name."""
    for name in passed:
        if name not in environment:
            raise UserError(
                f"reward.environment names {name}, which is not set{nearest(name, environment)}: export it, or leave "
                "it out"
            )
    return {name: value for name, value in environment.items() if name in passed or not is_secret(name)}
