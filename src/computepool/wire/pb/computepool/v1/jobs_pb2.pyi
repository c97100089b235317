from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class NextRequest(_message.Message):
    __slots__ = ("boot_id", "free_slots", "running", "wait_seconds")
    BOOT_ID_FIELD_NUMBER: _ClassVar[int]
    FREE_SLOTS_FIELD_NUMBER: _ClassVar[int]
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    WAIT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    boot_id: str
    free_slots: _containers.RepeatedScalarFieldContainer[str]
    running: _containers.RepeatedScalarFieldContainer[str]
    wait_seconds: float
    def __init__(self, boot_id: _Optional[str] = ..., free_slots: _Optional[_Iterable[str]] = ..., running: _Optional[_Iterable[str]] = ..., wait_seconds: _Optional[float] = ...) -> None: ...

class NextResponse(_message.Message):
    __slots__ = ("assignments", "token", "controls", "poll_seconds")
    ASSIGNMENTS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    CONTROLS_FIELD_NUMBER: _ClassVar[int]
    POLL_SECONDS_FIELD_NUMBER: _ClassVar[int]
    assignments: _containers.RepeatedCompositeFieldContainer[Assignment]
    token: str
    controls: Controls
    poll_seconds: float
    def __init__(self, assignments: _Optional[_Iterable[_Union[Assignment, _Mapping]]] = ..., token: _Optional[str] = ..., controls: _Optional[_Union[Controls, _Mapping]] = ..., poll_seconds: _Optional[float] = ...) -> None: ...

class Assignment(_message.Message):
    __slots__ = ("attempt_id", "slot", "lease_secret", "lease_seconds", "order")
    ATTEMPT_ID_FIELD_NUMBER: _ClassVar[int]
    SLOT_FIELD_NUMBER: _ClassVar[int]
    LEASE_SECRET_FIELD_NUMBER: _ClassVar[int]
    LEASE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    ORDER_FIELD_NUMBER: _ClassVar[int]
    attempt_id: str
    slot: str
    lease_secret: str
    lease_seconds: float
    order: str
    def __init__(self, attempt_id: _Optional[str] = ..., slot: _Optional[str] = ..., lease_secret: _Optional[str] = ..., lease_seconds: _Optional[float] = ..., order: _Optional[str] = ...) -> None: ...

class Controls(_message.Message):
    __slots__ = ("stop", "drain", "pause", "prove")
    class StopEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    STOP_FIELD_NUMBER: _ClassVar[int]
    DRAIN_FIELD_NUMBER: _ClassVar[int]
    PAUSE_FIELD_NUMBER: _ClassVar[int]
    PROVE_FIELD_NUMBER: _ClassVar[int]
    stop: _containers.ScalarMap[str, str]
    drain: bool
    pause: bool
    prove: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, stop: _Optional[_Mapping[str, str]] = ..., drain: _Optional[bool] = ..., pause: _Optional[bool] = ..., prove: _Optional[_Iterable[str]] = ...) -> None: ...

class HeartbeatRequest(_message.Message):
    __slots__ = ("boot_id", "running")
    BOOT_ID_FIELD_NUMBER: _ClassVar[int]
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    boot_id: str
    running: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, boot_id: _Optional[str] = ..., running: _Optional[_Iterable[str]] = ...) -> None: ...

class HeartbeatResponse(_message.Message):
    __slots__ = ("beat_seconds", "lease_seconds", "controls")
    BEAT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    LEASE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    CONTROLS_FIELD_NUMBER: _ClassVar[int]
    beat_seconds: float
    lease_seconds: float
    controls: Controls
    def __init__(self, beat_seconds: _Optional[float] = ..., lease_seconds: _Optional[float] = ..., controls: _Optional[_Union[Controls, _Mapping]] = ...) -> None: ...

class Usage(_message.Message):
    __slots__ = ("run_seconds", "cpu_seconds", "memory_bytes_peak")
    RUN_SECONDS_FIELD_NUMBER: _ClassVar[int]
    CPU_SECONDS_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_PEAK_FIELD_NUMBER: _ClassVar[int]
    run_seconds: float
    cpu_seconds: float
    memory_bytes_peak: int
    def __init__(self, run_seconds: _Optional[float] = ..., cpu_seconds: _Optional[float] = ..., memory_bytes_peak: _Optional[int] = ...) -> None: ...

class OutputFile(_message.Message):
    __slots__ = ("path", "sha256", "size_bytes")
    PATH_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    path: str
    sha256: str
    size_bytes: int
    def __init__(self, path: _Optional[str] = ..., sha256: _Optional[str] = ..., size_bytes: _Optional[int] = ...) -> None: ...

class Completion(_message.Message):
    __slots__ = ("attempt_id", "lease_secret", "exit_code", "cause", "message", "usage", "outputs", "result_sha256")
    ATTEMPT_ID_FIELD_NUMBER: _ClassVar[int]
    LEASE_SECRET_FIELD_NUMBER: _ClassVar[int]
    EXIT_CODE_FIELD_NUMBER: _ClassVar[int]
    CAUSE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    RESULT_SHA256_FIELD_NUMBER: _ClassVar[int]
    attempt_id: str
    lease_secret: str
    exit_code: int
    cause: str
    message: str
    usage: Usage
    outputs: _containers.RepeatedCompositeFieldContainer[OutputFile]
    result_sha256: str
    def __init__(self, attempt_id: _Optional[str] = ..., lease_secret: _Optional[str] = ..., exit_code: _Optional[int] = ..., cause: _Optional[str] = ..., message: _Optional[str] = ..., usage: _Optional[_Union[Usage, _Mapping]] = ..., outputs: _Optional[_Iterable[_Union[OutputFile, _Mapping]]] = ..., result_sha256: _Optional[str] = ...) -> None: ...

class Claim(_message.Message):
    __slots__ = ("free_slots", "running")
    FREE_SLOTS_FIELD_NUMBER: _ClassVar[int]
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    free_slots: _containers.RepeatedScalarFieldContainer[str]
    running: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, free_slots: _Optional[_Iterable[str]] = ..., running: _Optional[_Iterable[str]] = ...) -> None: ...

class CompleteRequest(_message.Message):
    __slots__ = ("boot_id", "completion", "receipt", "claim")
    BOOT_ID_FIELD_NUMBER: _ClassVar[int]
    COMPLETION_FIELD_NUMBER: _ClassVar[int]
    RECEIPT_FIELD_NUMBER: _ClassVar[int]
    CLAIM_FIELD_NUMBER: _ClassVar[int]
    boot_id: str
    completion: Completion
    receipt: str
    claim: Claim
    def __init__(self, boot_id: _Optional[str] = ..., completion: _Optional[_Union[Completion, _Mapping]] = ..., receipt: _Optional[str] = ..., claim: _Optional[_Union[Claim, _Mapping]] = ...) -> None: ...

class CompleteResponse(_message.Message):
    __slots__ = ("accepted", "repeated", "next")
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    REPEATED_FIELD_NUMBER: _ClassVar[int]
    NEXT_FIELD_NUMBER: _ClassVar[int]
    accepted: bool
    repeated: bool
    next: NextResponse
    def __init__(self, accepted: _Optional[bool] = ..., repeated: _Optional[bool] = ..., next: _Optional[_Union[NextResponse, _Mapping]] = ...) -> None: ...

class CompleteBatchRequest(_message.Message):
    __slots__ = ("boot_id", "completions", "receipt", "claim")
    BOOT_ID_FIELD_NUMBER: _ClassVar[int]
    COMPLETIONS_FIELD_NUMBER: _ClassVar[int]
    RECEIPT_FIELD_NUMBER: _ClassVar[int]
    CLAIM_FIELD_NUMBER: _ClassVar[int]
    boot_id: str
    completions: _containers.RepeatedCompositeFieldContainer[Completion]
    receipt: str
    claim: Claim
    def __init__(self, boot_id: _Optional[str] = ..., completions: _Optional[_Iterable[_Union[Completion, _Mapping]]] = ..., receipt: _Optional[str] = ..., claim: _Optional[_Union[Claim, _Mapping]] = ...) -> None: ...

class CompleteOutcome(_message.Message):
    __slots__ = ("accepted", "repeated", "refusal")
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    REPEATED_FIELD_NUMBER: _ClassVar[int]
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    accepted: bool
    repeated: bool
    refusal: Refusal
    def __init__(self, accepted: _Optional[bool] = ..., repeated: _Optional[bool] = ..., refusal: _Optional[_Union[Refusal, _Mapping]] = ...) -> None: ...

class CompleteBatchResponse(_message.Message):
    __slots__ = ("outcomes", "next")
    OUTCOMES_FIELD_NUMBER: _ClassVar[int]
    NEXT_FIELD_NUMBER: _ClassVar[int]
    outcomes: _containers.RepeatedCompositeFieldContainer[CompleteOutcome]
    next: NextResponse
    def __init__(self, outcomes: _Optional[_Iterable[_Union[CompleteOutcome, _Mapping]]] = ..., next: _Optional[_Union[NextResponse, _Mapping]] = ...) -> None: ...

class Refusal(_message.Message):
    __slots__ = ("code", "message", "retryable", "details")
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    RETRYABLE_FIELD_NUMBER: _ClassVar[int]
    DETAILS_FIELD_NUMBER: _ClassVar[int]
    code: str
    message: str
    retryable: bool
    details: str
    def __init__(self, code: _Optional[str] = ..., message: _Optional[str] = ..., retryable: _Optional[bool] = ..., details: _Optional[str] = ...) -> None: ...
