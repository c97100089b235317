"""What a new account finds: a top-up that the operator pays, as the settings say."""

from __future__ import annotations

from computepool import entropy
from computepool.core.ids import AccountId
from computepool.core.ledger import verbs
from computepool.core.ledger.refusal import Refusal, to_error
from computepool.core.payments.cash import CashTerms, to_cash
from computepool.core.payments.top_up import TopUpState
from computepool.hub.config import HubSettings
from computepool.hub.store import events as event_store
from computepool.hub.store import ledger as ledger_store
from computepool.hub.store import payments as store
from computepool.hub.store.connect import Connection
from computepool.hub.store.events import NewEvent

WELCOME = "welcome"


async def give_welcome(conn: Connection, settings: HubSettings, account_id: AccountId) -> None:
    """Last in the transaction that makes the account. The operator owes the pool the cash for it.

    Booked in rupees, which is what a credit is; whole paise.
    """
    cash = to_cash(settings.welcome_amount, CashTerms())
    if not cash.minor:
        return
    id = entropy.new_id()
    await store.insert_top_up(
        conn, id=id, account_id=account_id, idempotency_key=f"~{WELCOME}", provider=WELCOME, cash=cash
    )
    await store.change_top_up(conn, id=id, state=TopUpState.PAID, reference=WELCOME, paid=True, paid_back=False)
    body = {"top_up_id": str(id), "amount_microcredits": cash.microcredits, "provider": WELCOME}
    await event_store.record_events(conn, [NewEvent(kind="top_up_paid", account_id=account_id, body=body)])
    posting = verbs.top_up(top_up_id=id, account_id=account_id, amount=cash.microcredits)
    [outcome] = await ledger_store.post(conn, [posting])
    if isinstance(outcome, Refusal):
        raise to_error(outcome)
