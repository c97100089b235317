"""Why an attempt never began: raised on its way, told to the hub as its end."""

from __future__ import annotations

from computepool.core.jobs.cause import Cause
from computepool.node import completion


class Refused(Exception):
    """Nothing may run; the cause and the words go into the completion."""

    def __init__(self, cause: Cause, message: str) -> None:
        super().__init__(message)
        self.ending = completion.refuse(cause, message)
