"""One attempt's way: verify, fetch, run, ship the log, upload the results, complete until the hub has answered.

Every step can be taken up again after the agent was killed. Refuses to run what the hub did not sign, what was run
before, and what needs a file that is not the one it says; such attempts end with a completion, and nothing runs.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from uuid import UUID

import msgspec

from computepool import clock
from computepool.core.errors import ComputePoolError, Conflict, NodeRemoved, NotFound, StaleBoot, StaleLease
from computepool.core.jobs.cause import Cause
from computepool.core.jobs.spec import SCRIPT_FILE_NAME, is_safe_relative_path, is_sha256
from computepool.core.placement.slot import Slot
from computepool.node import completion, journal, patience
from computepool.node.attempt_folder import AttemptFolder
from computepool.node.checkpoint_shipping import CheckpointShipper, read_blocks
from computepool.node.completion import Ending
from computepool.node.config import NodeConfig
from computepool.node.hosting import HostProcesses
from computepool.node.hub_client import HubClient
from computepool.node.identity import Identity
from computepool.node.input_cache import InputCache, WrongBytes
from computepool.node.job_terms import find_checkpoint_seconds, find_secrets, list_module, make_env, make_limits
from computepool.node.log_shipping import LogShipper
from computepool.node.outfit import Outfit, Wardrobe
from computepool.node.refusal import Refused
from computepool.node.rhythm import Rhythm
from computepool.node.runner import handle
from computepool.node.runner.request import AttemptRequest, InvalidAttempt
from computepool.node.runner.status import FINISHED, STOP_CAUSES, VANISHED, Status
from computepool.node.runner_end import wait_for_end
from computepool.node.sandbox.port import CHECKPOINT_NAME, NODE_NAME, InputFile
from computepool.node.spent_tokens import SpentTokens
from computepool.node.state_dir import StateDir
from computepool.node.threads import finish_in_thread
from computepool.node.tokens import NO_TOKEN, JobToken, TokenRefused
from computepool.wire.attempts import Assignment, CompleteOutcome, Completion, HostOrder, RunOrder

Tell = Callable[[Completion], Awaitable[CompleteOutcome]]

# How often a running attempt is looked at although nothing happened.
LOOK_SECONDS = 1.0
# After its grace a runner needs a moment to bring everything down.
LET_GO_SECONDS = 60.0


@dataclass(frozen=True)
class Surroundings:
    """What all attempts of one agent share."""

    hub: HubClient
    identity: Identity
    state: StateDir
    cache: InputCache
    spent: SpentTokens
    config: NodeConfig
    boot_id: UUID
    # The sandboxes that passed their self-test, and what else a job may be given.
    wardrobe: Wardrobe
    rhythm: Rhythm = field(default_factory=Rhythm)
    slots: Mapping[str, Slot] = field(default_factory=dict)
    # Absent: this node hosts no networks.
    hosting: HostProcesses | None = None


class HeldAttempt:
    def __init__(
        self,
        assignment: Assignment,
        around: Surroundings,
        *,
        tell: Tell,
        token: JobToken = NO_TOKEN,
        after: Sequence[asyncio.Event] = (),
        adopted: bool = False,
        let_go: bool = False,
        refusal: Ending | None = None,
    ) -> None:
        self.id = assignment.attempt_id
        self.slot = assignment.slot
        self.lease_seconds = assignment.lease_seconds
        # An attempt that was let go keeps its slot until its runner has ended, but the hub hears no more of it.
        self.is_let_go = let_go
        # The job is over, and its completion is on its way: the hub may give the slot away.
        self.is_over = False
        # The hub has answered the completion: only cleaning up is left.
        self.is_answered = False
        # Nothing is left, and the slot is really free.
        self.gone = asyncio.Event()
        self._assignment = assignment
        self._around = around
        self._tell = tell
        self._token = token
        self._after = after
        self._adopted = adopted
        self._refusal = refusal
        self._folder = AttemptFolder(around.state.attempts / str(self.id))
        self._shipper = LogShipper(
            around.hub, attempt_id=self.id, lease_secret=assignment.lease_secret, path=self._folder.log_path
        )
        self._checkpoints = CheckpointShipper(
            around.hub, attempt_id=self.id, lease_secret=assignment.lease_secret, run_path=self._folder.run_path
        )
        self._pinned: tuple[str, ...] = ()
        self._pinned_packages: str | None = None
        # What the job begins with of an earlier attempt's work: hashes by path.
        self._restored: dict[str, str] = {}
        self._stop_asked = asyncio.Event()
        self._stop_cause = Cause.CANCELLED
        self._hurry_cause: Cause | None = None
        self._hurry_grace = around.config.stop_grace_seconds
        self._hurried = asyncio.Event()
        self._is_leaving = False
        self._is_host = False
        # Set when a running attempt is worth a look before its time.
        self._nudge = asyncio.Event()

    def stop(self, cause: Cause) -> None:
        """The hub wants no more of it: end it and tell nobody."""
        if not self._stop_asked.is_set() and not self.is_answered:
            journal.info("attempt_stopped", attempt_id=self.id, cause=cause.value)
            self.is_let_go = True
            self._stop_cause = cause
            self._stop_asked.set()

    def hurry(self, cause: Cause, *, grace_seconds: float | None = None) -> None:
        """Ends the job early and reports it all the same. May be repeated; a shorter grace counts."""
        if self._hurry_cause is not None and (grace_seconds is None or grace_seconds >= self._hurry_grace):
            return
        self._hurry_cause = cause
        if grace_seconds is not None:
            self._hurry_grace = min(grace_seconds, self._hurry_grace)
        self._hurried.set()
        self._nudge.set()

    def leave(self) -> None:
        """The node takes no more work. A job may finish; a host has no end of its own, so it leaves now."""
        self._is_leaving = True
        if self._is_host:
            self.hurry(Cause.OWNER_RETURNED)

    async def keep(self) -> None:
        """Until nothing of it is left. If this is cancelled, the runner goes on for the next agent to adopt."""
        if self.is_let_go:
            await self._let_go()
            return
        delivering = asyncio.ensure_future(self._deliver())
        stopping = asyncio.ensure_future(self._stop_asked.wait())
        try:
            await asyncio.wait({delivering, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if delivering.done():
                await delivering
                return
            delivering.cancel()
            await asyncio.gather(delivering, return_exceptions=True)
            await self._let_go()
        finally:
            delivering.cancel()
            stopping.cancel()
            await asyncio.gather(delivering, stopping, return_exceptions=True)

    async def _deliver(self) -> None:
        try:
            if not self._adopted:
                await finish_in_thread(partial(self._folder.record_assignment, self._assignment))
            kept = await asyncio.to_thread(self._folder.find_completion)
            if kept is None:
                kept = await self._make_completion(await self._run_to_end())
                await finish_in_thread(partial(self._folder.record_completion, kept))
            await self._complete(kept)
        except (StaleBoot, NodeRemoved):
            raise
        except (StaleLease, NotFound) as error:
            journal.info("attempt_dropped", attempt_id=self.id, reason=error.message)
            await self._let_go()
        except Exception as error:
            # The top of one attempt's life: whatever broke here must not take the other attempts along.
            journal.error("attempt_broke", attempt_id=self.id, trace=error)
            await self._give_up(error)
        else:
            await self._forget()

    async def _run_to_end(self) -> Ending:
        if self._refusal is not None:
            return self._refusal
        if not self._adopted:
            try:
                order = self._verify()
                if isinstance(order.host, HostOrder):
                    return await self._host(order, order.host)
                await self._start_unless_hurried(order)
            except Refused as refusal:
                return refusal.ending
        shipping = [asyncio.ensure_future(each.run()) for each in (self._shipper, self._checkpoints)]
        try:
            status = await self._watch()
        finally:
            for each in shipping:
                each.cancel()
            await asyncio.gather(*shipping, return_exceptions=True)
        await self._shipper.finish()
        ending = completion.from_status(status)
        if ending.cause is not None:
            # A result makes it needless; everything else is paid, and goes on, from there.
            await self._checkpoints.finish()
        return ending

    async def _host(self, order: RunOrder, host: HostOrder) -> Ending:
        """A seat of a run: our own program, started for it and ended with it. Raises Refused."""
        hosting = self._around.hosting
        if hosting is None:
            raise Refused(Cause.SANDBOX_REFUSED, "this node hosts no networks; its owner starts it with --networks")
        await self._wait_for_slot()
        if self._is_leaving:
            raise Refused(Cause.OWNER_RETURNED, "the node is about to end")
        self._is_host = True
        await finish_in_thread(self._spend)
        journal.info("attempt_started", attempt_id=self.id, job_id=order.job_id, run_id=host.run_id, seat=host.seat)
        options = hosting.make_options(self._assignment, host, self._around.identity)
        ending = await hosting.run(options, hurried=self._nudge)
        if self._hurry_cause is not None:
            return Ending(ending.exit_code, self._hurry_cause, "the host left its run", ending.usage)
        return ending

    async def _wait_for_slot(self) -> None:
        for slot_is_free in self._after:
            # Two jobs never share a slot, not even while the first one's leftovers are swept away.
            await slot_is_free.wait()
        if self._hurry_cause is not None:
            raise Refused(self._hurry_cause, "the node ended before the job began")

    async def _start_unless_hurried(self, order: RunOrder) -> None:
        """Fetching may take hours, and an owner who comes back does not wait for it. Raises Refused."""
        starting = asyncio.ensure_future(self._start(order))
        hurrying = asyncio.ensure_future(self._hurried.wait())
        try:
            await asyncio.wait({starting, hurrying}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            hurrying.cancel()
            if not starting.done():
                starting.cancel()
            await asyncio.gather(starting, hurrying, return_exceptions=True)
        if not starting.cancelled():
            starting.result()
        elif not await asyncio.to_thread(self._has_runner):
            # One that began in the same moment is ended as any other.
            raise Refused(self._hurry_cause or Cause.OWNER_RETURNED, "the owner came back before the job began")

    async def _start(self, order: RunOrder) -> None:
        inputs = await self._fetch_inputs(order)
        # Before the job's clock starts: what it takes to get these is not for the submitter to pay.
        outfit = await self._around.wardrobe.prepare(order)
        await self._wait_for_slot()
        await finish_in_thread(partial(self._spawn, order, inputs, outfit))
        journal.info(
            "attempt_started", attempt_id=self.id, job_id=order.job_id, slice=order.slice_index, slot=self.slot
        )

    def _verify(self) -> RunOrder:
        """Everything that must hold before a byte is fetched. Raises Refused."""
        around = self._around
        try:
            self._token.check(self.id, self._assignment.order)
            order = msgspec.json.decode(self._assignment.order, type=RunOrder)
        except TokenRefused as error:
            raise Refused(Cause.SANDBOX_REFUSED, str(error)) from None
        except msgspec.DecodeError as error:
            raise Refused(Cause.SANDBOX_REFUSED, f"the order cannot be read: {error}") from None
        if order.attempt_id != self.id or order.slot != self.slot:
            raise Refused(Cause.SANDBOX_REFUSED, "the order speaks of another attempt or slot")
        if order.node_id is not msgspec.UNSET and order.node_id != self._token.node_id:
            raise Refused(Cause.SANDBOX_REFUSED, "the order is for another node")
        if order.host is msgspec.UNSET:
            around.wardrobe.check(order)
        if around.spent.is_spent(self.id):
            raise Refused(Cause.SANDBOX_REFUSED, "this attempt was started here before")
        for file in order.files:
            if not is_safe_relative_path(file.path) or not is_sha256(file.sha256):
                raise Refused(Cause.INPUT_MISSING, f"the input {file.path!r} has a path or hash that cannot be used")
        return order

    async def _fetch_inputs(self, order: RunOrder) -> tuple[InputFile, ...]:
        self._pin(order)
        inputs = []
        for file in order.files:
            source = await self._fetch(file.path, file.sha256, file.size_bytes)
            inputs.append(InputFile(path=file.path, source=str(source), executable=file.executable))
        if order.script is not None:
            await finish_in_thread(partial(self._folder.script_path.write_bytes, order.script.encode()))
            inputs = [each for each in inputs if each.path != SCRIPT_FILE_NAME]
            inputs.append(InputFile(path=SCRIPT_FILE_NAME, source=str(self._folder.script_path)))
        return (*inputs, *list_module(), *await self._fetch_checkpoint(order))

    async def _fetch_checkpoint(self, order: RunOrder) -> tuple[InputFile, ...]:
        """What an earlier attempt has saved, for the job to find in its folder and go on from."""
        if order.attempt_number <= 1:
            return ()
        ask = partial(self._around.hub.read_checkpoint, self.id, self._assignment.lease_secret)
        try:
            kept = await patience.until_answered(ask, what="checkpoint", attempt_id=self.id)
        except NotFound:
            # A hub from before there were any.
            return ()
        restored = []
        self._pin_more(file.sha256 for file in kept.files)
        for file in kept.files:
            if not is_safe_relative_path(file.path) or not is_sha256(file.sha256):
                raise Refused(Cause.INPUT_MISSING, f"the checkpoint's {file.path!r} has a path or hash of no use")
            source = await self._fetch(file.path, file.sha256, file.size_bytes)
            restored.append(InputFile(path=f"{NODE_NAME}/{CHECKPOINT_NAME}/{file.path}", source=str(source)))
            self._restored[file.path] = file.sha256
        if restored:
            journal.info("checkpoint_restored", attempt_id=self.id, files=len(restored), by=kept.attempt_number)
        return tuple(restored)

    async def _fetch(self, path: str, sha256: str, size_bytes: int) -> Path:
        """Its place in the cache, where only bytes with that hash are. Raises Refused."""
        download = partial(self._around.hub.open_input, self.id, self._assignment.lease_secret, sha256)
        fetch = partial(self._around.cache.fetch, sha256, size_bytes, download)
        try:
            return await patience.until_answered(fetch, what="input", attempt_id=self.id, sha256=sha256)
        except (WrongBytes, NotFound) as error:
            raise Refused(Cause.INPUT_MISSING, f"the input {path!r} could not be had: {error}") from None

    def _spawn(self, order: RunOrder, inputs: tuple[InputFile, ...], outfit: Outfit) -> None:
        try:
            request = AttemptRequest(
                attempt_id=str(self.id),
                command=order.command,
                env=make_env(order),
                inputs=inputs,
                limits=make_limits(order, self._around.slots.get(self.slot), pids_max=self._around.config.pids_max),
                isolation=order.isolation,
                backend=outfit.backend,
                image=outfit.image,
                devices=outfit.devices,
                environment=outfit.environment,
                egress=outfit.egress,
                slot=self.slot,
                lease_seconds=self._assignment.lease_seconds,
                checkpoint_seconds=find_checkpoint_seconds(order),
                secrets=tuple(find_secrets(order)),
                restored=self._restored,
                agent_alive_path=str(self._around.state.alive_path),
            )
        except InvalidAttempt as error:
            raise Refused(Cause.SANDBOX_REFUSED, str(error)) from None
        # The mark comes first: after a crash between the two lines the job never runs, which is the safe half.
        self._spend()
        handle.spawn(self._folder.run_path, request)

    def _spend(self) -> None:
        expires_at, now_seconds = self._token.expires_at, clock.unix_seconds()
        if not self._around.spent.spend(self.id, expires_at=expires_at, now_seconds=now_seconds):
            raise Refused(Cause.SANDBOX_REFUSED, "this attempt was started here before")

    async def _watch(self) -> Status:
        if self._adopted:
            self._pin_again()
        grace_asked = math.inf
        while True:
            status = await asyncio.to_thread(handle.read_status, self._folder.run_path)
            if status.state in (FINISHED, VANISHED):
                journal.info(
                    "attempt_ended",
                    attempt_id=self.id,
                    exit_code=status.exit_code,
                    cause=status.cause,
                    run_seconds=status.run_seconds,
                )
                return status
            if self._hurry_cause is not None and self._hurry_grace < grace_asked:
                grace_asked = self._hurry_grace
                await finish_in_thread(partial(self._request_stop, self._hurry_cause, grace_asked))
            await wait_for_end(status.runner_pid, or_event=self._nudge, seconds_max=LOOK_SECONDS)

    async def _make_completion(self, ending: Ending) -> Completion:
        if ending.cause is None:
            ending = await self._upload(ending)
        return self._to_completion(ending)

    async def _upload(self, ending: Ending) -> Ending:
        """The ending after all outputs have arrived; a failed one if the hub does not want them."""
        for sha256, (path, size_bytes) in {o.sha256: (o.path, o.size_bytes) for o in ending.outputs}.items():
            put = partial(
                self._around.hub.put_output,
                self.id,
                self._assignment.lease_secret,
                sha256=sha256,
                size_bytes=size_bytes,
                body=partial(read_blocks, self._folder.get_output_path(path)),
            )
            try:
                await patience.until_answered(put, what="output", attempt_id=self.id, sha256=sha256)
            except (Conflict, NotFound):
                raise
            except ComputePoolError as error:
                message = f"the hub refused the output {path!r}: {error.message}"
                return Ending(ending.exit_code, Cause.EXIT_CODE, message, ending.usage)
        return ending

    def _to_completion(self, ending: Ending) -> Completion:
        return completion.make_completion(ending, attempt_id=self.id, lease_secret=self._assignment.lease_secret)

    async def _complete(self, kept: Completion) -> None:
        self.is_over = True
        try:
            answer = await self._tell(kept)
        except (Conflict, NotFound):
            raise
        except ComputePoolError as error:
            # The hub understood it and will not have it; sending it again would change nothing.
            self.is_answered = True
            journal.error("completion_refused", attempt_id=self.id, code=error.code, reason=error.message)
            return
        self.is_answered = True
        journal.info("attempt_completed", attempt_id=self.id, accepted=answer.accepted, repeated=answer.repeated)

    async def _give_up(self, error: Exception) -> None:
        """Something broke on this machine (a full disk, most likely): end the job and say so, if it can be said."""
        ending = completion.refuse(Cause.SANDBOX_REFUSED, f"the agent failed: {type(error).__name__}: {error}")
        await self._end_runner(Cause.OWNER_RETURNED)
        with contextlib.suppress(StaleLease, NotFound):
            await self._complete(self._to_completion(ending))
        await self._forget()

    async def _let_go(self) -> None:
        self.is_let_go = True
        await finish_in_thread(self._folder.record_let_go)
        await self._end_runner(self._stop_cause)
        await self._forget()

    async def _end_runner(self, cause: Cause) -> None:
        if not await asyncio.to_thread(self._has_runner):
            return
        grace_asked = self._hurry_grace
        await finish_in_thread(partial(self._request_stop, cause, grace_asked))
        deadline = clock.seconds() + self._around.config.stop_grace_seconds + LET_GO_SECONDS
        while clock.seconds() < deadline:
            status = await asyncio.to_thread(handle.read_status, self._folder.run_path)
            if status.state in (FINISHED, VANISHED):
                return
            if self._hurry_grace < grace_asked:
                grace_asked = self._hurry_grace
                await finish_in_thread(partial(self._request_stop, cause, grace_asked))
            await wait_for_end(status.runner_pid, or_event=self._nudge, seconds_max=LOOK_SECONDS)
        journal.error("runner_does_not_end", attempt_id=self.id)

    def _has_runner(self) -> bool:
        return handle.read_status(self._folder.run_path).state not in (FINISHED, VANISHED)

    def _request_stop(self, cause: Cause, grace_seconds: float) -> None:
        # A runner knows fewer reasons than the hub; for a job that nobody waits for they are all one.
        known = cause.value if cause.value in STOP_CAUSES else Cause.CANCELLED.value
        handle.request_stop(self._folder.run_path, cause=known, grace_seconds=grace_seconds)

    async def _forget(self) -> None:
        self._around.cache.unpin(self._pinned)
        self._around.wardrobe.unpin(self._pinned_packages)
        self._pinned, self._pinned_packages = (), None
        try:
            await finish_in_thread(self._folder.remove)
        except (OSError, handle.RunnerAlive) as error:
            # The next start of the agent tries again; until then only some disk is lost.
            journal.error("attempt_not_cleaned", attempt_id=self.id, reason=error)

    def _pin(self, order: RunOrder) -> None:
        self._pinned = tuple(file.sha256 for file in order.files)
        self._around.cache.pin(self._pinned)
        self._pinned_packages = self._around.wardrobe.pin(order)

    def _pin_more(self, sha256s: Iterable[str]) -> None:
        more = tuple(sha256s)
        self._pinned += more
        self._around.cache.pin(more)

    def _pin_again(self) -> None:
        """An adopted runner may still be copying its inputs."""
        try:
            self._pin(msgspec.json.decode(self._assignment.order, type=RunOrder))
        except msgspec.DecodeError:
            return
