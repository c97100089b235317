"""Who gets how much of a price. The one place where a price is cut, for the ledger and for the market's forecasts.

The fee takes its share rounded up and the owner the rest, so that the two come to the price exactly.
"""

from __future__ import annotations

from computepool.core.ledger.amount import Microcredits

PPM = 1_000_000
# The platform's share, in parts of a million; never above a fifth.
FEE_PPM_MAX = 200_000


def split_price(price: int, *, fee_ppm: int) -> tuple[Microcredits, Microcredits]:
    """Owner's part and fee. Both grow with the price: what is paid in parts comes to the same as paid at once."""
    if not 0 <= fee_ppm <= FEE_PPM_MAX:
        raise ValueError(f"the fee is at most {FEE_PPM_MAX:,} parts of a million, not {fee_ppm:,}")
    fee = -(-price * fee_ppm // PPM)
    return Microcredits(price - fee), Microcredits(fee)
