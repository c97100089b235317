"""Serves gRPC with a guard taken out, to show that the tests would notice. Never part of the product.

Usage: python -m tests.support.planted_rpc BUG, started by `planted_hub` in the place of the real one.
"""

from __future__ import annotations

import sys


def no_tenant_check() -> None:
    """Shows any network to any account."""
    from computepool.hub.services import networks as service
    from computepool.hub.store import networks as network_store

    async def get_any(conn, caller, network_id):
        return await network_store.find_network(conn, network_id)

    service.get_visible = get_any


def no_lease_check() -> None:
    """Takes anybody's word for it that they hold a lease."""
    from computepool.hub.services.keyring import Keyring

    Keyring.is_lease_secret = lambda self, attempt_id, secret: True


BUGS = {"no_tenant_check": no_tenant_check, "no_lease_check": no_lease_check}

if __name__ == "__main__":
    BUGS[sys.argv[1]]()
    from computepool.hub.rpc.main import main

    sys.exit(main())
