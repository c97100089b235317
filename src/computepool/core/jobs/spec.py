"""What a submitter asks for, and the rules that a request must keep before anything is stored."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import pairwise

from computepool.core.jobs.isolation import IsolationLevel
from computepool.core.jobs.order import PriorityClass
from computepool.core.ledger.charging import PriceMode
from computepool.core.market.offers import DEFAULT_KIND
from computepool.core.placement.price import PRICE_MICROCREDITS_MAX, SlicePrice
from computepool.core.placement.weights import Preference
from computepool.core.trust.comparators.kinds import Comparator, ComparatorKind
from computepool.core.trust.validation import Verify

SLICES_MAX = 100_000
SCRIPT_BYTES_MAX = 1_000_000
FILES_MAX = 1_000
ENV_COUNT_MAX = 128
ENV_BYTES_MAX = 32_768
COMMAND_BYTES_MAX = 65_536
NAME_LENGTH_MAX = 200
PATH_BYTES_MAX = 1_024
PATH_PART_BYTES_MAX = 255
RETRIES_MAX = 20
WALL_SECONDS_MAX = 14 * 86_400
PRIORITY_RANGE = range(-10, 11)
PACKAGES_MAX = 100
PACKAGE_LENGTH_MAX = 200
EGRESS_MAX = 32
SECRETS_MAX = 16
SECRET_BYTES_MAX = 4_096
# A shorter one could not be removed from a log without tearing it.
SECRET_BYTES_MIN = 8
CHECKPOINT_SECONDS = 300
CHECKPOINT_SECONDS_MAX = 86_400

# The node places the inline script under this name in the job's folder.
SCRIPT_FILE_NAME = "main.py"
# What a job leaves here comes back; inputs have no place in it.
OUTPUT_FOLDER_NAME = "out"
# Where a command that compares two results of a slice finds them.
COMPARED_FOLDER_NAMES = ("one", "other")
# What the node itself puts into a job's folder: the checkpoint, and the module for scripts.
NODE_FOLDER_NAME = ".computepool"

_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}\Z")
_SHA256 = re.compile(r"[0-9a-f]{64}\Z")
_REGION = re.compile(r"[A-Z]{2}\Z")
_IMAGE = re.compile(r"[a-z0-9][a-z0-9._/:-]{0,254}@sha256:[0-9a-f]{64}\Z")
_TARGET = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]{0,252}:[0-9]{1,5}\Z")
# A name, extras and versions. No addresses, no paths, no options: what is installed comes from the node's own index.
_PACKAGE = re.compile(
    r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?(?:\[[A-Za-z0-9._,-]+\])?"
    r"(?:(?:===?|~=|!=|<=?|>=?)[A-Za-z0-9.*+!_-]+(?:,(?:===?|~=|!=|<=?|>=?)[A-Za-z0-9.*+!_-]+)*)?\Z"
)
_TIER = re.compile(r"[a-z0-9][a-z0-9-]{0,31}\Z")


@dataclass(frozen=True, slots=True)
class Requirements:
    """Hard gates: a slot that misses one of them never gets the slice. Zero or empty means "any"."""

    gpu: bool = False
    vram_bytes: int = 0
    cores: int = 1
    ram_bytes: int = 512_000_000
    disk_bytes: int = 1_000_000_000
    tiers: tuple[str, ...] = ()
    regions: tuple[str, ...] = ()
    isolation: IsolationLevel = IsolationLevel.SANDBOXED
    # The most that an hour of a slot may cost; None: any price.
    ceiling_microcredits_per_hour: int | None = None
    # What the job is, and how long its slices may run: owners choose by them. 0: not known.
    job_kind: str = DEFAULT_KIND
    slice_seconds: int = 0
    # In place of a ceiling, where each slice has a fixed price.
    slice_price: SlicePrice | None = None
    # What owners must allow, in the words of wants.py.
    wants: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class JobPrice:
    """How a job pays: by the second, or a fixed price for every slice that is delivered."""

    mode: PriceMode = PriceMode.PER_SECOND
    # For one slice, before tier and region of the slot that takes it; None: the rate card's for this kind of job.
    microcredits_per_slice: int | None = None
    # The most that one may cost, tier and region included; None: as on the dearest slot that the job may get.
    ceiling_microcredits_per_slice: int | None = None


BY_THE_SECOND = JobPrice()


@dataclass(frozen=True, slots=True)
class InputFile:
    path: str
    sha256: str
    size_bytes: int
    executable: bool = False


@dataclass(frozen=True, slots=True)
class JobSpec:
    name: str
    command: tuple[str, ...]
    script: str | None = None
    files: tuple[InputFile, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    requirements: Requirements = Requirements()
    slice_count: int = 1
    retries: int = 2
    wall_seconds: int = 3_600
    priority: int = 0
    expires_at: datetime | None = None
    priority_class: PriorityClass = PriorityClass.NORMAL
    prefer: Preference = Preference.VALUE
    deadline_at: datetime | None = None
    # name@sha256:digest; None: what the node itself has.
    image: str | None = None
    # Python packages, as pip names them: numpy==2.1.0
    packages: tuple[str, ...] = ()
    # host:port that the job wants to reach; the node's owner must allow each.
    egress: tuple[str, ...] = ()
    price: JobPrice = BY_THE_SECOND
    # How often what lies in the checkpoint folder leaves the machine.
    checkpoint_seconds: int = CHECKPOINT_SECONDS
    # More environment, that nobody but the job may read.
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    # How results are checked, and when two of them are the same; None: nobody can tell, so nothing is checked.
    verify: Verify = Verify.AUDIT
    comparator: Comparator | None = None

    @property
    def checked_by(self) -> Verify | None:
        """How results are checked, if they are."""
        return None if self.comparator is None or self.verify is Verify.NONE else self.verify


def list_faults(
    spec: JobSpec, *, now: datetime, secrets_isolation: IsolationLevel = IsolationLevel.CONTAINER
) -> list[str]:
    """Everything that is wrong, at once, each with what would be right. `secrets_isolation` is the hub's own rule."""
    return [
        *_size_faults(spec),
        *_command_faults(spec),
        *_env_faults(spec.env),
        *_secret_faults(spec, secrets_isolation),
        *list_file_faults(spec.files, has_script=spec.script is not None),
        *_requirement_faults(spec.requirements),
        *_image_faults(spec),
        *_package_faults(spec.packages),
        *_egress_faults(spec),
        *_price_faults(spec),
        *_verify_faults(spec),
        *_time_faults(spec, now),
    ]


def find_class_refusal(asked: PriorityClass, granted: PriorityClass) -> str | None:
    """Why this account's jobs may not ask for this class; None if they may."""
    if asked.rank <= granted.rank:
        return None
    return (
        f"priority_class is {asked.value}; this account may ask for {granted.value} at most. "
        "Ask for less, or ask the hub's operator for a grant."
    )


def _size_faults(spec: JobSpec) -> list[str]:
    faults = []
    if not 1 <= spec.slice_count <= SLICES_MAX:
        faults.append(f"slice_count is {spec.slice_count}; a job has 1 to {SLICES_MAX:,} slices")
    if not 1 <= len(spec.name) <= NAME_LENGTH_MAX:
        faults.append(f"name has {len(spec.name)} characters; 1 to {NAME_LENGTH_MAX} are allowed")
    if "\0" in spec.name or "\0" in (spec.script or ""):
        faults.append("name or script contains a NUL character")
    if not 0 <= spec.retries <= RETRIES_MAX:
        faults.append(f"retries is {spec.retries}; 0 to {RETRIES_MAX} are allowed")
    if spec.priority not in PRIORITY_RANGE:
        faults.append(f"priority is {spec.priority}; -10 to 10 are allowed")
    return faults


def _command_faults(spec: JobSpec) -> list[str]:
    faults = []
    if not spec.command:
        faults.append("there is nothing to run: give a command or a script")
    if sum(len(part.encode()) for part in spec.command) > COMMAND_BYTES_MAX:
        faults.append(f"the command is longer than {COMMAND_BYTES_MAX:,} bytes; put it into a script file")
    if any("\0" in part for part in spec.command):
        faults.append("the command contains a NUL byte")
    if spec.script is not None and len(spec.script.encode()) > SCRIPT_BYTES_MAX:
        faults.append(
            f"the script has {len(spec.script.encode()):,} bytes; inline scripts hold {SCRIPT_BYTES_MAX:,}. "
            "Upload it as a file (PUT /v1/artifacts) and name it in files"
        )
    return faults


def _env_faults(env: Mapping[str, str]) -> list[str]:
    faults = []
    if len(env) > ENV_COUNT_MAX:
        faults.append(f"env has {len(env)} variables; {ENV_COUNT_MAX} are allowed")
    if sum(len(k.encode()) + len(v.encode()) for k, v in env.items()) > ENV_BYTES_MAX:
        faults.append(f"env is larger than {ENV_BYTES_MAX:,} bytes; put large values into a file")
    for name, value in env.items():
        if not _ENV_NAME.match(name):
            faults.append(f"env name {name!r} is not letters, digits and underscores")
        elif name.startswith(("COMPUTEPOOL_", "LD_")):
            faults.append(f"env name {name} is reserved; choose another")
        if "\0" in value:
            faults.append(f"env {name} contains a NUL byte")
    return faults


def _secret_faults(spec: JobSpec, least: IsolationLevel) -> list[str]:
    """Says nothing of the values, nor of names that may be values by mistake: faults are shown and logged."""
    if not spec.secrets:
        return []
    faults = []
    if not spec.requirements.isolation.meets(least):
        faults.append(f"a job with secrets needs requirements.isolation {least.value} or stronger at this hub")
    if spec.checked_by is not None:
        # A run that checks a result is a job of its own, on the machine of one more stranger.
        faults.append(
            "results of a job with secrets are not checked elsewhere, where nobody knows them; leave out compare"
        )
    if len(spec.secrets) > SECRETS_MAX:
        faults.append(f"there are {len(spec.secrets)} secrets; {SECRETS_MAX} are allowed")
    for name, value in spec.secrets.items():
        if not _ENV_NAME.match(name):
            faults.append("the name of a secret is not letters, digits and underscores")
            continue
        if name.startswith(("COMPUTEPOOL_", "LD_")):
            faults.append(f"the name of the secret {name} is reserved; choose another")
        if name in spec.env:
            faults.append(f"{name} is a secret and in env; leave it out of env")
        if not SECRET_BYTES_MIN <= len(value.encode()) <= SECRET_BYTES_MAX:
            faults.append(f"the secret {name} must have {SECRET_BYTES_MIN} to {SECRET_BYTES_MAX:,} bytes")
        if any(character in value for character in "\0\n\r"):
            faults.append(f"the secret {name} holds a line break or NUL; hand it in as base64")
    return faults


def list_file_faults(files: Sequence[InputFile], *, has_script: bool) -> list[str]:
    """What keeps these files from being laid into one folder, beside the inline script."""
    faults = []
    if len(files) > FILES_MAX:
        faults.append(f"there are {len(files)} files; {FILES_MAX:,} are allowed: pack them into an archive")
    seen = {SCRIPT_FILE_NAME} if has_script else set()
    for file in files:
        if not is_safe_relative_path(file.path):
            faults.append(
                f"file path {file.path!r} must be relative, without '..' and unprintable characters, "
                f"at most {PATH_BYTES_MAX:,} bytes and {PATH_PART_BYTES_MAX} between slashes"
            )
        if file.path.split("/")[0] == OUTPUT_FOLDER_NAME:
            faults.append(f"file path {file.path!r} lies in the folder for results; choose another than out/")
        if file.path.split("/")[0] == NODE_FOLDER_NAME:
            faults.append(f"file path {file.path!r} lies in the node's own folder; choose another than .computepool/")
        if file.path in seen:
            faults.append(f"file path {file.path!r} is given twice")
        if not is_sha256(file.sha256):
            faults.append(f"file {file.path!r} needs its sha256 as 64 lower-case hex digits")
        if file.size_bytes < 0:
            faults.append(f"file {file.path!r} has a negative size")
        seen.add(file.path)
    # In the order of their parts, whatever lies below a path follows it at once.
    for path, following in pairwise(sorted(seen, key=lambda path: path.split("/"))):
        if following.startswith(path + "/"):
            faults.append(f"file path {path!r} is also the folder of {following!r}")
    return faults


def _image_faults(spec: JobSpec) -> list[str]:
    if spec.image is None:
        return []
    faults = []
    if not _IMAGE.match(spec.image):
        faults.append(
            f"image {spec.image[:100]!r} is not named by its digest; write it as docker.io/library/python@sha256:..."
        )
    if not spec.requirements.isolation.meets(IsolationLevel.CONTAINER):
        faults.append("a job with an image needs requirements.isolation container or gvisor")
    if spec.packages:
        faults.append("a job with an image brings its packages in it; leave packages empty")
    return faults


def _package_faults(packages: tuple[str, ...]) -> list[str]:
    faults = []
    if len(packages) > PACKAGES_MAX:
        faults.append(f"there are {len(packages)} packages; {PACKAGES_MAX} are allowed: use an image")
    for package in packages[:PACKAGES_MAX]:
        if len(package) > PACKAGE_LENGTH_MAX or not _PACKAGE.match(package.replace(" ", "")):
            faults.append(
                f"package {package[:100]!r} is not a name with versions such as numpy==2.1.0 or torch>=2.4,<3; "
                "addresses, paths, options and markers are not taken"
            )
    return faults


def _egress_faults(spec: JobSpec) -> list[str]:
    egress, faults = spec.egress, []
    if egress and spec.requirements.isolation is IsolationLevel.GVISOR:
        faults.append("no gVisor has a way out; with egress ask for requirements.isolation container at most")
    if len(egress) > EGRESS_MAX:
        faults.append(f"egress names {len(egress)} hosts; {EGRESS_MAX} are allowed")
    for target in egress[:EGRESS_MAX]:
        if not _TARGET.match(target) or not 1 <= int(target.rpartition(":")[2]) <= 65_535:
            faults.append(f"egress {target[:100]!r} is not host:port such as huggingface.co:443")
    return faults


def _verify_faults(spec: JobSpec) -> list[str]:
    if spec.verify is Verify.QUORUM and spec.comparator is None:
        return ["verify quorum needs compare: exact, numeric or a command, or nobody can tell who agrees"]
    return [] if spec.comparator is None else _comparator_faults(spec.comparator, spec.files)


def _comparator_faults(comparator: Comparator, files: Sequence[InputFile]) -> list[str]:
    command = comparator.command
    if comparator.anywhere and comparator.kind is not ComparatorKind.EXACT:
        return ["compare.anywhere is for compare.kind exact; everything else is compared everywhere"]
    if comparator.kind is not ComparatorKind.COMMAND:
        return ["compare.command goes with compare.kind command; leave it out, or set the kind"] if command else []
    faults = []
    if not command or not command[0]:
        faults.append("compare.kind command needs compare.command, such as python3 same.py")
    if sum(len(part.encode()) for part in command) > COMMAND_BYTES_MAX:
        faults.append(f"compare.command is longer than {COMMAND_BYTES_MAX:,} bytes; put it into a file of the job")
    if any("\0" in part for part in command):
        faults.append("compare.command contains a NUL byte")
    faults += [
        f"file path {file.path!r} lies where compare.command finds a result; choose another than one/ and other/"
        for file in files
        if file.path.split("/")[0] in COMPARED_FOLDER_NAMES
    ]
    return faults


def is_sha256(text: str) -> bool:
    return _SHA256.match(text) is not None


def is_safe_relative_path(path: str) -> bool:
    """Whether a path stays inside the folder it is joined to, and every system can store and show it.

    A line break, of all characters, would let one line of a result's manifest pass for two.
    """
    if not path.isprintable() or "\\" in path or len(path.encode()) > PATH_BYTES_MAX:
        return False
    parts = path.split("/")
    return all(part not in ("", ".", "..") and len(part.encode()) <= PATH_PART_BYTES_MAX for part in parts)


def _requirement_faults(need: Requirements) -> list[str]:
    faults = []
    for name in ("vram_bytes", "ram_bytes", "disk_bytes"):
        value = getattr(need, name)
        if not 0 <= value <= 1 << 50:
            faults.append(f"requirements.{name} is {value}; it must be between 0 and 2^50")
    if not 1 <= need.cores <= 1024:
        faults.append(f"requirements.cores is {need.cores}; it must be between 1 and 1024")
    strange_regions = [r for r in need.regions if not _REGION.match(r)]
    strange_tiers = [t for t in need.tiers if not _TIER.match(t)]
    faults += [f"region {r!r} is not an ISO-2 country code such as IN or DE" for r in strange_regions]
    faults += [f"tier {t!r} is not a tier name such as rtx-4090" for t in strange_tiers]
    if len(need.tiers) > 32 or len(need.regions) > 250:
        faults.append("too many tiers or regions are listed")
    ceiling = need.ceiling_microcredits_per_hour
    if ceiling is not None and not 1 <= ceiling <= PRICE_MICROCREDITS_MAX:
        faults.append(
            f"requirements.ceiling_microcredits_per_hour is {ceiling}; it must be between 1 and "
            f"{PRICE_MICROCREDITS_MAX:,} (a credit is 1,000,000), or absent for any price"
        )
    return faults


def _price_faults(spec: JobSpec) -> list[str]:
    price = spec.price
    if price is BY_THE_SECOND:
        return []
    figures = {
        "price.microcredits_per_slice": price.microcredits_per_slice,
        "price.ceiling_microcredits_per_slice": price.ceiling_microcredits_per_slice,
    }
    given = {name: figure for name, figure in figures.items() if figure is not None}
    if price.mode is PriceMode.PER_SECOND:
        return [f"{name} goes with price.mode per_slice; leave it out, or set the mode" for name in given]
    faults = [
        f"{name} is {figure}; it must be between 1 and {PRICE_MICROCREDITS_MAX:,} (a credit is 1,000,000)"
        for name, figure in given.items()
        if not 1 <= figure <= PRICE_MICROCREDITS_MAX
    ]
    if spec.requirements.ceiling_microcredits_per_hour is not None:
        faults.append(
            "requirements.ceiling_microcredits_per_hour is for jobs that pay by the second; with price.mode "
            "per_slice set price.ceiling_microcredits_per_slice instead"
        )
    return faults


def _time_faults(spec: JobSpec, now: datetime) -> list[str]:
    faults = []
    if not 1 <= spec.wall_seconds <= WALL_SECONDS_MAX:
        faults.append(f"wall_seconds is {spec.wall_seconds}; 1 to {WALL_SECONDS_MAX:,} are allowed")
    if not 1 <= spec.checkpoint_seconds <= CHECKPOINT_SECONDS_MAX:
        faults.append(f"checkpoint_seconds is {spec.checkpoint_seconds}; 1 to {CHECKPOINT_SECONDS_MAX:,} are allowed")
    for name, at in (("expires_at", spec.expires_at), ("deadline_at", spec.deadline_at)):
        if at is not None and at.tzinfo is None:
            faults.append(f"{name} needs a time zone")
        elif at is not None and at <= now:
            faults.append(f"{name} lies in the past")
    if not faults and spec.deadline_at and spec.expires_at and spec.deadline_at > spec.expires_at:
        faults.append("deadline_at lies after expires_at: by then its unfinished slices have failed")
    return faults
