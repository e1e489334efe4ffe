"""A file in which a user writes, while a run goes on, how many workers there shall be."""

import re
from pathlib import Path

from whet.train.session.callbacks import Progress

NUMBER = re.compile(r"0*[1-9][0-9]{0,8}")


class WantedNumber:
    """What a user wrote, told once; what is not a number is ignored with a note."""

    def __init__(self, file: Path, progress: Progress) -> None:
        self._file, self._progress = file, progress
        self._seen = ""

    def changed(self) -> int | None:
        """A number that was not told yet."""
        try:
            text = self._file.read_text(errors="replace").strip()
        except OSError:
            return None
        if text == self._seen:
            return None
        self._seen = text
        if not NUMBER.fullmatch(text):
            self._progress.note(f"{self._file} is {text!r:.40}, not a number of workers: ignored")
            return None
        return int(text)
