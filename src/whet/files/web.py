"""Files of rows at an http(s) address, downloaded once and then read from the cache, without a network."""

import hashlib
import re
from collections.abc import Sequence
from http.client import HTTPException
from pathlib import Path, PurePosixPath
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

from whet.errors import UserError
from whet.files import ROW_SUFFIXES, home_directory, unpacked_suffix
from whet.files.cached_files import is_intact, store

LARGEST = 2**28  # bytes of a file that is downloaded
SECONDS = 30  # without an answer, or between two parts of the file
CHUNK = 2**20


def is_address(path: str) -> bool:
    return path.startswith(("http://", "https://"))


def cached_download(address: str, *, kinds: Sequence[str] = ROW_SUFFIXES, sha256: str = "") -> Path:
    """The cached copy of a file, downloaded if it is absent or damaged.

    `kinds`: the endings that its name may have, each also with .gz or .xz; `sha256`: what must arrive.
    """
    name = PurePosixPath(urlsplit(address).path).name
    if unpacked_suffix(name) not in kinds:
        raise UserError(f"{address} does not name a file that can be read: it must end in {', '.join(kinds)}")
    key = hashlib.sha256(address.encode()).hexdigest()[:16]
    path = home_directory("data") / f"{key}-{re.sub(r'[^A-Za-z0-9_.-]', '-', name)[-80:]}"
    if not is_intact(path):
        data = _downloaded(address)
        if sha256 and hashlib.sha256(data).hexdigest() != sha256:
            raise UserError(f"{address} is not the file it was: its checksum differs; name a copy that you trust")
        store(path, lambda file: {"address": address, "bytes": file.write(data)}, what=address)
    return path


def _downloaded(address: str) -> bytes:
    try:
        request = Request(address, headers={"User-Agent": "whet"})  # noqa: S310  (http or https, see `is_address`)
        with urlopen(request, timeout=SECONDS) as answer:  # noqa: S310
            parts, size = [], 0
            while part := answer.read(CHUNK):
                size += len(part)
                if size > LARGEST:
                    raise UserError(
                        f"{address} has more than {LARGEST // 2**20} MiB: download it yourself, and name the file"
                    )
                parts.append(part)
            promised = answer.headers.get("Content-Length")
    except HTTPError as error:
        raise UserError(f"cannot download {address}: the server answers {error.code} {error.reason}") from error
    except (URLError, HTTPException, OSError, ValueError) as error:
        reason = getattr(error, "reason", None) or error
        raise UserError(f"cannot download {address} ({reason}): without a network, name a local copy") from error
    if promised is not None and promised.isdigit() and int(promised) != size:
        raise UserError(f"cannot download {address}: {size} of {promised} bytes arrived; try again")
    return b"".join(parts)
