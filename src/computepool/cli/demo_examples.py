"""The demo's jobs: what is submitted, what is made of the results, and what must be true in the end."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

from computepool.cli.images import read_ppm, stitch, to_png
from computepool.core.jobs.state import AttemptState, JobState

if TYPE_CHECKING:
    from computepool.sdk import Client, JobHandle
    from computepool.wire.jobs import Slice

SWEEP, PICTURE, LARGE = "sweep", "mandelbrot", "large-card"
LARGE_TIERS = frozenset({"rtx-4090", "rtx-3090"})
TILE_COLUMNS = 4

_WALL_SECONDS = 120
_EXAMPLES: Mapping[str, Mapping[str, Any]] = {
    # The rarest card is asked for last: the grid must keep it free of work that others could do.
    SWEEP: {"file": "sweep.py", "slices": 24},
    PICTURE: {"file": "mandelbrot.py", "slices": 16, "gpu": True},
    LARGE: {"file": "large_card.py", "slices": 6, "vram": "16GB"},
}


@dataclass(frozen=True, slots=True)
class NodeUse:
    """What one node did for the examples."""

    name: str
    owner: str
    tier: str
    slice_count: int
    busy_seconds: float


@dataclass(frozen=True, slots=True)
class Setting:
    """One point of the sweep's grid and what came of it."""

    rate: float
    width: int
    accuracy: float
    loss: list[float] = field(default_factory=list)


def submit_examples(client: Client) -> dict[str, JobHandle]:
    handles = {}
    for name, example in _EXAMPLES.items():
        wanted = dict(example)
        source = files("computepool.cli.demo_jobs").joinpath(wanted.pop("file")).read_text(encoding="utf-8")
        handles[name] = client.submit(script=source, name=name, wall_seconds=_WALL_SECONDS, **wanted)
    return handles


def count_use(slices: Mapping[str, Sequence[Slice]], nodes: Sequence[tuple[str, UUID, str, str]]) -> list[NodeUse]:
    """`nodes` are (name, id, owner, tier). Only attempts that delivered count as slices; all count as time."""
    delivered: Counter[UUID] = Counter()
    seconds: dict[UUID, float] = defaultdict(float)
    for part in (part for parts in slices.values() for part in parts):
        for attempt in part.attempts:
            delivered[attempt.node_id] += attempt.state is AttemptState.SUCCEEDED
            seconds[attempt.node_id] += attempt.run_seconds or 0.0
    return [NodeUse(name, owner, tier, delivered[id_], seconds[id_]) for name, id_, owner, tier in nodes]


def list_faults(
    states: Mapping[str, JobState],
    slices: Mapping[str, Sequence[Slice]],
    use: Sequence[NodeUse],
    tier_of: Mapping[UUID, str],
) -> list[str]:
    """What the demo promises and did not keep; empty if all is well."""
    faults = [f"job {name} is {state.value}" for name, state in states.items() if state is not JobState.SUCCEEDED]
    faults += [f"node {node.name} ran no slice" for node in use if node.slice_count == 0]
    strays = {
        tier_of.get(attempt.node_id, "unknown")
        for part in slices.get(LARGE, ())
        for attempt in part.attempts
        if tier_of.get(attempt.node_id) not in LARGE_TIERS
    }
    faults += [f"job {LARGE} needs 16 GB of VRAM but was given to a node of tier {tier}" for tier in sorted(strays)]
    return faults


def read_sweep(folder: Path) -> list[Setting]:
    found = []
    for path in sorted(folder.glob("*/result.json"), key=lambda p: int(p.parent.name)):
        found.append(Setting(**json.loads(path.read_text(encoding="utf-8"))))
    return found


def best_setting(settings: Sequence[Setting]) -> Setting:
    """Most points right; among equals the one that learned them most surely."""
    return max(settings, key=lambda setting: (setting.accuracy, -setting.loss[-1]))


def stitch_picture(folder: Path, target: Path) -> Path:
    paths = sorted(folder.glob("*/tile.ppm"), key=lambda p: int(p.parent.name))
    target.write_bytes(to_png(stitch([read_ppm(path.read_bytes()) for path in paths], columns=TILE_COLUMNS)))
    return target
