"""Writes every generated file from its source; with --check, fails when one has drifted.

docs/concepts/job-states.md   from core/jobs/state.py
docs/reference/openapi.json   from the hub's routes
docs/reference/settings.md, .env.example, deploy/environment.schema.json   from the config classes
src/computepool/hub/store/schema.sql   from the migrations, by a real PostgreSQL
"""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from computepool import settings
from computepool.core.jobs import state
from computepool.hub.config import PREFIX as HUB_PREFIX
from computepool.hub.config import HubSettings
from computepool.hub.http.app import all_routes
from computepool.hub.http.openapi import build_openapi
from computepool.hub.store.embedded import EmbeddedPostgres, binaries_dir
from computepool.hub.store.migrate import migrate
from computepool.node.config import PREFIX as NODE_PREFIX
from computepool.node.config import NodeConfig

ROOT = Path(__file__).resolve().parent.parent
CONFIGS = (("The hub", HubSettings, HUB_PREFIX), ("The agent", NodeConfig, NODE_PREFIX))


def render_states() -> str:
    return f"""# The states of a slice and of an attempt

Generated from `src/computepool/core/jobs/state.py` by `make generate`.

A slice is what is placed, retried and paid. It is always in one of these states:

```mermaid
{_diagram(state.SLICE_TRANSITIONS, state.SLICE_TERMINAL, "queued")}
```

An attempt is one try of one slice on one slot. `lost` is not the end: a node that was only asleep may still deliver.

```mermaid
{_diagram(state.ATTEMPT_TRANSITIONS, state.ATTEMPT_TERMINAL, "leased")}
```

A job's state follows from its slices: `queued` until the first lease, `running` until the last slice has ended, then
`failed` if any slice failed, `cancelled` if any was cancelled, else `succeeded`.
"""


def _diagram(table: Mapping[tuple[Any, Any], Any], terminal: frozenset[Any], first: str) -> str:
    lines = ["stateDiagram-v2", f"    [*] --> {first}"]
    lines += [f"    {start.value} --> {end.value}: {event.value}" for (start, event), end in table.items()]
    lines += [f"    {end.value} --> [*]" for end in type(next(iter(terminal))) if end in terminal]
    return "\n".join(lines)


def render_openapi() -> str:
    return json.dumps(build_openapi(all_routes()), indent=1, sort_keys=True) + "\n"


def render_settings() -> str:
    parts = ["# Settings\n\nGenerated from the config classes by `make generate`. All are environment variables.\n"]
    for title, cls, prefix in CONFIGS:
        rows = settings.describe(cls, prefix=prefix)
        cells = [(f"`{name}`", f"`{default}`" if default else "", text) for name, default, text in rows]
        table = "\n".join("| " + " | ".join(row) + " |" for row in cells)
        parts.append(f"## {title}\n\n| variable | default | meaning |\n|---|---|---|\n{table}\n")
    return "\n".join(parts)


def render_env_example() -> str:
    parts = ["# Generated from the config classes by `make generate`. Copy to .env and uncomment what you change.\n"]
    for title, cls, prefix in CONFIGS:
        rows = settings.describe(cls, prefix=prefix)
        parts.append(f"\n# {title}\n" + "".join(f"\n# {text}\n#{name}={default}\n" for name, default, text in rows))
    return "".join(parts)


def render_env_schema() -> str:
    properties: dict[str, Any] = {}
    for _, cls, prefix in CONFIGS:
        properties |= settings.json_schema(cls, prefix=prefix)
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "ComputePool environment",
        "type": "object",
        "properties": properties,
    }
    return json.dumps(schema, indent=2) + "\n"


async def render_schema() -> str:
    """What the migrations really make, dumped by pg_dump."""
    with tempfile.TemporaryDirectory(prefix="cp-schema-") as folder:
        Path(folder).chmod(0o755)
        server = EmbeddedPostgres(Path(folder) / "database")
        dsn = await server.start()
        try:
            await migrate(dsn)
            dump = subprocess.run(
                [binaries_dir() / "pg_dump", "--schema-only", "--no-owner", "--no-privileges", dsn],
                check=True,
                capture_output=True,
                text=True,
                timeout=60,
            ).stdout
        finally:
            await server.stop()
    # Versions, session settings and random tokens would differ from run to run.
    kept = [line for line in dump.splitlines() if not re.match(r"--|SET |SELECT pg_catalog|\\(un)?restrict|$", line)]
    return "-- Generated from the migrations by `make generate`: what they come to.\n" + "\n".join(kept) + "\n"


def render_all() -> dict[str, str]:
    return {
        "docs/concepts/job-states.md": render_states(),
        "docs/reference/openapi.json": render_openapi(),
        "docs/reference/settings.md": render_settings(),
        ".env.example": render_env_example(),
        "deploy/environment.schema.json": render_env_schema(),
        "src/computepool/hub/store/schema.sql": asyncio.run(render_schema()),
    }


def main() -> int:
    check = "--check" in sys.argv
    drifted = []
    for name, text in render_all().items():
        path = ROOT / name
        if path.exists() and path.read_text() == text:
            continue
        drifted.append(name)
        if not check:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            print(f"wrote {name}")
    if check and drifted:
        print("generated files have drifted; run `make generate`:", *drifted, sep="\n  ", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
