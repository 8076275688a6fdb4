"""The one error that is the user's to mend."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class RequestError(ValueError):
    """The request was wrong: one sentence that says what, where, and what to do.

    The command line prints it without a traceback and exits with code 2.
    """


def nearest(word: str, known: Iterable[str]) -> str:
    """' (did you mean X?)' if a known name is close to ``word``, else an empty string."""
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.5)
    return f" (did you mean {close[0]!r}?)" if close else ""
