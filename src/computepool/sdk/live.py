"""The grid as everybody sees it, one's own profile, and the demo's plug, over the hub's API."""

from __future__ import annotations

from computepool.core.live.leaderboard import Measure, Period
from computepool.sdk.transport import Transport
from computepool.wire.accounts import ChangeProfile, Profile
from computepool.wire.leaderboard import Leaderboard
from computepool.wire.live import Mesh, PublicJobPage
from computepool.wire.views import Unplug, Unplugged


class LiveClient:
    """`Client.live`."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def mesh(self) -> Mesh:
        """Nodes, what runs on them, and networks that train, without names. Needs no key."""
        return self._transport.call("GET", "/v1/public/mesh", Mesh)

    def jobs(self, *, limit: int = 20) -> PublicJobPage:
        """The newest jobs of everybody; names only where their submitters let strangers read them."""
        return self._transport.call("GET", "/v1/public/jobs", PublicJobPage, params={"limit": limit})

    def leaderboard(
        self, *, by: Measure = Measure.EARNED, period: Period = Period.MONTH, limit: int = 50
    ) -> Leaderboard:
        params = {"by": by.value, "period": period.value, "limit": limit}
        return self._transport.call("GET", "/v1/leaderboard", Leaderboard, params=params)

    def profile(self) -> Profile:
        """What strangers see of oneself."""
        return self._transport.call("GET", "/v1/accounts/me/profile", Profile)

    def change_profile(
        self,
        *,
        pseudonym: str | None = None,
        on_leaderboard: bool | None = None,
        shows_titles: bool | None = None,
    ) -> Profile:
        """What is None stays as it is; an empty pseudonym is one that is made for you."""
        body = ChangeProfile(pseudonym=pseudonym, on_leaderboard=on_leaderboard, shows_titles=shows_titles)
        return self._transport.call("PATCH", "/v1/accounts/me/profile", Profile, body=body)

    def unplug(self, node: str, *, seconds: float = 20.0) -> Unplugged:
        """Demo hubs only. `node` is a synthetic node's id on the map."""
        return self._transport.call("POST", f"/v1/demo/nodes/{node}/unplug", Unplugged, body=Unplug(seconds=seconds))
