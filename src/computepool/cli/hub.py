"""`computepool hub`: runs a hub in this process. Only this command imports the hub, and only when it is called."""

from __future__ import annotations

import click


@click.command("hub")
@click.option("--host", metavar="ADDRESS", help="Address to listen on. [default: 127.0.0.1]")
@click.option("--port", type=click.IntRange(1, 65535), help="Port to listen on. [else PORT, else 8000]")
@click.option("--workers", type=click.IntRange(1, 256), help="Hub processes that share the port. [default: 1]")
@click.option("--demo", is_flag=True, help="A demo hub: sign-up is open and synthetic nodes are welcome.")
@click.option("--data-dir", metavar="DIR", help="Folder of the embedded database and of files.")
@click.option("--database-url", metavar="URL", help="PostgreSQL to use. [else DATABASE_URL, else an embedded one]")
def command(
    host: str | None,
    port: int | None,
    workers: int | None,
    demo: bool,
    data_dir: str | None,
    database_url: str | None,
) -> int:
    """Run a hub until Ctrl-C. It brings its own database unless it is told of one.

    Everything else is set by environment variables (COMPUTEPOOL_HUB_...).
    """
    try:
        from computepool.hub.main import run_hub
    except ImportError as error:
        raise click.ClickException(
            f"The hub needs Python 3.11 and more packages ({error}). Install them: pip install 'computepool[hub]'"
        ) from None
    return run_hub(
        host=host, port=port, workers=workers, demo=demo or None, data_dir=data_dir, database_url=database_url
    )
