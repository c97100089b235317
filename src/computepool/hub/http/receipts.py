"""What nodes have signed for, handed to those whom it concerns."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from computepool.core.ids import JobId
from computepool.hub.http.routing import Access, Call, Routes
from computepool.hub.services import receipts as service
from computepool.hub.services.keyring import to_base64
from computepool.hub.store.receipts import SignedResult
from computepool.wire import receipts as wire
from computepool.wire.jobs import OutputFile

routes = Routes()

# A result may have thousands of outputs.
PAGE_MAX = 200


class ReceiptsQuery(msgspec.Struct, frozen=True, kw_only=True):
    after: int = -1
    limit: int = 100


@routes.add("GET", "/v1/jobs/{job_id}/receipts", Access.ACCOUNT, query=ReceiptsQuery, answer=wire.JobReceipts)
async def list_receipts(call: Call) -> wire.JobReceipts:
    """What nodes have signed for the results of a job; an owner sees what their own nodes have signed."""
    query: ReceiptsQuery = call.query
    limit = max(1, min(query.limit, PAGE_MAX))
    job, signed = await service.list_signed(
        call.hub.pool,
        call.account,
        JobId(call.path["job_id"]),
        after=max(-1, min(query.after, 1_000_000)),
        limit=limit,
    )
    return wire.JobReceipts(
        hub_id=call.hub.keyring.hub_id,
        job_id=job.id,
        # As it was submitted: a run that checks a result looks like any other, here too.
        slice_count=job.spec.get("slice_count", 1),
        results=[_to_result(each) for each in signed],
        receipts=_list_receipts(signed),
        next_after=signed[-1].slice_index if len(signed) >= limit else None,
    )


def _to_result(signed: SignedResult) -> wire.SignedResult:
    return wire.SignedResult(
        attempt_id=signed.attempt_id,
        slice_index=signed.slice_index,
        number=signed.number,
        accepted=signed.accepted,
        result_sha256=None if signed.result_sha256 is None else signed.result_sha256.hex(),
        outputs=[msgspec.convert(output, OutputFile) for output in signed.outputs],
        receipt_id=signed.receipt_id,
        signed_id=None if signed.signed_id == signed.attempt_id else signed.signed_id,
    )


def _list_receipts(signed: Sequence[SignedResult]) -> list[wire.Receipt]:
    """Each once, however many of these results it is for."""
    found = {
        each.receipt_id: wire.Receipt(
            id=each.receipt_id, node_id=each.node_id, public_key=to_base64(each.public_key), token=each.token
        )
        for each in signed
        if each.receipt_id is not None and each.token is not None
    }
    return list(found.values())
