"""Uploads a model directory to the Hugging Face hub."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from whet.errors import RunFailed, UserError
from whet.models.download.model_hub import NAME

KEPT_HERE = ("manifest.json", "best.json", ".*")  # files of a run directory that are nobody else's


def push(directory: Path, name: str, *, private: bool = False, replaced: Mapping[str, str] | None = None) -> str:
    """Uploads the files of a model directory to ORG/NAME and returns its address.

    `replaced` are files (the card, …) by name, uploaded in place of those in the directory. The token is that of
    `hf auth login` or HF_TOKEN.
    """
    from huggingface_hub import CommitOperationAdd, HfApi
    from huggingface_hub.errors import HfHubHTTPError, LocalTokenNotFoundError, OfflineModeIsEnabled

    if "/" not in name or NAME.fullmatch(name) is None:
        raise UserError(f"{name!r} is no name of a repository: write ORG/NAME")
    given = dict(replaced or {})
    files = [p for p in sorted(directory.iterdir()) if p.is_file() and not any(p.match(one) for one in KEPT_HERE)]
    operations: list[Any] = [CommitOperationAdd(p.name, str(p)) for p in files if p.name not in given]
    operations += [CommitOperationAdd(file, text.encode()) for file, text in given.items()]
    api = HfApi()
    try:
        url = api.create_repo(name, private=private, exist_ok=True)
        api.create_commit(name, operations, commit_message="Model trained with whet")
    except LocalTokenNotFoundError as error:
        raise UserError(f"{name} cannot be uploaded without a token: set HF_TOKEN, or run hf auth login") from error
    except OfflineModeIsEnabled as error:
        raise UserError(f"HF_HUB_OFFLINE forbids to upload {name}: unset it") from error
    except HfHubHTTPError as error:
        status = getattr(error.response, "status_code", None)
        if status in (401, 403):
            raise UserError(
                f"the Hugging Face hub refuses {name} ({status}): use a token that may write there (HF_TOKEN)"
            ) from error
        raise RunFailed(f"the Hugging Face hub failed on {name} ({_short(error)}): try again") from error
    except Exception as error:  # the client's HTTP library, and so its exceptions, differ between versions
        raise RunFailed(
            f"the Hugging Face hub cannot be reached for {name} ({_short(error)}): check the network"
        ) from error
    return str(url)


def _short(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split()):.120}"
