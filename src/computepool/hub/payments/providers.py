"""Which payment providers a hub has, by its settings. The operator's own hand is always one of them."""

from __future__ import annotations

from pathlib import Path

from computepool.core.errors import InvalidRequest
from computepool.core.payments.webhook import SIGNATURES_MAX
from computepool.hub.config import HubSettings, PaymentKind
from computepool.hub.payments.manual import MANUAL, ManualAdapter
from computepool.hub.payments.port import Provider, Providers
from computepool.hub.payments.webhook import WebhookAdapter
from computepool.settings import InvalidSettings

# Names that stand in the books for something else.
_TAKEN = (MANUAL, "welcome")


def open_providers(config: HubSettings) -> Providers:
    """The one that new top-ups and payouts use comes first. Raises InvalidSettings."""
    by_hand = Provider(ManualAdapter(config.payment_instructions))
    if config.payment_provider is PaymentKind.MANUAL:
        return Providers([by_hand])
    return Providers([_open_webhook(config), by_hand])


async def close_providers(providers: Providers) -> None:
    for name in providers.names:
        adapter = providers.get(name).adapter
        if isinstance(adapter, WebhookAdapter):
            await adapter.close()


def _open_webhook(config: HubSettings) -> Provider:
    secrets = _read_secrets(config)
    faults = []
    if not config.payment_url:
        faults.append("PAYMENT_URL is not set: where are orders sent to?")
    if not 1 <= len(secrets) <= SIGNATURES_MAX:
        faults.append(f"PAYMENT_SECRETS or PAYMENT_SECRETS_FILE gives 1 to {SIGNATURES_MAX} secrets")
    if config.payment_name in _TAKEN:
        faults.append(f"PAYMENT_NAME is {config.payment_name!r}, which means something else in the books")
    if faults:
        raise InvalidSettings("The payment provider cannot be used (COMPUTEPOOL_HUB_...): " + "; ".join(faults))
    try:
        adapter = WebhookAdapter(
            config.payment_name,
            config.payment_url,
            secrets=secrets,
            call_seconds=config.payment_call_seconds,
            connect_seconds=config.payment_connect_seconds,
        )
        return Provider(adapter, secrets)
    except InvalidRequest as error:
        raise InvalidSettings(f"The payment provider cannot be used: {error.message}") from error


def _read_secrets(config: HubSettings) -> tuple[bytes, ...]:
    """From both places; a secret holds no space, or it could not be told where it ends."""
    text = config.payment_secrets
    if config.payment_secrets_file:
        try:
            text += "\n" + Path(config.payment_secrets_file).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidSettings(f"COMPUTEPOOL_HUB_PAYMENT_SECRETS_FILE cannot be read: {error}") from error
    return tuple(dict.fromkeys(word.encode() for word in text.split()))
