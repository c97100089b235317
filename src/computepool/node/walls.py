"""Which sandboxes hold on this machine, the level that it can promise by them, and which of them a job gets."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from computepool.core.jobs.isolation import IsolationLevel
from computepool.node import files, journal
from computepool.node.runner import handle, self_test
from computepool.node.sandbox.backends import get_backend
from computepool.node.sandbox.port import Report


class NoSandbox(Exception):
    """No sandbox holds here, so no stranger's job may run."""


@dataclass(frozen=True)
class Walls:
    """The sandboxes that passed their self-test, weakest level first."""

    reports: tuple[Report, ...]

    @property
    def level(self) -> IsolationLevel:
        """What the node promises: the strictest."""
        return max((report.level for report in self.reports), key=lambda level: level.rank)

    def find(self, minimum: IsolationLevel, *, has_image: bool = False, has_egress: bool = False) -> str | None:
        """The lightest that is strict enough and can do what the job needs; None where there is none."""
        for report in sorted(self.reports, key=lambda report: report.level.rank):
            backend = get_backend(report.backend)
            can = (backend.runs_images or not has_image) and (backend.has_egress or not has_egress)
            if report.level.meets(minimum) and can:
                return report.backend
        return None


def find_walls(work_dir: Path, wanted: Iterable[str] = ()) -> Walls:
    """Blocking, some seconds. Raises NoSandbox with the reasons. `wanted` empty: all that there are."""
    files.make_private(work_dir)
    _remove_leftovers(work_dir)
    return choose(self_test.check_backends(work_dir, tuple(wanted)))


def choose(reports: tuple[Report, ...]) -> Walls:
    for report in reports:
        journal.info(
            "sandbox_tested",
            backend=report.backend,
            level=report.level.value,
            usable=report.usable,
            reasons="; ".join(report.reasons) or None,
        )
    usable = tuple(report for report in reports if report.usable)
    if not usable:
        reasons = "; ".join(f"{report.backend}: {', '.join(report.reasons)}" for report in reports)
        raise NoSandbox(f"This machine cannot lock a job in, so no work is taken. {reasons}")
    return Walls(usable)


def _remove_leftovers(work_dir: Path) -> None:
    """Of a self-test that was cut short with its agent."""
    for state_dir in handle.list_state_dirs(work_dir):
        try:
            handle.cleanup(state_dir)
        except (OSError, ValueError, handle.RunnerAlive) as error:
            journal.warning("self_test_not_cleaned", path=state_dir, reason=error)
