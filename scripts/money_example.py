"""Writes the generated parts of docs/concepts/money.md: one job's every transfer, and the rules by cause.

The example is a real run: a real PostgreSQL, and the services of a hub from the submit to the release. Only time is
helped along, by dating leases back, so that the figures follow from the rules and not from the speed of a machine.
With --check, fails when the page has drifted.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from computepool.core.ids import AccountId  # noqa: E402
from computepool.core.jobs.cause import PLAIN_WORDS, Cause  # noqa: E402
from computepool.core.ledger.accounts import AccountKind, LedgerAccount  # noqa: E402
from computepool.core.ledger.charging import RULES, ChargeRule  # noqa: E402
from computepool.core.ledger.decimals import to_decimal  # noqa: E402
from computepool.core.ledger.statement import RouteSum, sum_job  # noqa: E402
from computepool.core.ledger.transfer import TransferKind  # noqa: E402
from computepool.hub.services.receipts import verify_receipts  # noqa: E402
from computepool.hub.services.releases import release_due  # noqa: E402
from computepool.hub.store import statements as statement_store  # noqa: E402
from computepool.hub.store.attempts import Grant  # noqa: E402
from computepool.hub.store.embedded import EmbeddedPostgres  # noqa: E402
from computepool.hub.store.migrate import migrate  # noqa: E402
from computepool.hub.store.statements import ChargeLine, TransferLine  # noqa: E402
from computepool.wire.attempts import Usage  # noqa: E402
from computepool.wire.jobs import Requirements  # noqa: E402
from tests.support.spine import EnrolledNode, Spine, open_spine  # noqa: E402

PAGE = ROOT / "docs" / "concepts" / "money.md"
CREDIT = 1_000_000
CEILING = 12 * CREDIT
WALL_SECONDS = 600

_RULE_WORDS = {
    ChargeRule.METERED: "the metered seconds",
    ChargeRule.METERED_IF_RUNNING: "the metered seconds up to the stop; nothing if the node had not begun",
    ChargeRule.TO_CHECKPOINT: "up to the last accepted checkpoint; without one nothing",
    ChargeRule.NOTHING: "nothing",
}


@dataclass(frozen=True)
class Example:
    people: dict[AccountId, str]
    transfers: Sequence[TransferLine]
    charges: Sequence[ChargeLine]
    # By node: whose it is.
    owners: dict[object, str]


async def run_example(spine: Spine) -> Example:
    """Two slices; the second fails once by the submitter's own fault and succeeds on another machine."""
    asha = await spine.sign_up(credits=100)
    bo, chen = await spine.sign_up(credits=0), await spine.sign_up(credits=0)
    first, second = await spine.enrol(owner=bo), await spine.enrol(owner=chen)
    need = Requirements(ceiling_microcredits_per_hour=CEILING)
    job = await spine.submit(by=asha, requirements=need, wall_seconds=WALL_SECONDS, slice_count=2)
    await _end(spine, first, 82.4)
    await _end(spine, first, 30.0, exit_code=1, cause=Cause.EXIT_CODE)
    await _end(spine, second, 251.7)
    await verify_receipts(spine.pool, hub_id=spine.keyring.hub_id, limit=10)
    await spine.fetch("UPDATE attempts SET release_at = now()")
    await release_due(spine.pool, limit=10)
    async with spine.pool.acquire() as conn:
        transfers = await statement_store.list_job_lines(conn, job.id, after_id=0, limit=100)
        charges = await statement_store.list_job_charges(conn, job.id, after=(-1, 0), limit=100)
    people = {asha.account_id: "Asha", bo.account_id: "Bo", chen.account_id: "Chen"}
    return Example(people, transfers, charges, {first.id: "Bo", second.id: "Chen"})


async def _end(spine: Spine, node: EnrolledNode, run_seconds: float, **outcome: object) -> Grant:
    grant = await spine.grant_one(node)
    await spine.fetch("UPDATE attempts SET leased_at = leased_at - interval '5 minutes' WHERE id = $1", grant.id)
    usage = Usage(run_seconds=run_seconds, cpu_seconds=run_seconds, memory_bytes_peak=1)
    answer = await spine.succeed(node, grant, usage=usage, **outcome)
    assert not isinstance(answer, Exception), answer
    return grant


def render_example(example: Example) -> str:
    parts = [_render_charges(example), _render_transfers(example), _render_sums(example)]
    return "\n\n".join(parts)


def _render_charges(example: Example) -> str:
    rows = [
        (
            f"{line.slice_index}",
            example.owners[line.node_id],
            line.cause.value if line.cause else "succeeded",
            f"{line.run_seconds:g}",
            f"{_meter(line)}",
            to_decimal(line.rate_microcredits_per_hour or 0),
            to_decimal(line.charged_microcredits),
            to_decimal(line.charged_microcredits - line.fee_microcredits),
            to_decimal(line.fee_microcredits),
        )
        for line in example.charges
    ]
    heads = ("slice", "node of", "end", "claimed s", "metered s", "credits/h", "price", "to the owner", "fee")
    return _table(heads, rows)


def _meter(line: ChargeLine) -> int:
    from computepool.hub.http.statements import to_charge_line

    return to_charge_line(line).metered_seconds or 0


def _render_transfers(example: Example) -> str:
    rows = [
        (
            str(number),
            line.kind.value,
            _name(line.source, example.people),
            _name(line.target, example.people),
            to_decimal(line.amount),
        )
        for number, line in enumerate(sorted(example.transfers, key=_order), 1)
    ]
    return _table(("", "transfer", "from", "to", "credits"), rows)


def _order(line: TransferLine) -> tuple[object, ...]:
    """What one transaction wrote has one time: the refund is what its settlements have left."""
    return line.at, line.kind is TransferKind.REFUND, line.id


def _render_sums(example: Example) -> str:
    money = sum_job(
        RouteSum(line.kind, line.source.kind, line.target.kind, line.amount) for line in example.transfers
    )
    assert money.remaining == 0
    return (
        f"Held {to_decimal(money.held)} = to the owners {to_decimal(money.earned)} + fee {to_decimal(money.fee)} + "
        f"refunded {to_decimal(money.refunded)}.\nThe job has cost {to_decimal(money.cost)} credits."
    )


def _name(account: LedgerAccount, people: dict[AccountId, str]) -> str:
    kind = {
        AccountKind.SUBMITTER_AVAILABLE: "available",
        AccountKind.SUBMITTER_HELD: "held",
        AccountKind.OWNER_PENDING: "pending",
        AccountKind.OWNER_AVAILABLE: "earned",
        AccountKind.FEE: "fee",
    }[account.kind]
    return kind if account.owner_id is None else f"{people[account.owner_id]}, {kind}"


def render_rules() -> str:
    rows = [
        ("it delivered" if cause is None else PLAIN_WORDS[cause], _RULE_WORDS[rule]) for cause, rule in RULES.items()
    ]
    return _table(("how the attempt ended", "the submitter pays"), rows)


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])


def fill_page(text: str, *, example: str, rules: str) -> str:
    """What stands between the marks is replaced."""
    return _fill(_fill(text, "example", example), "rules", rules)


def _fill(text: str, name: str, block: str) -> str:
    begin, end = f"<!-- {name}: written by scripts/money_example.py -->", f"<!-- end of {name} -->"
    assert text.count(begin) == text.count(end) == 1, f"the page has lost the marks of its {name}"
    before, _, rest = text.partition(begin)
    return f"{before}{begin}\n\n{block}\n\n{end}{rest.partition(end)[2]}"


async def render_page() -> str:
    with tempfile.TemporaryDirectory(prefix="cp-money-") as folder:
        Path(folder).chmod(0o755)
        server = EmbeddedPostgres(Path(folder) / "database")
        dsn = await server.start()
        try:
            await migrate(dsn)
            async with open_spine(dsn) as spine:
                example = render_example(await run_example(spine))
        finally:
            await server.stop()
    return fill_page(PAGE.read_text(), example=example, rules=render_rules())


def main() -> int:
    text = asyncio.run(render_page())
    if PAGE.read_text() == text:
        return 0
    if "--check" in sys.argv:
        print("docs/concepts/money.md has drifted; run `python scripts/money_example.py`", file=sys.stderr)
        return 1
    PAGE.write_text(text)
    print(f"wrote {PAGE.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
