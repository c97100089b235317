"""`computepool sign-up`: makes an account at a hub and signs in with it."""

from __future__ import annotations

import click


@click.command("sign-up")
@click.option("--hub-url", metavar="URL", help="The hub's address. [else HUB_URL, else asked for]")
@click.option("--email", prompt="Email", help="Your email address.")
@click.option("--name", default="", help="How you want to be called.")
@click.option("--invite", metavar="TEXT", help="The invite, where a hub asks for one.")
def command(hub_url: str | None, email: str, name: str, invite: str | None) -> None:
    """Make an account at a hub, and remember its key on this machine."""
    from computepool.cli.sign_in import ask_hub_url, remember
    from computepool.sdk import Client

    client = Client(ask_hub_url(hub_url), key="")
    password = click.prompt("Password", hide_input=True, confirmation_prompt=True)
    signed = client.sign_up(email=email, name=name, password=password, invite=invite)
    remember(client.hub_url, signed.key.secret, signed.account)
