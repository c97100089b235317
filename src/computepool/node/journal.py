"""What the agent says of itself: one event per line, with ids as key=value pairs, through the standard logging.

Refuses to write secrets: callers name fields one by one, and nothing is dumped whole.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from io import TextIOWrapper
from logging.handlers import RotatingFileHandler
from pathlib import Path

_LOG = logging.getLogger("computepool.node")
# Two files of this size: some days of an idle agent, the last hours of a busy one.
FILE_BYTES_MAX = 4_000_000
_kept: list[logging.Handler] = []


def set_up(level: str) -> None:
    """Sends every line to standard error. Only the process's main calls this, never a library user's."""
    lines = logging.StreamHandler(sys.stderr)
    lines.setFormatter(_make_form())
    # Here and not at the logger: the file gets everything.
    lines.setLevel(level.upper())
    logging.basicConfig(level=level.upper(), handlers=[lines], force=True)
    # One line per HTTP request would drown everything else.
    logging.getLogger("httpx").setLevel(logging.WARNING)
    logging.getLogger("httpcore").setLevel(logging.WARNING)


def keep_file(path: Path) -> None:
    """From now on every line goes to this file too, whatever the level; it never grows beyond its size."""
    drop_file()
    try:
        kept = _PrivateFile(path, maxBytes=FILE_BYTES_MAX, backupCount=1, encoding="utf-8", errors="replace")
    except OSError as problem:
        warning("no_debug_log", reason=problem)
        return
    kept.setFormatter(_make_form())
    _kept.append(kept)
    _LOG.addHandler(kept)
    _LOG.setLevel(logging.DEBUG)


def drop_file() -> None:
    while _kept:
        kept = _kept.pop()
        _LOG.removeHandler(kept)
        kept.close()
        _LOG.setLevel(logging.NOTSET)


class _PrivateFile(RotatingFileHandler):
    def _open(self) -> TextIOWrapper:
        file = super()._open()
        os.chmod(self.baseFilename, 0o600)
        return file


def _make_form() -> logging.Formatter:
    form = logging.Formatter("%(asctime)s.%(msecs)03dZ %(levelname)s %(message)s", datefmt="%Y-%m-%dT%H:%M:%S")
    form.converter = time.gmtime
    return form


def debug(event: str, **fields: object) -> None:
    _write(logging.DEBUG, event, fields)


def info(event: str, **fields: object) -> None:
    _write(logging.INFO, event, fields)


def warning(event: str, **fields: object) -> None:
    _write(logging.WARNING, event, fields)


def error(event: str, *, trace: BaseException | None = None, **fields: object) -> None:
    _write(logging.ERROR, event, fields, trace)


def render(event: str, fields: dict[str, object]) -> str:
    return " ".join([event, *(f"{key}={_quote(value)}" for key, value in fields.items() if value is not None)])


def _write(level: int, event: str, fields: dict[str, object], trace: BaseException | None = None) -> None:
    if _LOG.isEnabledFor(level):
        _LOG.log(level, "%s", render(event, fields), exc_info=trace)


def _quote(value: object) -> str:
    """Text from outside stays on its line: a message with a line break must not look like a second event."""
    if isinstance(value, float):
        return f"{value:.3f}"
    text = str(value)
    if text and not any(mark in text for mark in ' "=\\') and text.isprintable():
        return text
    escaped = "".join(ch if ch.isprintable() else repr(ch)[1:-1] for ch in text.replace("\\", "\\\\"))
    return '"' + escaped.replace('"', '\\"') + '"'
