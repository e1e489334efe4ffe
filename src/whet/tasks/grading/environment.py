"""The worker's environment variables: all but those that look like secrets, which a recipe passes by name."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from whet.errors import UserError, nearest

# Words between underscores: TOKENIZERS_PARALLELISM and KEYBOARD hold no secret, HF_TOKEN and SSH_KEY_PATH may.
SECRET = re.compile(
    r"(^|_)(API_?KEYS?|KEYS?|TOKENS?|PASS|PASSPHRASE|CREDENTIALS?|CREDS|PAT|DSN|JWT|CONNECTION_STRING)[0-9]*(_|$)"
    r"|APIKEY|ACCESSKEY|AUTHTOKEN|SECRET|PASSWORD|PASSWD|_PWD$|_PW$|WEBHOOK|^(AWS|AZURE)_|^DOCKER_AUTH_CONFIG$"
    r"|^(DATABASE|REDIS|MONGO\w*|POSTGRES\w*|MYSQL|AMQP|BROKER)_UR[IL]$|^(SSH_AUTH_SOCK|NETRC)$",
    re.IGNORECASE,
)
# Counts and names that only look like it.
HARMLESS = re.compile(
    r"(^|_)(MAX|MIN|NUM|NEW|EOS|BOS|PAD|UNK|SEP|SORT|PRIMARY)_(TOKENS?|KEYS?)(_|$)|(^|_)TOKEN_(LIMIT|COUNT)(_|$)"
    r"|(^|_)PASS_AT_|^AWS_(DEFAULT_)?REGION$",
    re.IGNORECASE,
)


def is_secret(name: str) -> bool:
    """Whether a variable of this name usually holds a secret, or opens the way to one."""
    return SECRET.search(name) is not None and HARMLESS.search(name) is None


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
