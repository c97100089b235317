"""What can go wrong with cash, below the tree of core/errors.py.

InvalidRequest
├── CurrencyMismatch        another currency than the one agreed for this account
└── PayoutBelowMinimum
Unauthenticated
└── SignatureRefused        not signed by the provider, or not lately
Forbidden
└── AccountFrozen           money went back that was already spent; the operator decides
Conflict
├── AccountOwes             nothing is paid out to an account that owes
├── PaymentRefused          what was said of a top-up or payout does not fit what is known of it
└── PayoutDetailsMissing
LimitExceeded
├── CashLimitExceeded       the most that may move in a day
└── PayoutCoolingOff        payout details were changed a short while ago
HubUnavailable
└── ProviderUnavailable     the payment provider does not answer; nothing was moved
"""

from __future__ import annotations

from computepool.core.errors import (
    Conflict,
    Forbidden,
    HubUnavailable,
    InvalidRequest,
    LimitExceeded,
    Unauthenticated,
)


class CurrencyMismatch(InvalidRequest):
    code = "currency_mismatch"


class PayoutBelowMinimum(InvalidRequest):
    code = "payout_below_minimum"


class SignatureRefused(Unauthenticated):
    code = "signature_refused"


class AccountFrozen(Forbidden):
    code = "account_frozen"


class AccountOwes(Conflict):
    code = "account_owes"


class PaymentRefused(Conflict):
    code = "payment_refused"


class PayoutDetailsMissing(Conflict):
    code = "payout_details_missing"


class CashLimitExceeded(LimitExceeded):
    code = "cash_limit_exceeded"


class PayoutCoolingOff(LimitExceeded):
    code = "payout_cooling_off"


class ProviderUnavailable(HubUnavailable):
    code = "provider_unavailable"
