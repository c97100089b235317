"""The operator as provider: moves cash by hand at the bank, then says so with the bank's reference."""

from __future__ import annotations

from uuid import UUID

from computepool.core.payments.claim import Claim
from computepool.hub.payments.port import CallOutcome, PayoutAnswer, PayoutOrder, SubjectKind, TopUpOpened, TopUpOrder

MANUAL = "manual"


class ManualAdapter:
    name = MANUAL
    # The operator's word comes by itself.
    can_be_asked = False

    def __init__(self, instructions: str) -> None:
        # Where to pay to, as the operator tells everybody.
        self._instructions = instructions

    async def create_top_up(self, order: TopUpOrder) -> TopUpOpened:
        reference = f"CP-{order.id.hex[-12:].upper()}"
        return TopUpOpened(
            reference=reference,
            pay_url="",
            instructions=f"{self._instructions}\nName {reference} as the purpose of your payment.".strip(),
        )

    async def request_payout(self, order: PayoutOrder) -> PayoutAnswer:
        """Stands on the operator's list from here on; nothing can get lost on the way."""
        return PayoutAnswer(CallOutcome.ACCEPTED)

    async def get_status(self, kind: SubjectKind, subject_id: UUID) -> Claim | None:
        return None
