"""Which level of isolation this machine can promise: the strictest whose self-test held."""

from __future__ import annotations

from pathlib import Path

from computepool.core.jobs.isolation import IsolationLevel
from computepool.node import files, journal
from computepool.node.runner import handle, self_test
from computepool.node.sandbox.port import Report


class NoSandbox(Exception):
    """No sandbox holds here, so no stranger's job may run."""


def find_isolation(work_dir: Path) -> IsolationLevel:
    """Blocking, about a second. Raises NoSandbox with the reasons in plain words."""
    files.make_private(work_dir)
    _remove_leftovers(work_dir)
    return choose(self_test.check_backends(work_dir))


def choose(reports: tuple[Report, ...]) -> IsolationLevel:
    for report in reports:
        journal.info(
            "sandbox_tested",
            backend=report.backend,
            level=report.level.value,
            usable=report.usable,
            reasons="; ".join(report.reasons) or None,
        )
    usable = [report.level for report in reports if report.usable]
    if not usable:
        reasons = "; ".join(f"{report.backend}: {', '.join(report.reasons)}" for report in reports)
        raise NoSandbox(f"This machine cannot lock a job in, so no work is taken. {reasons}")
    return max(usable, key=lambda level: level.rank)


def _remove_leftovers(work_dir: Path) -> None:
    """Of a self-test that was cut short with its agent."""
    for state_dir in handle.list_state_dirs(work_dir):
        try:
            handle.cleanup(state_dir)
        except (OSError, ValueError, handle.RunnerAlive) as error:
            journal.warning("self_test_not_cleaned", path=state_dir, reason=error)
