"""`computepool sign-in`: remembers a hub and a key on this machine. The password is never stored."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import parse_qs, urlsplit

import click

if TYPE_CHECKING:
    from computepool.wire.accounts import Account


@click.command("sign-in")
@click.option("--hub-url", metavar="URL", help="The hub's address. [else HUB_URL, else asked for]")
@click.option("--email", help="Sign in with an email address and a password.")
@click.option("--link", metavar="URL", help="Sign in with a one-time link, whole or only its token.")
@click.option("--key", metavar="KEY", help="Store this API key.")
def command(hub_url: str | None, email: str | None, link: str | None, key: str | None) -> None:
    """Remember a hub and a key, so that the other commands need neither.

    Without options it asks for what it needs. The key is stored in a file that only you can read.
    """
    from computepool.sdk import Client

    if link is not None:
        named_url, token = split_link(link)
        client = Client(ask_hub_url(hub_url or named_url), key="")
        signed = client.sign_in(link_token=token)
        remember(client.hub_url, signed.key.secret, signed.account)
    elif key is not None:
        client = Client(ask_hub_url(hub_url), key)
        remember(client.hub_url, key, client.get_account())
    else:
        client = Client(ask_hub_url(hub_url), key="")
        email = email or click.prompt("Email")
        signed = client.sign_in(email=email, password=click.prompt("Password", hide_input=True))
        remember(client.hub_url, signed.key.secret, signed.account)


def ask_hub_url(given: str | None) -> str:
    from computepool.sdk import resolve_settings
    from computepool.settings import InvalidSettings

    try:
        return resolve_settings(hub_url=given).hub_url
    except InvalidSettings:
        if given is not None:
            raise
    return resolve_settings(hub_url=click.prompt("Hub (for example https://hub.example.org)")).hub_url


def split_link(link: str) -> tuple[str | None, str]:
    """(hub, token) of a link such as https://hub.example.org/sign-in?token=...; or the token alone."""
    parts = urlsplit(link)
    if not parts.scheme:
        return None, link
    tokens = parse_qs(parts.query).get("token")
    if not tokens:
        raise click.UsageError("The link carries no token. Copy it whole, in quotes.")
    return f"{parts.scheme}://{parts.netloc}{parts.path.removesuffix('/sign-in')}", tokens[0]


def remember(hub_url: str, key: str, account: Account) -> None:
    from computepool.cli.words import plain
    from computepool.sdk import save_settings

    path = save_settings(hub_url=hub_url, key=key)
    click.echo(f"Signed in at {hub_url} as {plain(account.email)}. Hub and key are in {path}.")
