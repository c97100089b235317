"""The options that name the hub and the key, and the client made of them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from computepool.cli.words import plain
from computepool.core.errors import Unauthenticated

if TYPE_CHECKING:
    from computepool.sdk import Client

Function = TypeVar("Function", bound=Callable[..., Any])

# Somebody sits and waits: rather say soon that the hub is away. Who watches a long job would rather see it return.
PATIENCE_SECONDS_QUICK = 8.0
PATIENCE_SECONDS_WATCHING = 900.0


def hub_options(command: Function) -> Function:
    key = click.option("--key", metavar="KEY", help="API key. [else COMPUTEPOOL_KEY, else as signed in]")
    hub_url = click.option("--hub-url", metavar="URL", help="The hub's address. [else HUB_URL, else as signed in]")
    return hub_url(key(command))


def connect(hub_url: str | None, key: str | None, *, watching: bool = False) -> Client:
    """A client that has a key; what it lacks is said before the first call."""
    from computepool.sdk import Client, resolve_settings

    settings = resolve_settings(hub_url=hub_url, key=key)
    if settings.key is None:
        raise Unauthenticated(
            f"You are not signed in at {settings.hub_url}. Run: computepool sign-in --hub-url {settings.hub_url}"
        )
    return Client(
        settings.hub_url,
        settings.key,
        patience_seconds=PATIENCE_SECONDS_WATCHING if watching else PATIENCE_SECONDS_QUICK,
        on_trouble=_Remark() if watching else None,
    )


class _Remark:
    """Says once that the hub is away, not at every try."""

    def __init__(self) -> None:
        self._last = ""

    def __call__(self, message: str) -> None:
        if message != self._last:
            self._last = message
            # Not click.echo: it would write past rich, into the middle of its moving line.
            print(f"{plain(message)} Trying again; the job is safe.", file=sys.stderr)
