"""Reads a live stream of a real hub, message by message."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import httpx


@dataclass
class LiveStream:
    """Use as an async context; `messages` grows while it is open."""

    url: str
    headers: dict[str, str] = field(default_factory=dict)
    # (name, id, content)
    messages: list[tuple[str, str, dict[str, Any]]] = field(default_factory=list)
    status: int = 0

    async def __aenter__(self) -> LiveStream:
        self._opened = asyncio.Event()
        self._came = asyncio.Condition()
        self._reading = asyncio.create_task(self._read())
        async with asyncio.timeout(60):
            await self._opened.wait()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._reading.cancel()
        with suppress(asyncio.CancelledError):
            await self._reading

    async def _read(self) -> None:
        try:
            async with (
                httpx.AsyncClient(timeout=30) as client,
                client.stream("GET", self.url, headers=self.headers) as r,
            ):
                self.status = r.status_code
                lines: dict[str, str] = {}
                async for line in r.aiter_lines():
                    self._opened.set()
                    if line:
                        name, _, value = line.partition(": ")
                        lines[name] = value
                    else:
                        await self._note(lines)
                        lines = {}
        finally:
            self._opened.set()
            async with self._came:
                self._came.notify_all()

    async def _note(self, lines: dict[str, str]) -> None:
        if "event" in lines:
            async with self._came:
                self.messages.append((lines["event"], lines.get("id", ""), json.loads(lines["data"])))
                self._came.notify_all()

    async def wait_for(self, found: Callable[[LiveStream], Any], seconds: float = 60) -> Any:
        """The first true answer of `found`, looked for after each message."""
        async with asyncio.timeout(seconds), self._came:
            while not (answer := found(self)):
                if self._reading.done():
                    raise AssertionError(f"the stream has ended: {self.messages[-3:]}")
                await self._came.wait()
            return answer

    async def wait_end(self, seconds: float = 60) -> None:
        async with asyncio.timeout(seconds):
            await asyncio.wait([self._reading])

    @property
    def last_id(self) -> str:
        return next((id for _, id, _ in reversed(self.messages) if id), "")

    @property
    def frames(self) -> list[dict[str, Any]]:
        return [content for name, _, content in self.messages if name == "delta"]

    @property
    def names(self) -> list[str]:
        return [name for name, _, _ in self.messages]

    def list_kinds(self) -> list[str]:
        return [event["kind"] for frame in self.frames for event in frame.get("events", ())]

    def find_job(self, job_id: str) -> dict[str, Any] | None:
        """The newest row."""
        rows = [row for frame in self.frames for row in frame.get("jobs", ()) if row["job"]["id"] == job_id]
        return max(rows, key=lambda row: row["version"])["job"] if rows else None

    def list_mesh(self, part: str) -> list[Any]:
        return [each for frame in self.frames for each in (frame.get("mesh") or {}).get(part) or ()]
