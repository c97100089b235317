"""Networks on the open grid: create, plan and train them at a hub, over gRPC, as whoever is signed in."""

from __future__ import annotations

import hashlib
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc

from computepool import entropy
from computepool.core.errors import HubUnavailable, InvalidRequest, NotFound, Unauthenticated
from computepool.core.networks.run import OVER, RunState
from computepool.core.networks.spec import NetworkSpec
from computepool.core.networks.spec_json import from_json, to_json
from computepool.networks.network import Network
from computepool.networks.remote_inference import ANSWER_SECONDS, RemoteInference
from computepool.networks.run import Run, TrainEvent
from computepool.sdk import Client, resolve_settings
from computepool.wire.pb.computepool.v1 import networks_pb2 as pb
from computepool.wire.pb.computepool.v1 import networks_pb2_grpc as stubs
from computepool.wire.rpc import API_VERSION, AUTHORIZATION, CHANNEL_OPTIONS, VERSION, from_error_metadata

if TYPE_CHECKING:
    from torch import Tensor

    from computepool.node.vnodes.data import Dataset

CALL_SECONDS = 30.0
# The hub may have to fetch the data first.
START_SECONDS = 660.0
EXPORT_SECONDS = 3_600.0
# A hub that goes away while somebody watches is asked again.
WATCH_TRIES = 20
WATCH_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class TrainOptions:
    # 0: as many as the hub finds best.
    seats: int = 0
    hours_max: int = 1
    # The most that an hour of one seat may cost; None: what the hub takes.
    ceiling_microcredits_per_hour: int | None = None
    node_ids: Sequence[str] = ()
    # Stay when all steps are made, and answer until it is stopped or its hours are over.
    serve: bool = False


class HubGrid:
    """The grid behind a hub. Hub and key are those given, else of the environment, else as signed in."""

    def __init__(self, hub_url: str | None = None, key: str | None = None) -> None:
        settings = resolve_settings(hub_url=hub_url, key=key)
        if settings.key is None:
            raise Unauthenticated(
                f"You are not signed in at {settings.hub_url}. Run: computepool sign-in --hub-url {settings.hub_url}"
            )
        self._client = Client(settings.hub_url, settings.key)
        hub = self._client.get_hub()
        if not hub.rpc_address:
            raise InvalidRequest(
                f"The hub at {settings.hub_url} trains no networks: its setting rpc_port is 0. Ask its operator, or "
                "train on this machine: computepool net train --local 3."
            )
        self._metadata = (
            (AUTHORIZATION, f"Bearer {settings.key}"),
            (VERSION, f"{API_VERSION[0]}.{API_VERSION[1]}"),
        )
        self._credentials = grpc.ssl_channel_credentials() if hub.rpc_tls else None
        self._address = hub.rpc_address
        # By address: other hubs are called when they own what is asked for.
        self._channels: dict[str, Any] = {}
        self._stub = self.find_stub(hub.rpc_address)

    def __enter__(self) -> HubGrid:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        for channel in self._channels.values():
            channel.close()
        self._channels = {}

    def find_stub(self, address: str = "") -> Any:
        """Of the hub at this address; without one, of the hub that is signed in at."""
        address = address or self._address
        if address not in self._channels:
            self._channels[address] = (
                grpc.secure_channel(address, self._credentials, options=CHANNEL_OPTIONS)
                if self._credentials
                else grpc.insecure_channel(address, options=CHANNEL_OPTIONS)
            )
        return stubs.NetworkServiceStub(self._channels[address])

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        return self._metadata

    # Networks

    def create(self, network: Network | NetworkSpec) -> str:
        """Stores the network at the hub; its id."""
        spec = network.spec if isinstance(network, Network) else network
        request = pb.CreateNetworkRequest(spec_json=to_json(spec), idempotency_key=str(entropy.new_id()))
        return str(self.call("CreateNetwork", request).id)

    def get(self, network_id: str) -> Network:
        return Network(from_json(self.call("GetNetwork", pb.GetNetworkRequest(id=network_id)).spec_json))

    def list_networks(self, limit: int = 50) -> list[tuple[str, str]]:
        """Ids and names, the newest first."""
        found = self.call("ListNetworks", pb.ListNetworksRequest(limit=limit)).networks
        return [(each.id, each.name) for each in found]

    def plan(self, network_id: str, options: TrainOptions | None = None, *, steps: int = 1) -> pb.Plan:
        """Where its VNodes would go now, and how fast that would be. Nothing is started or paid."""
        request = pb.PlanNetworkRequest(network_id=network_id, options=_to_options(options, steps))
        plan: pb.Plan = self.call("PlanNetwork", request)
        return plan

    # Runs

    def start(
        self, network: Network | NetworkSpec | str, data: Dataset, steps: int, options: TrainOptions | None = None
    ) -> HubRun:
        """A network, or the id of one that was created. The data goes to the hub first."""
        if isinstance(network, Network) and network.state is not None:
            raise InvalidRequest("A run starts from the seed: make the network without keep_weights.")
        network_id = network if isinstance(network, str) else self.create(network)
        request = pb.StartTrainRequest(
            network_id=network_id,
            options=_to_options(options, steps, [self._upload(data)]),
            idempotency_key=str(entropy.new_id()),
        )
        return HubRun(self, self.call("StartTrain", request, seconds=START_SECONDS).id)

    def get_run(self, run_id: str) -> HubRun:
        run = HubRun(self, run_id)
        run.look()
        return run

    def call(self, name: str, request: Any, *, seconds: float = CALL_SECONDS) -> Any:
        try:
            return getattr(self._stub, name)(request, metadata=self._metadata, timeout=seconds, wait_for_ready=True)
        except grpc.RpcError as error:
            raise from_error_metadata(error.trailing_metadata(), error.details() or "") from None

    def stream(self, name: str, request: Any, *, seconds: float | None = None) -> Iterator[Any]:
        try:
            yield from getattr(self._stub, name)(request, metadata=self._metadata, timeout=seconds)
        except grpc.RpcError as error:
            raise from_error_metadata(error.trailing_metadata(), error.details() or "") from None

    def _upload(self, data: Dataset) -> pb.DataRef:
        with tempfile.TemporaryDirectory(prefix="computepool-data-") as folder:
            path = Path(folder) / "data.safetensors"
            path.write_bytes(data.to_bytes())
            stored = self._client.upload(path=path)
        return pb.DataRef(sha256=stored.sha256, format="safetensors", size_bytes=stored.size_bytes)


class HubRun(Run):
    def __init__(self, grid: HubGrid, run_id: str) -> None:
        self.id = run_id
        self._grid = grid
        self._inference: RemoteInference | None = None

    def look(self) -> pb.Run:
        """As it is now: state, epoch, step, placement, message."""
        run: pb.Run = self._grid.call("GetRun", pb.GetRunRequest(run_id=self.id))
        return run

    @property
    def state(self) -> RunState:
        return RunState(self.look().state)

    def watch(self, after: int = 0) -> Iterator[TrainEvent]:
        tries = WATCH_TRIES
        while True:
            request = pb.WatchTrainRequest(run_id=self.id, after_event_id=after)
            try:
                for event in self._grid.stream("WatchTrain", request):
                    after, tries = event.id, WATCH_TRIES
                    yield _to_event(event)
                if self.state in OVER:
                    return
            except HubUnavailable:
                if tries <= 1:
                    raise
            # The hub went away; another takes the run over, or this one comes back.
            tries -= 1
            time.sleep(WATCH_SECONDS)

    def list_events(self) -> list[TrainEvent]:
        return list(self.watch())

    def stop(self) -> None:
        self._grid.call("StopTrain", pb.StopTrainRequest(run_id=self.id))

    def resume(self, steps: int | None = None, *, serve: bool = False) -> None:
        """With `serve` it answers once all steps are made, and there need be none left to make."""
        self._grid.call("ResumeTrain", pb.ResumeTrainRequest(run_id=self.id, steps=steps or 0, serve=serve))

    def infer(self, *inputs: Tensor, **named: Tensor) -> Tensor:
        """At the run's PNodes, beside the training. Raises NoLiveRun when it is over."""
        asking = self.inference
        return asking.ask(asking.name_inputs(inputs, named), checkpoint_step=0, seconds=ANSWER_SECONDS)

    def infer_stream(
        self, batches: Iterable[Mapping[str, Tensor]], *, checkpoint_step: int = 0, seconds: float = ANSWER_SECONDS
    ) -> Iterator[Tensor]:
        """One answer for each batch (inputs by the names of sources), in order, all at one checkpoint: the one that
        is named, or the newest complete one at the beginning. `seconds`: how long to wait for the next answer."""
        return self.inference.stream(batches, checkpoint_step=checkpoint_step, seconds=seconds)

    @property
    def inference(self) -> RemoteInference:
        if self._inference is None:
            spec = self._grid.get(self.look().network_id).spec
            self._inference = RemoteInference(self._grid.find_stub, self._grid.metadata, self.id, spec)
        return self._inference

    def state_dict(self) -> dict[str, Tensor]:
        from computepool.node.vnodes.checkpoints import read_weights

        blobs: dict[str, bytearray] = {}
        request = pb.ExportStateRequest(run_id=self.id)
        for piece in self._grid.stream("ExportState", request, seconds=EXPORT_SECONDS):
            if piece.offset == 0:
                # Two VNodes may hold the same.
                blobs[piece.sha256] = bytearray()
            blobs[piece.sha256] += piece.content
        if not blobs:
            raise NotFound("The run has stored no checkpoint yet. Wait for the first one: computepool net watch.")
        found: dict[str, Tensor] = {}
        for sha256, content in blobs.items():
            if hashlib.sha256(content).hexdigest() != sha256:
                raise HubUnavailable("The weights were damaged on their way. Ask for them again.")
            found |= read_weights(bytes(content), "")
        return found


def _to_options(options: TrainOptions | None, steps: int, data: Sequence[pb.DataRef] = ()) -> pb.TrainOptions:
    options = options or TrainOptions()
    return pb.TrainOptions(
        steps=steps,
        data=data,
        ceiling_microcredits_per_hour=options.ceiling_microcredits_per_hour or 0,
        hours_max=options.hours_max,
        seats=options.seats,
        node_ids=options.node_ids,
        serve=options.serve,
    )


def _to_event(event: pb.TrainEvent) -> TrainEvent:
    return TrainEvent(
        id=event.id,
        kind=event.kind,
        epoch=event.epoch,
        step=event.step,
        loss=event.loss if event.kind == "step" else None,
        samples_per_second=event.samples_per_second,
        message=event.message,
        at=event.at_micros / 1e6,
    )
