"""The agent's life: start, adopt what an earlier agent left, work, drain, end. Everything is put together here.

Refuses to take work without a sandbox that passed its self-test, and to share its folder with another agent.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Mapping
from enum import IntEnum
from pathlib import Path
from uuid import UUID

import computepool
from computepool import clock, entropy
from computepool.core.errors import ComputePoolError, NewNodesLimited, NodeRemoved, StaleBoot, Unauthenticated
from computepool.core.ids import NodeId
from computepool.core.jobs.cause import Cause
from computepool.core.jobs.isolation import IsolationLevel
from computepool.core.nodes.slots import GpuCard, Machine, cut_into_slots
from computepool.core.placement.slot import Slot
from computepool.node import journal, patience
from computepool.node.adoption import list_left_behind
from computepool.node.attempts import Surroundings
from computepool.node.claim_loop import ClaimLoop
from computepool.node.comfort.graphics import PowerLimit, limit_power, restore_power
from computepool.node.comfort.readers import get_reader
from computepool.node.comfort.rules import InvalidRules, Rules
from computepool.node.comfort.watch import Sources, Watch, read_rules
from computepool.node.config import NodeConfig, find_state_dir
from computepool.node.hardware.cpu import UnreadableMachine
from computepool.node.hardware.detect import Detected, Lending, detect
from computepool.node.hardware.port import Sight
from computepool.node.hardware.profiles import UnknownProfile, get_profile_path
from computepool.node.heartbeat import Heartbeat
from computepool.node.holdings import Holdings
from computepool.node.hosting import CannotHost, HostProcesses, prepare_hosting
from computepool.node.hub_client import HubClient
from computepool.node.identity import Identity, WrongHub
from computepool.node.input_cache import InputCache
from computepool.node.local_status import LocalStatus, RunningHere, make_times, run_status
from computepool.node.measurements import declare, find_measurements
from computepool.node.outfit import Wardrobe, split_list
from computepool.node.packages import PackageCache
from computepool.node.proving import Prover, prove_slots
from computepool.node.rhythm import Rhythm
from computepool.node.self_check import check_disk, find_doubt
from computepool.node.spent_tokens import SpentTokens
from computepool.node.state_dir import StateDir, StateDirInUse
from computepool.node.walls import NoSandbox, Walls, find_walls
from computepool.wire.nodes import EnrolNode

# How long the start waits for the hub's rhythm before it goes on without.
GREETING_SECONDS = 5.0
# After the drain's time is over: for the stopped jobs' completions to arrive.
LAST_WORDS_SECONDS = 30.0


class ExitCode(IntEnum):
    DONE = 0
    FAILED = 1
    SETTINGS = 2  # the settings cannot be used
    NO_SANDBOX = 3  # this machine cannot lock a job in
    IN_USE = 4  # another agent works in the same state directory
    REPLACED = 5  # a newer start of this agent is running
    REMOVED = 6  # the owner removed this node
    REFUSED = 7  # the hub will not have this node, or it is another hub


class CannotStart(Exception):
    def __init__(self, code: ExitCode, message: str) -> None:
        super().__init__(message)
        self.code = code


async def run_agent(config: NodeConfig, *, env: Mapping[str, str] | None = None) -> int:
    """Runs until drained, told to end by a signal, or refused by the hub. Returns the process's exit code."""
    agent = Agent(config, env if env is not None else os.environ)
    living = asyncio.ensure_future(agent.run())
    loop = asyncio.get_running_loop()
    signals = (signal.SIGTERM, signal.SIGINT)
    for number in signals:
        loop.add_signal_handler(number, _end_on_signal, agent, living)
    try:
        return await living
    except asyncio.CancelledError:
        return ExitCode.DONE
    finally:
        for number in signals:
            loop.remove_signal_handler(number)


def _end_on_signal(agent: Agent, living: asyncio.Future[int]) -> None:
    """The first signal drains; the second, or one before the work began, ends the agent at once."""
    if not agent.leave():
        journal.info("ending_now")
        living.cancel()


class Agent:
    def __init__(self, config: NodeConfig, env: Mapping[str, str]) -> None:
        self._config = config
        self._env = env
        self._rhythm = Rhythm()
        self._boot_id = entropy.new_id()
        self._leaving = asyncio.Event()
        self._holdings: Holdings | None = None

    def leave(self) -> bool:
        """Begins to drain. False when that is not possible: there is nothing yet, or it was said before."""
        if self._holdings is None or self._leaving.is_set():
            return False
        journal.info("draining", attempts=len(self._holdings.running), seconds_max=self._config.drain_seconds)
        self._leaving.set()
        self._holdings.leave()
        return True

    async def run(self) -> int:
        try:
            state = StateDir(find_state_dir(self._config, self._env))
            state.lock()
        except (StateDirInUse, OSError) as error:
            journal.error("cannot_start", reason=error)
            return ExitCode.IN_USE if isinstance(error, StateDirInUse) else ExitCode.SETTINGS
        journal.keep_file(state.debug_log_path)
        # From the first moment on: runners of an earlier agent are waiting for a sign of life.
        touching = asyncio.ensure_future(self._rhythm.run_touches(state))
        hub = HubClient(self._config.hub_url, agent_version=computepool.__version__, ca_file=self._config.hub_ca_file)
        try:
            return await self._run_with(state, hub)
        except CannotStart as error:
            journal.error("cannot_start", reason=error)
            return error.code
        except StaleBoot:
            journal.error("replaced", reason="A newer start of this agent is running, so this one ends.")
            return ExitCode.REPLACED
        except NodeRemoved as error:
            journal.error("node_removed", reason=error.message, state_dir=state.root)
            return ExitCode.REMOVED
        except WrongHub as error:
            journal.error("wrong_hub", reason=error)
            return ExitCode.REFUSED
        finally:
            touching.cancel()
            await asyncio.gather(touching, return_exceptions=True)
            await hub.close()
            journal.drop_file()
            state.unlock()

    async def _run_with(self, state: StateDir, hub: HubClient) -> int:
        rules = self._read_rules(state)
        walls = await self._find_walls(state)
        isolation = walls.level
        detected = await asyncio.to_thread(self._detect, state, rules)
        if self._config.measure and not detected.synthetic:
            detected = declare(detected, await find_measurements(state, detected))
        identity = await asyncio.to_thread(Identity, state)
        hosting = await self._prepare_hosting(state, detected, isolation)
        wardrobe = self._fill_wardrobe(state, walls, detected)
        await self._enrol(hub, identity, detected, isolation, hosting, wardrobe.list_allows())
        hub.sign_in_as(identity, allows=wardrobe.list_allows())
        around = Surroundings(
            hub=hub,
            identity=identity,
            state=state,
            cache=InputCache(state.inputs, bytes_max=self._config.cache_bytes_max),
            spent=SpentTokens(state.spent_path, now_seconds=clock.unix_seconds()),
            config=self._config,
            boot_id=self._boot_id,
            wardrobe=wardrobe,
            rhythm=self._rhythm,
            slots=make_slots(identity.node_id, detected, isolation),
            hosting=hosting,
        )
        holdings = Holdings(around)
        holdings.shows_speed = self._config.measure and not detected.synthetic
        for left in await asyncio.to_thread(list_left_behind, state):
            holdings.adopt(left)
        self._holdings = holdings
        journal.info(
            "agent_started",
            node_id=identity.node_id,
            hub_url=self._config.hub_url,
            boot_id=self._boot_id,
            slots=",".join(around.slots),
            isolation=isolation.value,
            synthetic=detected.synthetic,
            adopted=len(holdings.running),
            state_dir=state.root,
        )
        watch = Watch(self._list_sources(state), holdings, drain=self.leave)
        await watch.begin()
        # From here on and whatever else waits: adopted jobs run already.
        watching = asyncio.ensure_future(watch.run())
        limits: list[PowerLimit] = []
        try:
            # A proof takes seconds of every card: not while the owner is there. The next start tries again.
            if holdings.shows_speed and not holdings.running and watch.verdict.lends:
                await prove_slots(hub, detected)
            limits = await asyncio.to_thread(self._limit_power, rules)
            await self._work(hub, identity, holdings, state, Prover(hub, detected, holdings))
        except NodeRemoved:
            holdings.stop_all(Cause.CANCELLED)
            await holdings.wait_until_empty(self._config.stop_grace_seconds + LAST_WORDS_SECONDS)
            raise
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
            await holdings.abandon()
            await asyncio.to_thread(restore_power, Sight(), limits)
        journal.info("agent_ended", node_id=identity.node_id)
        return ExitCode.DONE

    async def _work(
        self, hub: HubClient, identity: Identity, holdings: Holdings, state: StateDir, prover: Prover
    ) -> None:
        """Returns when the node is drained, or when the time for draining is over."""
        greeting = asyncio.ensure_future(self._greet(hub, identity))
        await asyncio.wait({greeting}, timeout=GREETING_SECONDS)
        claim_loop = ClaimLoop(
            hub,
            holdings,
            self._rhythm,
            self._config,
            boot_id=self._boot_id,
            find_doubt=lambda: find_doubt([check_disk(state.root)]),
        )
        heartbeat = Heartbeat(hub, holdings, self._rhythm, boot_id=self._boot_id)
        claiming = asyncio.ensure_future(claim_loop.run())
        beating = asyncio.ensure_future(heartbeat.run())
        leaving = asyncio.ensure_future(self._see_off(holdings))
        telling = asyncio.ensure_future(
            run_status(state.status_path, lambda: self._describe(hub, identity, holdings, claim_loop, state))
        )
        proving = asyncio.ensure_future(prover.run())
        started = (greeting, claiming, beating, leaving, telling, proving)
        open_ends: set[asyncio.Future[None]] = set(started)
        try:
            while claiming in open_ends and leaving in open_ends:
                ended, open_ends = await asyncio.wait(open_ends, return_when=asyncio.FIRST_COMPLETED)
                for each in ended:
                    each.result()
        finally:
            for each in started:
                each.cancel()
            await asyncio.gather(*started, return_exceptions=True)

    def _describe(
        self, hub: HubClient, identity: Identity, holdings: Holdings, claim_loop: ClaimLoop, state: StateDir
    ) -> LocalStatus:
        return LocalStatus(
            pid=os.getpid(),
            node_id=identity.node_id,
            name=self._config.name or socket.gethostname(),
            hub_url=self._config.hub_url,
            version=computepool.__version__,
            owner_words=holdings.owner_words or "",
            paused_here=holdings.is_paused_here,
            paused_at_hub=holdings.is_paused,
            draining=holdings.is_leaving or holdings.is_draining,
            doubt=claim_loop.doubt or "",
            running=[RunningHere(id, slot) for id, slot in holdings.list_occupied()],
            free_slots=list(holdings.free_slots),
            rules_path=str(self._find_rules_path(state)),
            log_path=str(state.debug_log_path),
            **make_times(hub.heard_at),
        )

    async def _greet(self, hub: HubClient, identity: Identity) -> None:
        """Learns the hub's rhythm, and makes sure that it is the hub that this node belongs to."""
        view = await patience.until_answered(hub.get_hub, what="greeting")
        identity.check_hub(view.hub_id)
        self._rhythm.hear(beat_seconds=view.beat_seconds, lease_seconds=view.lease_seconds)

    async def _see_off(self, holdings: Holdings) -> None:
        """Gives running jobs their time after a signal, then ends them and waits for their last words."""
        await self._leaving.wait()
        await asyncio.sleep(self._config.drain_seconds)
        journal.info("drain_time_is_over", attempts=len(holdings.running))
        holdings.hurry_all(Cause.OWNER_RETURNED)
        await holdings.wait_until_empty(self._config.stop_grace_seconds + LAST_WORDS_SECONDS)

    def _find_rules_path(self, state: StateDir) -> Path:
        return Path(self._config.comfort_file).expanduser() if self._config.comfort_file else state.comfort_path

    def _read_rules(self, state: StateDir) -> Rules:
        try:
            return read_rules(self._find_rules_path(state))
        except InvalidRules as error:
            raise CannotStart(ExitCode.SETTINGS, f"{self._find_rules_path(state)}: {error}") from None

    def _list_sources(self, state: StateDir) -> Sources:
        return Sources(
            reader=get_reader(self._config.seat, self._env),
            rules_path=self._find_rules_path(state),
            wish_path=state.wish_path,
        )

    def _limit_power(self, rules: Rules) -> list[PowerLimit]:
        if not rules.gpu_watts_max:
            return []
        changed, troubles = limit_power(Sight(), rules.gpu_watts_max)
        for trouble in troubles:
            journal.warning("power_not_limited", reason=trouble)
        return changed

    async def _find_walls(self, state: StateDir) -> Walls:
        try:
            return await asyncio.to_thread(find_walls, state.self_test, split_list(self._config.sandboxes))
        except NoSandbox as error:
            raise CannotStart(ExitCode.NO_SANDBOX, str(error)) from None

    def _fill_wardrobe(self, state: StateDir, walls: Walls, detected: Detected) -> Wardrobe:
        config = self._config
        return Wardrobe(
            walls,
            PackageCache(state.packages, index_url=config.packages_index, bytes_max=config.packages_bytes_max),
            images_allowed=split_list(config.images_allowed),
            egress_allowed=split_list(config.egress_allowed),
            has_devices=not detected.synthetic,
        )

    def _detect(self, state: StateDir, rules: Rules) -> Detected:
        config = self._config
        lending = Lending(
            cpu_slots=config.cpu_slots,
            cores_max=config.cores_max,
            ram_bytes_max=config.ram_bytes_max,
            disk_bytes_max=config.disk_bytes_max,
            cpu_percent_max=rules.cpu_percent_max,
        )
        try:
            profile: Path | None = get_profile_path(config.profile) if config.profile else None
            detected = detect(profile, disk_of=state.root, lending=lending)
        except (UnknownProfile, UnreadableMachine, OSError) as error:
            raise CannotStart(ExitCode.SETTINGS, str(error)) from None
        for remark in detected.remarks:
            journal.info("hardware_remark", remark=remark)
        if not detected.hardware.gpus and not detected.hardware.cpu_slots:
            raise CannotStart(
                ExitCode.SETTINGS, "There is nothing to lend: no GPU was found and no CPU slot is allowed."
            )
        return detected

    async def _prepare_hosting(
        self, state: StateDir, detected: Detected, isolation: IsolationLevel
    ) -> HostProcesses | None:
        if not self._config.networks:
            return None
        # Whose slots they are does not matter to what they can hold.
        slots = make_slots(self._boot_id, detected, isolation)
        try:
            return await prepare_hosting(self._config, slots.values(), data_folder=state.network_data)
        except CannotHost as error:
            raise CannotStart(ExitCode.SETTINGS, str(error)) from None

    async def _enrol(
        self,
        hub: HubClient,
        identity: Identity,
        detected: Detected,
        isolation: IsolationLevel,
        hosting: HostProcesses | None,
        allows: tuple[str, ...],
    ) -> None:
        request = EnrolNode(
            name=(self._config.name or socket.gethostname())[:100],
            public_key=identity.public_key_text,
            hardware=detected.hardware,
            isolation=isolation,
            region=self._config.region or detected.region,
            synthetic=detected.synthetic,
            agent_version=computepool.__version__,
            floor_microcredits_per_hour=self._config.floor_microcredits_per_hour,
            hosting=hosting.offer if hosting is not None else None,
            allows=allows,
        )
        if identity.has_declared(request) and not await self._has_strange_keys(hub, identity):
            return
        if not self._config.owner_key:
            if not identity.is_enrolled:
                raise CannotStart(
                    ExitCode.SETTINGS,
                    "This node is not enrolled yet. Set COMPUTEPOOL_NODE_OWNER_KEY to its owner's API key once.",
                )
            journal.warning(
                "declaration_is_old",
                message="This machine has changed since it enrolled. Start it once with the owner's key to say so.",
            )
            return
        try:
            answer = await patience.until_answered(
                lambda: hub.enrol(request, owner_key=self._config.owner_key),
                what="enrolment",
                give_up_on=(Unauthenticated, NewNodesLimited),
            )
        except ComputePoolError as error:
            raise CannotStart(ExitCode.REFUSED, f"The hub does not take this node: {error.message}") from None
        await asyncio.to_thread(identity.record_enrolment, self._config.hub_url, request, answer)
        journal.info("enrolled", node_id=answer.node_id, hub_id=answer.hub_id)

    async def _has_strange_keys(self, hub: HubClient, identity: Identity) -> bool:
        """Whether the hub replaced all its keys while this node was away; only its owner can vouch for it then."""
        if not self._config.owner_key:
            return False
        try:
            async with asyncio.timeout(GREETING_SECONDS):
                view = await hub.get_hub()
        except (TimeoutError, ComputePoolError):
            return False
        identity.check_hub(view.hub_id)
        return not identity.knows_one_of(view.hub_keys)


def make_slots(node_id: UUID, detected: Detected, isolation: IsolationLevel) -> dict[str, Slot]:
    """Cut by the same rule as on the hub, so that both count alike."""
    hardware = detected.hardware
    machine = Machine(
        gpus=[GpuCard(gpu.name, gpu.vram_bytes) for gpu in hardware.gpus],
        cores=hardware.cores,
        ram_bytes=hardware.ram_bytes,
        disk_bytes=hardware.disk_bytes,
        cpu_slots=hardware.cpu_slots,
        region=None,
        isolation=isolation,
    )
    return {str(slot.name): slot for slot in cut_into_slots(NodeId(node_id), machine)}
