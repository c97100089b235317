"""Asks an X server how long nobody has touched it (MIT-SCREEN-SAVER), by its protocol over its own socket.

Not through libX11: that ends the whole process when the server goes away, which it does whenever someone logs out.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Mapping
from pathlib import Path

ANSWER_SECONDS = 1.0
SETUP_BYTES_MAX = 1 << 20
COOKIE = b"MIT-MAGIC-COOKIE-1"
EXTENSION = b"MIT-SCREEN-SAVER"
WAYLAND_EXTENSION = b"XWAYLAND"
_QUERY_EXTENSION = 98
_QUERY_INFO = 1
_REPLY, _ERROR = 1, 0


class NoScreen(Exception):
    """The server cannot be asked; the words say why."""


class Screen:
    """One connection to one server. Raises NoScreen; after that it is of no more use."""

    def __init__(self, display: str, cookie: bytes | None) -> None:
        self._link = _connect(display)
        try:
            self._link.settimeout(ANSWER_SECONDS)
            self._root = self._set_up(cookie)
            # A server for old programs under Wayland hears only what is typed into those.
            if self._find_extension(WAYLAND_EXTENSION) is not None:
                raise NoScreen(f"the X server at {display} is a guest of Wayland and does not hear everything")
            opcode = self._find_extension(EXTENSION)
            if opcode is None:
                raise NoScreen(f"the X server at {display} keeps no time of input")
            self._opcode = opcode
        except (OSError, struct.error) as error:
            self.close()
            raise NoScreen(f"the X server at {display} does not answer: {error}") from None
        except NoScreen:
            self.close()
            raise

    def close(self) -> None:
        self._link.close()

    def read_idle_seconds(self) -> float:
        try:
            self._link.sendall(struct.pack("<BBHI", self._opcode, _QUERY_INFO, 2, self._root))
            reply = self._read_reply()
        except OSError as error:
            raise NoScreen(f"the X server went away: {error}") from None
        # kind, state, number, length, window of the saver, time until or since, time since input
        return float(struct.unpack_from("<I", reply, 16)[0]) / 1000

    def _set_up(self, cookie: bytes | None) -> int:
        name, secret = (COOKIE, cookie) if cookie else (b"", b"")
        greeting = struct.pack("<BxHHHHxx", ord("l"), 11, 0, len(name), len(secret))
        self._link.sendall(greeting + _pad(name) + _pad(secret))
        verdict, _, _, _, words = struct.unpack("<BBHHH", self._read(8))
        body = self._read(4 * words)
        if verdict != 1:
            raise NoScreen(f"the X server refused us: {body[:100].decode(errors='replace').strip() or 'no reason'}")
        vendor_length = struct.unpack_from("<H", body, 16)[0]
        format_count = body[21]
        # The first screen follows the vendor's name and the list of picture formats, eight bytes each.
        return int(struct.unpack_from("<I", body, 32 + vendor_length + -vendor_length % 4 + 8 * format_count)[0])

    def _find_extension(self, name: bytes) -> int | None:
        """Its number in requests."""
        length = 2 + (len(name) + 3) // 4
        self._link.sendall(struct.pack("<BxHHxx", _QUERY_EXTENSION, length, len(name)) + _pad(name))
        reply = self._read_reply()
        return reply[9] if reply[8] else None

    def _read_reply(self) -> bytes:
        """The next answer; events in between are thrown away."""
        while True:
            head = self._read(32)
            if head[0] == _ERROR:
                raise NoScreen(f"the X server answered with error {head[1]}")
            if head[0] == _REPLY:
                return head + self._read(4 * struct.unpack_from("<I", head, 4)[0])

    def _read(self, count: int) -> bytes:
        if count > SETUP_BYTES_MAX:
            raise NoScreen("the answer is not an X server's")
        content = b""
        while len(content) < count:
            piece = self._link.recv(count - len(content))
            if not piece:
                raise NoScreen("the X server hung up")
            content += piece
        return content


def find_cookie(env: Mapping[str, str], display: str) -> bytes | None:
    """From the file of cookies; None when there is none for this display, which some servers do not mind."""
    path = Path(env.get("XAUTHORITY") or Path(env.get("HOME") or "/") / ".Xauthority")
    try:
        content = path.read_bytes()
    except OSError:
        return None
    return parse_cookies(content).get(_number_of(display))


def parse_cookies(content: bytes) -> dict[str, bytes]:
    """By the display's number. A torn file gives what stands before the tear."""
    found: dict[str, bytes] = {}
    at = 0

    def take() -> bytes:
        nonlocal at
        (length,) = struct.unpack_from(">H", content, at)
        piece = content[at + 2 : at + 2 + length]
        at += 2 + length
        return piece

    while at + 2 <= len(content):
        at += 2
        try:
            _, number, name, secret = take(), take(), take(), take()
        except struct.error:
            break
        if name == COOKIE:
            found.setdefault(number.decode(errors="replace"), secret)
    return found


def _connect(display: str) -> socket.socket:
    host, _, _ = display.rpartition(":")
    if host not in ("", "unix"):
        raise NoScreen(f"{display} is on another machine")
    number = _number_of(display)
    if not number.isdigit() or not hasattr(socket, "AF_UNIX"):
        raise NoScreen(f"{display!r} names no display")
    path = f"/tmp/.X11-unix/X{number}"
    # Servers listen there, or under the same name in the kernel's own space of names, or at both.
    for address in (path, f"\0{path}"):
        link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        link.settimeout(ANSWER_SECONDS)
        try:
            link.connect(address)
            os.set_inheritable(link.fileno(), False)
            return link
        except OSError as error:
            link.close()
            reason = error
    raise NoScreen(f"there is no X server at {display}: {reason}")


def _number_of(display: str) -> str:
    return display.rpartition(":")[2].partition(".")[0]


def _pad(text: bytes) -> bytes:
    return text + b"\0" * (-len(text) % 4)
