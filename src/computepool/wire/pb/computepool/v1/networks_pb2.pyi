from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class FrameKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FRAME_KIND_UNSPECIFIED: _ClassVar[FrameKind]
    FRAME_KIND_ACTIVATION: _ClassVar[FrameKind]
    FRAME_KIND_GRADIENT: _ClassVar[FrameKind]
    FRAME_KIND_NORMS: _ClassVar[FrameKind]
    FRAME_KIND_TOTAL: _ClassVar[FrameKind]
    FRAME_KIND_REDUCE: _ClassVar[FrameKind]
    FRAME_KIND_REDUCED: _ClassVar[FrameKind]
    FRAME_KIND_INFERENCE: _ClassVar[FrameKind]
    FRAME_KIND_CREDIT: _ClassVar[FrameKind]
    FRAME_KIND_NACK: _ClassVar[FrameKind]
    FRAME_KIND_HELLO: _ClassVar[FrameKind]
    FRAME_KIND_PROBE: _ClassVar[FrameKind]
FRAME_KIND_UNSPECIFIED: FrameKind
FRAME_KIND_ACTIVATION: FrameKind
FRAME_KIND_GRADIENT: FrameKind
FRAME_KIND_NORMS: FrameKind
FRAME_KIND_TOTAL: FrameKind
FRAME_KIND_REDUCE: FrameKind
FRAME_KIND_REDUCED: FrameKind
FRAME_KIND_INFERENCE: FrameKind
FRAME_KIND_CREDIT: FrameKind
FRAME_KIND_NACK: FrameKind
FRAME_KIND_HELLO: FrameKind
FRAME_KIND_PROBE: FrameKind

class ApiVersion(_message.Message):
    __slots__ = ("major", "minor")
    MAJOR_FIELD_NUMBER: _ClassVar[int]
    MINOR_FIELD_NUMBER: _ClassVar[int]
    major: int
    minor: int
    def __init__(self, major: _Optional[int] = ..., minor: _Optional[int] = ...) -> None: ...

class CreateNetworkRequest(_message.Message):
    __slots__ = ("spec_json", "idempotency_key")
    SPEC_JSON_FIELD_NUMBER: _ClassVar[int]
    IDEMPOTENCY_KEY_FIELD_NUMBER: _ClassVar[int]
    spec_json: str
    idempotency_key: str
    def __init__(self, spec_json: _Optional[str] = ..., idempotency_key: _Optional[str] = ...) -> None: ...

class Network(_message.Message):
    __slots__ = ("id", "name", "spec_json", "parameter_count", "created_at_micros")
    ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    SPEC_JSON_FIELD_NUMBER: _ClassVar[int]
    PARAMETER_COUNT_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_MICROS_FIELD_NUMBER: _ClassVar[int]
    id: str
    name: str
    spec_json: str
    parameter_count: int
    created_at_micros: int
    def __init__(self, id: _Optional[str] = ..., name: _Optional[str] = ..., spec_json: _Optional[str] = ..., parameter_count: _Optional[int] = ..., created_at_micros: _Optional[int] = ...) -> None: ...

class GetNetworkRequest(_message.Message):
    __slots__ = ("id",)
    ID_FIELD_NUMBER: _ClassVar[int]
    id: str
    def __init__(self, id: _Optional[str] = ...) -> None: ...

class ListNetworksRequest(_message.Message):
    __slots__ = ("before_id", "limit")
    BEFORE_ID_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    before_id: str
    limit: int
    def __init__(self, before_id: _Optional[str] = ..., limit: _Optional[int] = ...) -> None: ...

class ListNetworksResponse(_message.Message):
    __slots__ = ("networks",)
    NETWORKS_FIELD_NUMBER: _ClassVar[int]
    networks: _containers.RepeatedCompositeFieldContainer[Network]
    def __init__(self, networks: _Optional[_Iterable[_Union[Network, _Mapping]]] = ...) -> None: ...

class DeleteNetworkRequest(_message.Message):
    __slots__ = ("id",)
    ID_FIELD_NUMBER: _ClassVar[int]
    id: str
    def __init__(self, id: _Optional[str] = ...) -> None: ...

class DeleteNetworkResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DataRef(_message.Message):
    __slots__ = ("uri", "sha256", "format", "size_bytes")
    URI_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    uri: str
    sha256: str
    format: str
    size_bytes: int
    def __init__(self, uri: _Optional[str] = ..., sha256: _Optional[str] = ..., format: _Optional[str] = ..., size_bytes: _Optional[int] = ...) -> None: ...

class TrainOptions(_message.Message):
    __slots__ = ("steps", "data", "ceiling_microcredits_per_hour", "hours_max", "seats", "node_ids", "serve")
    STEPS_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    CEILING_MICROCREDITS_PER_HOUR_FIELD_NUMBER: _ClassVar[int]
    HOURS_MAX_FIELD_NUMBER: _ClassVar[int]
    SEATS_FIELD_NUMBER: _ClassVar[int]
    NODE_IDS_FIELD_NUMBER: _ClassVar[int]
    SERVE_FIELD_NUMBER: _ClassVar[int]
    steps: int
    data: _containers.RepeatedCompositeFieldContainer[DataRef]
    ceiling_microcredits_per_hour: int
    hours_max: int
    seats: int
    node_ids: _containers.RepeatedScalarFieldContainer[str]
    serve: bool
    def __init__(self, steps: _Optional[int] = ..., data: _Optional[_Iterable[_Union[DataRef, _Mapping]]] = ..., ceiling_microcredits_per_hour: _Optional[int] = ..., hours_max: _Optional[int] = ..., seats: _Optional[int] = ..., node_ids: _Optional[_Iterable[str]] = ..., serve: _Optional[bool] = ...) -> None: ...

class PlanNetworkRequest(_message.Message):
    __slots__ = ("network_id", "options")
    NETWORK_ID_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    network_id: str
    options: TrainOptions
    def __init__(self, network_id: _Optional[str] = ..., options: _Optional[_Union[TrainOptions, _Mapping]] = ...) -> None: ...

class PlannedSeat(_message.Message):
    __slots__ = ("node_id", "node_name", "vnode_ids", "memory_bytes", "seconds_per_step", "relayed", "fetched_bytes")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    NODE_NAME_FIELD_NUMBER: _ClassVar[int]
    VNODE_IDS_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    SECONDS_PER_STEP_FIELD_NUMBER: _ClassVar[int]
    RELAYED_FIELD_NUMBER: _ClassVar[int]
    FETCHED_BYTES_FIELD_NUMBER: _ClassVar[int]
    node_id: str
    node_name: str
    vnode_ids: _containers.RepeatedScalarFieldContainer[str]
    memory_bytes: int
    seconds_per_step: float
    relayed: bool
    fetched_bytes: int
    def __init__(self, node_id: _Optional[str] = ..., node_name: _Optional[str] = ..., vnode_ids: _Optional[_Iterable[str]] = ..., memory_bytes: _Optional[int] = ..., seconds_per_step: _Optional[float] = ..., relayed: _Optional[bool] = ..., fetched_bytes: _Optional[int] = ...) -> None: ...

class PlannedEdge(_message.Message):
    __slots__ = ("source", "target", "bytes_per_step", "cut")
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    BYTES_PER_STEP_FIELD_NUMBER: _ClassVar[int]
    CUT_FIELD_NUMBER: _ClassVar[int]
    source: str
    target: str
    bytes_per_step: int
    cut: bool
    def __init__(self, source: _Optional[str] = ..., target: _Optional[str] = ..., bytes_per_step: _Optional[int] = ..., cut: _Optional[bool] = ...) -> None: ...

class Plan(_message.Message):
    __slots__ = ("seats", "edges", "samples_per_second", "samples_per_second_one_machine", "warnings", "microcredits_per_hour_max")
    SEATS_FIELD_NUMBER: _ClassVar[int]
    EDGES_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_PER_SECOND_ONE_MACHINE_FIELD_NUMBER: _ClassVar[int]
    WARNINGS_FIELD_NUMBER: _ClassVar[int]
    MICROCREDITS_PER_HOUR_MAX_FIELD_NUMBER: _ClassVar[int]
    seats: _containers.RepeatedCompositeFieldContainer[PlannedSeat]
    edges: _containers.RepeatedCompositeFieldContainer[PlannedEdge]
    samples_per_second: float
    samples_per_second_one_machine: float
    warnings: _containers.RepeatedScalarFieldContainer[str]
    microcredits_per_hour_max: int
    def __init__(self, seats: _Optional[_Iterable[_Union[PlannedSeat, _Mapping]]] = ..., edges: _Optional[_Iterable[_Union[PlannedEdge, _Mapping]]] = ..., samples_per_second: _Optional[float] = ..., samples_per_second_one_machine: _Optional[float] = ..., warnings: _Optional[_Iterable[str]] = ..., microcredits_per_hour_max: _Optional[int] = ...) -> None: ...

class StartTrainRequest(_message.Message):
    __slots__ = ("network_id", "options", "idempotency_key")
    NETWORK_ID_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    IDEMPOTENCY_KEY_FIELD_NUMBER: _ClassVar[int]
    network_id: str
    options: TrainOptions
    idempotency_key: str
    def __init__(self, network_id: _Optional[str] = ..., options: _Optional[_Union[TrainOptions, _Mapping]] = ..., idempotency_key: _Optional[str] = ...) -> None: ...

class StopTrainRequest(_message.Message):
    __slots__ = ("run_id",)
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    def __init__(self, run_id: _Optional[str] = ...) -> None: ...

class ResumeTrainRequest(_message.Message):
    __slots__ = ("run_id", "steps", "serve")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    SERVE_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    steps: int
    serve: bool
    def __init__(self, run_id: _Optional[str] = ..., steps: _Optional[int] = ..., serve: _Optional[bool] = ...) -> None: ...

class GetRunRequest(_message.Message):
    __slots__ = ("run_id",)
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    def __init__(self, run_id: _Optional[str] = ...) -> None: ...

class ListRunsRequest(_message.Message):
    __slots__ = ("network_id", "before_id", "limit")
    NETWORK_ID_FIELD_NUMBER: _ClassVar[int]
    BEFORE_ID_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    network_id: str
    before_id: str
    limit: int
    def __init__(self, network_id: _Optional[str] = ..., before_id: _Optional[str] = ..., limit: _Optional[int] = ...) -> None: ...

class ListRunsResponse(_message.Message):
    __slots__ = ("runs",)
    RUNS_FIELD_NUMBER: _ClassVar[int]
    runs: _containers.RepeatedCompositeFieldContainer[Run]
    def __init__(self, runs: _Optional[_Iterable[_Union[Run, _Mapping]]] = ...) -> None: ...

class Run(_message.Message):
    __slots__ = ("id", "network_id", "job_id", "state", "epoch", "step", "steps", "checkpoint_step", "message", "inexact_from_step", "placement", "audits")
    ID_FIELD_NUMBER: _ClassVar[int]
    NETWORK_ID_FIELD_NUMBER: _ClassVar[int]
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_STEP_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    INEXACT_FROM_STEP_FIELD_NUMBER: _ClassVar[int]
    PLACEMENT_FIELD_NUMBER: _ClassVar[int]
    AUDITS_FIELD_NUMBER: _ClassVar[int]
    id: str
    network_id: str
    job_id: str
    state: str
    epoch: int
    step: int
    steps: int
    checkpoint_step: int
    message: str
    inexact_from_step: int
    placement: _containers.RepeatedCompositeFieldContainer[Location]
    audits: AuditCounts
    def __init__(self, id: _Optional[str] = ..., network_id: _Optional[str] = ..., job_id: _Optional[str] = ..., state: _Optional[str] = ..., epoch: _Optional[int] = ..., step: _Optional[int] = ..., steps: _Optional[int] = ..., checkpoint_step: _Optional[int] = ..., message: _Optional[str] = ..., inexact_from_step: _Optional[int] = ..., placement: _Optional[_Iterable[_Union[Location, _Mapping]]] = ..., audits: _Optional[_Union[AuditCounts, _Mapping]] = ...) -> None: ...

class AuditCounts(_message.Message):
    __slots__ = ("agreed", "wrong", "undecided", "unverified")
    AGREED_FIELD_NUMBER: _ClassVar[int]
    WRONG_FIELD_NUMBER: _ClassVar[int]
    UNDECIDED_FIELD_NUMBER: _ClassVar[int]
    UNVERIFIED_FIELD_NUMBER: _ClassVar[int]
    agreed: int
    wrong: int
    undecided: int
    unverified: int
    def __init__(self, agreed: _Optional[int] = ..., wrong: _Optional[int] = ..., undecided: _Optional[int] = ..., unverified: _Optional[int] = ...) -> None: ...

class WatchTrainRequest(_message.Message):
    __slots__ = ("run_id", "after_event_id")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    AFTER_EVENT_ID_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    after_event_id: int
    def __init__(self, run_id: _Optional[str] = ..., after_event_id: _Optional[int] = ...) -> None: ...

class TrainEvent(_message.Message):
    __slots__ = ("id", "kind", "epoch", "step", "loss", "samples_per_second", "message", "at_micros", "placement")
    ID_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    LOSS_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    AT_MICROS_FIELD_NUMBER: _ClassVar[int]
    PLACEMENT_FIELD_NUMBER: _ClassVar[int]
    id: int
    kind: str
    epoch: int
    step: int
    loss: float
    samples_per_second: float
    message: str
    at_micros: int
    placement: _containers.RepeatedCompositeFieldContainer[Location]
    def __init__(self, id: _Optional[int] = ..., kind: _Optional[str] = ..., epoch: _Optional[int] = ..., step: _Optional[int] = ..., loss: _Optional[float] = ..., samples_per_second: _Optional[float] = ..., message: _Optional[str] = ..., at_micros: _Optional[int] = ..., placement: _Optional[_Iterable[_Union[Location, _Mapping]]] = ...) -> None: ...

class Tensor(_message.Message):
    __slots__ = ("dtype", "shape", "content")
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    dtype: str
    shape: _containers.RepeatedScalarFieldContainer[int]
    content: bytes
    def __init__(self, dtype: _Optional[str] = ..., shape: _Optional[_Iterable[int]] = ..., content: _Optional[bytes] = ...) -> None: ...

class InferRequest(_message.Message):
    __slots__ = ("network_id", "checkpoint_step", "run_id", "inputs")
    class InputsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: Tensor
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[Tensor, _Mapping]] = ...) -> None: ...
    NETWORK_ID_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_STEP_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    network_id: str
    checkpoint_step: int
    run_id: str
    inputs: _containers.MessageMap[str, Tensor]
    def __init__(self, network_id: _Optional[str] = ..., checkpoint_step: _Optional[int] = ..., run_id: _Optional[str] = ..., inputs: _Optional[_Mapping[str, Tensor]] = ...) -> None: ...

class InferResponse(_message.Message):
    __slots__ = ("output", "checkpoint_step")
    OUTPUT_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_STEP_FIELD_NUMBER: _ClassVar[int]
    output: Tensor
    checkpoint_step: int
    def __init__(self, output: _Optional[_Union[Tensor, _Mapping]] = ..., checkpoint_step: _Optional[int] = ...) -> None: ...

class ListCheckpointsRequest(_message.Message):
    __slots__ = ("run_id",)
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    def __init__(self, run_id: _Optional[str] = ...) -> None: ...

class CheckpointEntry(_message.Message):
    __slots__ = ("step", "complete", "audited", "size_bytes", "at_micros")
    STEP_FIELD_NUMBER: _ClassVar[int]
    COMPLETE_FIELD_NUMBER: _ClassVar[int]
    AUDITED_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    AT_MICROS_FIELD_NUMBER: _ClassVar[int]
    step: int
    complete: bool
    audited: bool
    size_bytes: int
    at_micros: int
    def __init__(self, step: _Optional[int] = ..., complete: _Optional[bool] = ..., audited: _Optional[bool] = ..., size_bytes: _Optional[int] = ..., at_micros: _Optional[int] = ...) -> None: ...

class ListCheckpointsResponse(_message.Message):
    __slots__ = ("checkpoints",)
    CHECKPOINTS_FIELD_NUMBER: _ClassVar[int]
    checkpoints: _containers.RepeatedCompositeFieldContainer[CheckpointEntry]
    def __init__(self, checkpoints: _Optional[_Iterable[_Union[CheckpointEntry, _Mapping]]] = ...) -> None: ...

class ExportStateRequest(_message.Message):
    __slots__ = ("run_id", "checkpoint_step")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_STEP_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    checkpoint_step: int
    def __init__(self, run_id: _Optional[str] = ..., checkpoint_step: _Optional[int] = ...) -> None: ...

class RegisterRequest(_message.Message):
    __slots__ = ("version", "node_id", "attempt_id", "lease_secret", "numeric_class", "address", "memory_bytes_free")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_ID_FIELD_NUMBER: _ClassVar[int]
    LEASE_SECRET_FIELD_NUMBER: _ClassVar[int]
    NUMERIC_CLASS_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FREE_FIELD_NUMBER: _ClassVar[int]
    version: ApiVersion
    node_id: str
    attempt_id: str
    lease_secret: str
    numeric_class: str
    address: str
    memory_bytes_free: int
    def __init__(self, version: _Optional[_Union[ApiVersion, _Mapping]] = ..., node_id: _Optional[str] = ..., attempt_id: _Optional[str] = ..., lease_secret: _Optional[str] = ..., numeric_class: _Optional[str] = ..., address: _Optional[str] = ..., memory_bytes_free: _Optional[int] = ...) -> None: ...

class RegisterResponse(_message.Message):
    __slots__ = ("version", "run_id", "seat", "beat_seconds", "relay_address", "reachable")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    SEAT_FIELD_NUMBER: _ClassVar[int]
    BEAT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    RELAY_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    REACHABLE_FIELD_NUMBER: _ClassVar[int]
    version: ApiVersion
    run_id: str
    seat: str
    beat_seconds: float
    relay_address: str
    reachable: bool
    def __init__(self, version: _Optional[_Union[ApiVersion, _Mapping]] = ..., run_id: _Optional[str] = ..., seat: _Optional[str] = ..., beat_seconds: _Optional[float] = ..., relay_address: _Optional[str] = ..., reachable: _Optional[bool] = ...) -> None: ...

class LeaveRequest(_message.Message):
    __slots__ = ("attempt_id", "lease_secret", "reason")
    ATTEMPT_ID_FIELD_NUMBER: _ClassVar[int]
    LEASE_SECRET_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    attempt_id: str
    lease_secret: str
    reason: str
    def __init__(self, attempt_id: _Optional[str] = ..., lease_secret: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class LeaveResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class HostMessage(_message.Message):
    __slots__ = ("hello", "beat", "prepared", "event", "peer_lost", "checkpoint", "fault", "digest", "opened", "answer", "audit_log", "audit_result")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    BEAT_FIELD_NUMBER: _ClassVar[int]
    PREPARED_FIELD_NUMBER: _ClassVar[int]
    EVENT_FIELD_NUMBER: _ClassVar[int]
    PEER_LOST_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    FAULT_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    OPENED_FIELD_NUMBER: _ClassVar[int]
    ANSWER_FIELD_NUMBER: _ClassVar[int]
    AUDIT_LOG_FIELD_NUMBER: _ClassVar[int]
    AUDIT_RESULT_FIELD_NUMBER: _ClassVar[int]
    hello: Hello
    beat: HostBeat
    prepared: Prepared
    event: HostEvent
    peer_lost: PeerLost
    checkpoint: CheckpointStored
    fault: HostFault
    digest: AuditDigest
    opened: CheckpointOpened
    answer: InferAnswer
    audit_log: AuditLog
    audit_result: AuditResult
    def __init__(self, hello: _Optional[_Union[Hello, _Mapping]] = ..., beat: _Optional[_Union[HostBeat, _Mapping]] = ..., prepared: _Optional[_Union[Prepared, _Mapping]] = ..., event: _Optional[_Union[HostEvent, _Mapping]] = ..., peer_lost: _Optional[_Union[PeerLost, _Mapping]] = ..., checkpoint: _Optional[_Union[CheckpointStored, _Mapping]] = ..., fault: _Optional[_Union[HostFault, _Mapping]] = ..., digest: _Optional[_Union[AuditDigest, _Mapping]] = ..., opened: _Optional[_Union[CheckpointOpened, _Mapping]] = ..., answer: _Optional[_Union[InferAnswer, _Mapping]] = ..., audit_log: _Optional[_Union[AuditLog, _Mapping]] = ..., audit_result: _Optional[_Union[AuditResult, _Mapping]] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("attempt_id", "lease_secret", "address")
    ATTEMPT_ID_FIELD_NUMBER: _ClassVar[int]
    LEASE_SECRET_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    attempt_id: str
    lease_secret: str
    address: str
    def __init__(self, attempt_id: _Optional[str] = ..., lease_secret: _Optional[str] = ..., address: _Optional[str] = ...) -> None: ...

class HostBeat(_message.Message):
    __slots__ = ("sequence", "epoch", "watermark", "step", "micro_batch", "memory_bytes", "answering")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    WATERMARK_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    MICRO_BATCH_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    ANSWERING_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    epoch: int
    watermark: int
    step: int
    micro_batch: int
    memory_bytes: int
    answering: int
    def __init__(self, sequence: _Optional[int] = ..., epoch: _Optional[int] = ..., watermark: _Optional[int] = ..., step: _Optional[int] = ..., micro_batch: _Optional[int] = ..., memory_bytes: _Optional[int] = ..., answering: _Optional[int] = ...) -> None: ...

class Prepared(_message.Message):
    __slots__ = ("epoch", "vnode_ids")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    VNODE_IDS_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    vnode_ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, epoch: _Optional[int] = ..., vnode_ids: _Optional[_Iterable[str]] = ...) -> None: ...

class HostEvent(_message.Message):
    __slots__ = ("epoch", "step", "loss_bits", "samples_per_second")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    LOSS_BITS_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    step: int
    loss_bits: int
    samples_per_second: float
    def __init__(self, epoch: _Optional[int] = ..., step: _Optional[int] = ..., loss_bits: _Optional[int] = ..., samples_per_second: _Optional[float] = ...) -> None: ...

class PeerLost(_message.Message):
    __slots__ = ("epoch", "seat", "reason")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    SEAT_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    seat: str
    reason: str
    def __init__(self, epoch: _Optional[int] = ..., seat: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class CheckpointStored(_message.Message):
    __slots__ = ("epoch", "step", "vnode_id", "sha256", "size_bytes", "digest")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    VNODE_ID_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    step: int
    vnode_id: str
    sha256: str
    size_bytes: int
    digest: bytes
    def __init__(self, epoch: _Optional[int] = ..., step: _Optional[int] = ..., vnode_id: _Optional[str] = ..., sha256: _Optional[str] = ..., size_bytes: _Optional[int] = ..., digest: _Optional[bytes] = ...) -> None: ...

class HostFault(_message.Message):
    __slots__ = ("epoch", "vnode_id", "code", "message")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    VNODE_ID_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    vnode_id: str
    code: str
    message: str
    def __init__(self, epoch: _Optional[int] = ..., vnode_id: _Optional[str] = ..., code: _Optional[str] = ..., message: _Optional[str] = ...) -> None: ...

class CheckpointOpened(_message.Message):
    __slots__ = ("epoch", "checkpoint_step", "code", "message")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_STEP_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    checkpoint_step: int
    code: str
    message: str
    def __init__(self, epoch: _Optional[int] = ..., checkpoint_step: _Optional[int] = ..., code: _Optional[str] = ..., message: _Optional[str] = ...) -> None: ...

class InferAnswer(_message.Message):
    __slots__ = ("epoch", "number", "output", "code", "message", "vnode_id")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    VNODE_ID_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    number: int
    output: Tensor
    code: str
    message: str
    vnode_id: str
    def __init__(self, epoch: _Optional[int] = ..., number: _Optional[int] = ..., output: _Optional[_Union[Tensor, _Mapping]] = ..., code: _Optional[str] = ..., message: _Optional[str] = ..., vnode_id: _Optional[str] = ...) -> None: ...

class AuditDigest(_message.Message):
    __slots__ = ("epoch", "vnode_id", "from_step", "until_step", "digest", "peers", "losses")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    VNODE_ID_FIELD_NUMBER: _ClassVar[int]
    FROM_STEP_FIELD_NUMBER: _ClassVar[int]
    UNTIL_STEP_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    PEERS_FIELD_NUMBER: _ClassVar[int]
    LOSSES_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    vnode_id: str
    from_step: int
    until_step: int
    digest: bytes
    peers: _containers.RepeatedCompositeFieldContainer[PeerDigest]
    losses: bytes
    def __init__(self, epoch: _Optional[int] = ..., vnode_id: _Optional[str] = ..., from_step: _Optional[int] = ..., until_step: _Optional[int] = ..., digest: _Optional[bytes] = ..., peers: _Optional[_Iterable[_Union[PeerDigest, _Mapping]]] = ..., losses: _Optional[bytes] = ...) -> None: ...

class PeerDigest(_message.Message):
    __slots__ = ("seat", "sent", "received")
    SEAT_FIELD_NUMBER: _ClassVar[int]
    SENT_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_FIELD_NUMBER: _ClassVar[int]
    seat: str
    sent: bytes
    received: bytes
    def __init__(self, seat: _Optional[str] = ..., sent: _Optional[bytes] = ..., received: _Optional[bytes] = ...) -> None: ...

class AuditLog(_message.Message):
    __slots__ = ("audit_id", "sha256", "size_bytes", "message")
    AUDIT_ID_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    audit_id: str
    sha256: str
    size_bytes: int
    message: str
    def __init__(self, audit_id: _Optional[str] = ..., sha256: _Optional[str] = ..., size_bytes: _Optional[int] = ..., message: _Optional[str] = ...) -> None: ...

class AuditResult(_message.Message):
    __slots__ = ("audit_id", "peers", "losses", "states", "deviation", "message")
    AUDIT_ID_FIELD_NUMBER: _ClassVar[int]
    PEERS_FIELD_NUMBER: _ClassVar[int]
    LOSSES_FIELD_NUMBER: _ClassVar[int]
    STATES_FIELD_NUMBER: _ClassVar[int]
    DEVIATION_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    audit_id: str
    peers: _containers.RepeatedCompositeFieldContainer[PeerDigest]
    losses: bytes
    states: _containers.RepeatedCompositeFieldContainer[VNodeState]
    deviation: float
    message: str
    def __init__(self, audit_id: _Optional[str] = ..., peers: _Optional[_Iterable[_Union[PeerDigest, _Mapping]]] = ..., losses: _Optional[bytes] = ..., states: _Optional[_Iterable[_Union[VNodeState, _Mapping]]] = ..., deviation: _Optional[float] = ..., message: _Optional[str] = ...) -> None: ...

class VNodeState(_message.Message):
    __slots__ = ("vnode_id", "digest", "stored")
    VNODE_ID_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    STORED_FIELD_NUMBER: _ClassVar[int]
    vnode_id: str
    digest: bytes
    stored: bytes
    def __init__(self, vnode_id: _Optional[str] = ..., digest: _Optional[bytes] = ..., stored: _Optional[bytes] = ...) -> None: ...

class HubMessage(_message.Message):
    __slots__ = ("prepare", "run", "drain", "drop", "probe", "infer", "audit", "open_checkpoint")
    PREPARE_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    DRAIN_FIELD_NUMBER: _ClassVar[int]
    DROP_FIELD_NUMBER: _ClassVar[int]
    PROBE_FIELD_NUMBER: _ClassVar[int]
    INFER_FIELD_NUMBER: _ClassVar[int]
    AUDIT_FIELD_NUMBER: _ClassVar[int]
    OPEN_CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    prepare: Prepare
    run: RunOrder
    drain: Drain
    drop: Drop
    probe: Probe
    infer: InferOrder
    audit: AuditOrder
    open_checkpoint: OpenCheckpoint
    def __init__(self, prepare: _Optional[_Union[Prepare, _Mapping]] = ..., run: _Optional[_Union[RunOrder, _Mapping]] = ..., drain: _Optional[_Union[Drain, _Mapping]] = ..., drop: _Optional[_Union[Drop, _Mapping]] = ..., probe: _Optional[_Union[Probe, _Mapping]] = ..., infer: _Optional[_Union[InferOrder, _Mapping]] = ..., audit: _Optional[_Union[AuditOrder, _Mapping]] = ..., open_checkpoint: _Optional[_Union[OpenCheckpoint, _Mapping]] = ...) -> None: ...

class Location(_message.Message):
    __slots__ = ("vnode_id", "replica", "seat", "node_id", "incarnation", "address")
    VNODE_ID_FIELD_NUMBER: _ClassVar[int]
    REPLICA_FIELD_NUMBER: _ClassVar[int]
    SEAT_FIELD_NUMBER: _ClassVar[int]
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    vnode_id: str
    replica: int
    seat: str
    node_id: str
    incarnation: int
    address: str
    def __init__(self, vnode_id: _Optional[str] = ..., replica: _Optional[int] = ..., seat: _Optional[str] = ..., node_id: _Optional[str] = ..., incarnation: _Optional[int] = ..., address: _Optional[str] = ...) -> None: ...

class VNodeCheckpoint(_message.Message):
    __slots__ = ("vnode_id", "sha256", "size_bytes")
    VNODE_ID_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    vnode_id: str
    sha256: str
    size_bytes: int
    def __init__(self, vnode_id: _Optional[str] = ..., sha256: _Optional[str] = ..., size_bytes: _Optional[int] = ...) -> None: ...

class Prepare(_message.Message):
    __slots__ = ("epoch", "spec_json", "placement", "checkpoint_step", "checkpoints", "data", "mode", "seat_token", "seat_token_seconds", "relay_address")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    SPEC_JSON_FIELD_NUMBER: _ClassVar[int]
    PLACEMENT_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_STEP_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINTS_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    SEAT_TOKEN_FIELD_NUMBER: _ClassVar[int]
    SEAT_TOKEN_SECONDS_FIELD_NUMBER: _ClassVar[int]
    RELAY_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    spec_json: str
    placement: _containers.RepeatedCompositeFieldContainer[Location]
    checkpoint_step: int
    checkpoints: _containers.RepeatedCompositeFieldContainer[VNodeCheckpoint]
    data: _containers.RepeatedCompositeFieldContainer[DataRef]
    mode: str
    seat_token: str
    seat_token_seconds: float
    relay_address: str
    def __init__(self, epoch: _Optional[int] = ..., spec_json: _Optional[str] = ..., placement: _Optional[_Iterable[_Union[Location, _Mapping]]] = ..., checkpoint_step: _Optional[int] = ..., checkpoints: _Optional[_Iterable[_Union[VNodeCheckpoint, _Mapping]]] = ..., data: _Optional[_Iterable[_Union[DataRef, _Mapping]]] = ..., mode: _Optional[str] = ..., seat_token: _Optional[str] = ..., seat_token_seconds: _Optional[float] = ..., relay_address: _Optional[str] = ...) -> None: ...

class RunOrder(_message.Message):
    __slots__ = ("epoch", "from_step", "until_step")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    FROM_STEP_FIELD_NUMBER: _ClassVar[int]
    UNTIL_STEP_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    from_step: int
    until_step: int
    def __init__(self, epoch: _Optional[int] = ..., from_step: _Optional[int] = ..., until_step: _Optional[int] = ...) -> None: ...

class Drain(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...

class Drop(_message.Message):
    __slots__ = ("epoch",)
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    def __init__(self, epoch: _Optional[int] = ...) -> None: ...

class Probe(_message.Message):
    __slots__ = ("nonce",)
    NONCE_FIELD_NUMBER: _ClassVar[int]
    nonce: int
    def __init__(self, nonce: _Optional[int] = ...) -> None: ...

class OpenCheckpoint(_message.Message):
    __slots__ = ("epoch", "checkpoint_step", "checkpoints", "kept_steps")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_STEP_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINTS_FIELD_NUMBER: _ClassVar[int]
    KEPT_STEPS_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    checkpoint_step: int
    checkpoints: _containers.RepeatedCompositeFieldContainer[VNodeCheckpoint]
    kept_steps: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, epoch: _Optional[int] = ..., checkpoint_step: _Optional[int] = ..., checkpoints: _Optional[_Iterable[_Union[VNodeCheckpoint, _Mapping]]] = ..., kept_steps: _Optional[_Iterable[int]] = ...) -> None: ...

class InferOrder(_message.Message):
    __slots__ = ("request_id", "checkpoint_step", "epoch", "number", "replica", "inputs")
    class InputsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: Tensor
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[Tensor, _Mapping]] = ...) -> None: ...
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_STEP_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    REPLICA_FIELD_NUMBER: _ClassVar[int]
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    checkpoint_step: int
    epoch: int
    number: int
    replica: int
    inputs: _containers.MessageMap[str, Tensor]
    def __init__(self, request_id: _Optional[str] = ..., checkpoint_step: _Optional[int] = ..., epoch: _Optional[int] = ..., number: _Optional[int] = ..., replica: _Optional[int] = ..., inputs: _Optional[_Mapping[str, Tensor]] = ...) -> None: ...

class AuditOrder(_message.Message):
    __slots__ = ("vnode_id", "from_step", "until_step", "audit_id", "epoch", "seat", "replay")
    VNODE_ID_FIELD_NUMBER: _ClassVar[int]
    FROM_STEP_FIELD_NUMBER: _ClassVar[int]
    UNTIL_STEP_FIELD_NUMBER: _ClassVar[int]
    AUDIT_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    SEAT_FIELD_NUMBER: _ClassVar[int]
    REPLAY_FIELD_NUMBER: _ClassVar[int]
    vnode_id: str
    from_step: int
    until_step: int
    audit_id: str
    epoch: int
    seat: str
    replay: AuditReplay
    def __init__(self, vnode_id: _Optional[str] = ..., from_step: _Optional[int] = ..., until_step: _Optional[int] = ..., audit_id: _Optional[str] = ..., epoch: _Optional[int] = ..., seat: _Optional[str] = ..., replay: _Optional[_Union[AuditReplay, _Mapping]] = ...) -> None: ...

class AuditReplay(_message.Message):
    __slots__ = ("spec_json", "placement", "checkpoints", "stored", "data", "logs", "tolerant")
    class LogsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    SPEC_JSON_FIELD_NUMBER: _ClassVar[int]
    PLACEMENT_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINTS_FIELD_NUMBER: _ClassVar[int]
    STORED_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    LOGS_FIELD_NUMBER: _ClassVar[int]
    TOLERANT_FIELD_NUMBER: _ClassVar[int]
    spec_json: str
    placement: _containers.RepeatedCompositeFieldContainer[Location]
    checkpoints: _containers.RepeatedCompositeFieldContainer[VNodeCheckpoint]
    stored: _containers.RepeatedCompositeFieldContainer[VNodeCheckpoint]
    data: _containers.RepeatedCompositeFieldContainer[DataRef]
    logs: _containers.ScalarMap[str, str]
    tolerant: bool
    def __init__(self, spec_json: _Optional[str] = ..., placement: _Optional[_Iterable[_Union[Location, _Mapping]]] = ..., checkpoints: _Optional[_Iterable[_Union[VNodeCheckpoint, _Mapping]]] = ..., stored: _Optional[_Iterable[_Union[VNodeCheckpoint, _Mapping]]] = ..., data: _Optional[_Iterable[_Union[DataRef, _Mapping]]] = ..., logs: _Optional[_Mapping[str, str]] = ..., tolerant: _Optional[bool] = ...) -> None: ...

class ResolveRequest(_message.Message):
    __slots__ = ("run_id", "known_epoch")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    KNOWN_EPOCH_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    known_epoch: int
    def __init__(self, run_id: _Optional[str] = ..., known_epoch: _Optional[int] = ...) -> None: ...

class ResolveResponse(_message.Message):
    __slots__ = ("epoch", "placement", "owner_address", "seat_token", "seat_token_seconds", "relay_address", "hub_keys_signed")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    PLACEMENT_FIELD_NUMBER: _ClassVar[int]
    OWNER_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    SEAT_TOKEN_FIELD_NUMBER: _ClassVar[int]
    SEAT_TOKEN_SECONDS_FIELD_NUMBER: _ClassVar[int]
    RELAY_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    HUB_KEYS_SIGNED_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    placement: _containers.RepeatedCompositeFieldContainer[Location]
    owner_address: str
    seat_token: str
    seat_token_seconds: float
    relay_address: str
    hub_keys_signed: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, epoch: _Optional[int] = ..., placement: _Optional[_Iterable[_Union[Location, _Mapping]]] = ..., owner_address: _Optional[str] = ..., seat_token: _Optional[str] = ..., seat_token_seconds: _Optional[float] = ..., relay_address: _Optional[str] = ..., hub_keys_signed: _Optional[_Iterable[str]] = ...) -> None: ...

class ReportPeerRequest(_message.Message):
    __slots__ = ("run_id", "epoch", "seat", "reason")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    SEAT_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    epoch: int
    seat: str
    reason: str
    def __init__(self, run_id: _Optional[str] = ..., epoch: _Optional[int] = ..., seat: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class ReportPeerResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Frame(_message.Message):
    __slots__ = ("run_id", "epoch", "source_seat", "target_seat", "kind", "source", "source_slot", "target", "target_slot", "replica", "incarnation", "step", "micro_batch", "dtype", "shape", "offset", "total_bytes", "crc", "content", "token", "credits", "of", "code", "message", "version")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    SOURCE_SEAT_FIELD_NUMBER: _ClassVar[int]
    TARGET_SEAT_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    SOURCE_SLOT_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    TARGET_SLOT_FIELD_NUMBER: _ClassVar[int]
    REPLICA_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    MICRO_BATCH_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    TOTAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    CRC_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    CREDITS_FIELD_NUMBER: _ClassVar[int]
    OF_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    epoch: int
    source_seat: str
    target_seat: str
    kind: FrameKind
    source: str
    source_slot: int
    target: str
    target_slot: int
    replica: int
    incarnation: int
    step: int
    micro_batch: int
    dtype: str
    shape: _containers.RepeatedScalarFieldContainer[int]
    offset: int
    total_bytes: int
    crc: int
    content: bytes
    token: str
    credits: int
    of: FrameKind
    code: str
    message: str
    version: ApiVersion
    def __init__(self, run_id: _Optional[str] = ..., epoch: _Optional[int] = ..., source_seat: _Optional[str] = ..., target_seat: _Optional[str] = ..., kind: _Optional[_Union[FrameKind, str]] = ..., source: _Optional[str] = ..., source_slot: _Optional[int] = ..., target: _Optional[str] = ..., target_slot: _Optional[int] = ..., replica: _Optional[int] = ..., incarnation: _Optional[int] = ..., step: _Optional[int] = ..., micro_batch: _Optional[int] = ..., dtype: _Optional[str] = ..., shape: _Optional[_Iterable[int]] = ..., offset: _Optional[int] = ..., total_bytes: _Optional[int] = ..., crc: _Optional[int] = ..., content: _Optional[bytes] = ..., token: _Optional[str] = ..., credits: _Optional[int] = ..., of: _Optional[_Union[FrameKind, str]] = ..., code: _Optional[str] = ..., message: _Optional[str] = ..., version: _Optional[_Union[ApiVersion, _Mapping]] = ...) -> None: ...

class BlobPiece(_message.Message):
    __slots__ = ("sha256", "offset", "content", "run_id")
    SHA256_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    sha256: str
    offset: int
    content: bytes
    run_id: str
    def __init__(self, sha256: _Optional[str] = ..., offset: _Optional[int] = ..., content: _Optional[bytes] = ..., run_id: _Optional[str] = ...) -> None: ...

class BlobEntry(_message.Message):
    __slots__ = ("sha256", "size_bytes")
    SHA256_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    sha256: str
    size_bytes: int
    def __init__(self, sha256: _Optional[str] = ..., size_bytes: _Optional[int] = ...) -> None: ...

class GetBlobRequest(_message.Message):
    __slots__ = ("sha256", "offset", "length", "run_id")
    SHA256_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    sha256: str
    offset: int
    length: int
    run_id: str
    def __init__(self, sha256: _Optional[str] = ..., offset: _Optional[int] = ..., length: _Optional[int] = ..., run_id: _Optional[str] = ...) -> None: ...
