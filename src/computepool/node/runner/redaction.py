"""Removes what only the job may know from what it prints, wherever one portion of it ends and the next begins.

Exact bytes alone: a job that prints a secret backwards, or in another coding, has its way.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

MASK = b"[secret]"
# At the end of a log, so much of a secret's beginning is no accident.
TELLING_BYTES_MIN = 8


class Redactor:
    def __init__(self, secrets: Iterable[str]) -> None:
        self._secrets = tuple({secret.encode() for secret in secrets if secret})
        self._first_bytes = {secret[0] for secret in self._secrets}
        self._length_max = max(map(len, self._secrets), default=0)
        # What was not shown yet, because a secret may begin in it.
        self._held = b""
        # So many bytes of it belong to a secret whose mask was shown.
        self._covered = 0

    def add(self, portion: bytes) -> bytes:
        """What may be shown by now."""
        if not self._secrets:
            return portion
        text = self._held + portion
        return self._show(text, self._find_cut(text))

    def finish(self) -> bytes:
        """The rest. A long beginning of a secret is no accident, and is not shown either."""
        is_telling = len(self._held) - self._covered >= TELLING_BYTES_MIN
        rest = self._show(self._held, len(self._held))
        return MASK if is_telling else rest

    def _show(self, text: bytes, cut: int) -> bytes:
        """What stands before the cut, without secrets; the rest is held."""
        shown, place, covered = [], 0, 0
        # Joined for each secret first: one that stands over itself a million times is one place.
        places = [place for secret in self._secrets for place in _join(_find_all(text, secret))]
        for start, end in _join(sorted([(0, self._covered), *places])):
            goes_on = start == 0 and self._covered > 0
            if start >= cut and not goes_on:
                break
            if not goes_on:
                shown += [text[place:start], MASK]
            place, covered = min(end, cut), max(0, end - cut)
        shown.append(text[place:cut])
        self._held, self._covered = text[cut:], covered
        return b"".join(shown)

    def _find_cut(self, text: bytes) -> int:
        """From here on the text may be the beginning of a secret."""
        for start in range(max(0, len(text) - self._length_max + 1), len(text)):
            if text[start] not in self._first_bytes:
                continue
            rest = text[start:]
            if any(secret.startswith(rest) and len(secret) > len(rest) for secret in self._secrets):
                return start
        return len(text)


def _find_all(text: bytes, secret: bytes) -> Iterator[tuple[int, int]]:
    """Where it stands, also where it overlaps with itself."""
    start = text.find(secret)
    while start >= 0:
        yield start, start + len(secret)
        start = text.find(secret, start + 1)


def _join(places: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Places that overlap, as one. Empty ones are none."""
    joined: tuple[int, int] | None = None
    for start, end in places:
        if start == end:
            continue
        if joined is not None and start < joined[1]:
            joined = (joined[0], max(joined[1], end))
            continue
        if joined is not None:
            yield joined
        joined = (start, end)
    if joined is not None:
        yield joined
