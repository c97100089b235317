"""`computepool net`: neural networks that are cut over machines, at a hub or, with `--local`, on this one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from computepool.cli.access import hub_options

if TYPE_CHECKING:
    from computepool.networks.network import Network
    from computepool.networks.plan import Plan
    from computepool.networks.remote import HubGrid
    from computepool.networks.run import Run, TrainEvent
    from computepool.wire.pb.computepool.v1 import networks_pb2 as pb

# How the line of an audit ends that found nothing.
_AGREED = ": agreed"
_BARS_WIDTH = 48
# In a pipe, where no line moves.
_LINES_EVERY = 10


@click.group("net")
def command() -> None:
    """Train a neural network over many machines, to the curve of one.

    \b
        computepool net plan digits.yaml --local 2
        computepool net train digits.yaml digits.safetensors --steps 200 --local 3
        computepool net train digits.yaml digits.safetensors --steps 200 --seats 3
        computepool net watch RUN
        computepool net infer RUN questions.safetensors answers.safetensors
        computepool net export RUN weights.safetensors
    """


@command.command("create")
@click.argument("network", type=click.Path(dir_okay=False))
@hub_options
def create(network: str, hub_url: str | None, key: str | None) -> None:
    """Store a network (a YAML file) at the hub and print its id."""
    found = _load(network)
    with _open(hub_url, key) as grid:
        click.echo(grid.create(found))


@command.command("plan")
@click.argument("network")
@click.option(
    "--local", "machines", type=click.IntRange(1, 64), metavar="N", help="For N machines alike, not a hub's."
)
@click.option("--gflops", type=float, default=20.0, show_default=True, help="With --local: speed of a machine.")
@click.option("--uplink", type=float, metavar="MBIT", help="With --local: what a machine sends. [default: no limit]")
@click.option("--latency", type=float, default=0.0, metavar="MS", help="With --local: one way.")
@click.option("--seats", type=int, default=0, help="So many machines. [default: as the hub finds best]")
@click.option("--max-price", metavar="CREDITS", help="The most that an hour of a machine may cost.")
@hub_options
def plan(
    network: str,
    machines: int | None,
    gflops: float,
    uplink: float | None,
    latency: float,
    seats: int,
    max_price: str | None,
    hub_url: str | None,
    key: str | None,
) -> None:
    """Say where the VNodes would go, what crosses between machines, and how fast it would be. Nothing is started.

    NETWORK is a YAML file, or the id of a network at the hub.
    """
    from computepool.cli.words import plain

    if machines is not None:
        from computepool.networks import Machine

        speed = Machine(gflops * 1e9, uplink * 1e6 / 8 if uplink else float("inf"), latency / 1e3)
        lines = describe_local(_load(network).plan([speed] * machines))
    else:
        from computepool.networks import TrainOptions

        options = TrainOptions(seats=seats, ceiling_microcredits_per_hour=_read_price(max_price))
        with _open(hub_url, key) as grid:
            network_id = grid.create(_load(network)) if _is_file(network) else network
            lines = describe_plan(grid.plan(network_id, options))
    for line in lines:
        click.echo(plain(line))


@command.command("train")
@click.argument("network")
@click.argument("data", type=click.Path(exists=True, dir_okay=False))
@click.option("--steps", type=click.IntRange(min=1), required=True, help="Updates of the weights.")
@click.option("--local", "pnodes", type=click.IntRange(1, 64), metavar="N", help="Over N processes of this machine.")
@click.option("--seats", type=int, default=0, help="So many machines. [default: as the hub finds best, or all]")
@click.option("--hours", type=click.IntRange(min=1), default=1, show_default=True, help="At most so long.")
@click.option("--max-price", metavar="CREDITS", help="The most that an hour of a machine may cost.")
@click.option("--out", type=click.Path(dir_okay=False), help="With --local: where the weights go, as safetensors.")
@click.option("--serve", is_flag=True, help="At a hub: then answer, until it is stopped or its hours are over.")
@click.option("--detach", is_flag=True, help="At a hub: print the run's id and leave.")
@hub_options
def train(
    network: str,
    data: str,
    steps: int,
    pnodes: int | None,
    seats: int,
    hours: int,
    max_price: str | None,
    out: str | None,
    serve: bool,
    detach: bool,
    hub_url: str | None,
    key: str | None,
) -> int:
    """Train NETWORK (a YAML file, or an id at the hub) with DATA (safetensors, named as its sources)."""
    from computepool.networks import Dataset

    samples = Dataset.from_bytes(Path(data).read_bytes())
    if pnodes is not None:
        if serve or detach:
            raise click.UsageError("--serve and --detach are for a hub: processes of this machine end with this one.")
        from computepool.networks import local

        with local(pnodes=pnodes) as local_grid:
            local_run = local_grid.start(_load(network), samples, steps, seats=seats)
            code = show_run(local_run)
            if out and code == 0:
                _write_weights(local_run, out)
        return code
    if out:
        raise click.UsageError("--out is for --local. At a hub: computepool net export RUN FILE")
    from computepool.networks import TrainOptions

    price = _read_price(max_price)
    options = TrainOptions(seats=seats, hours_max=hours, ceiling_microcredits_per_hour=price, serve=serve)
    with _open(hub_url, key) as grid:
        run = grid.start(_load(network) if _is_file(network) else network, samples, steps, options)
        click.echo(run.id)
        return 0 if detach else show_run(run)


@command.command("watch")
@click.argument("run_id", metavar="RUN")
@hub_options
def watch(run_id: str, hub_url: str | None, key: str | None) -> int:
    """Show a run's loss as it goes, to the end."""
    with _open(hub_url, key) as grid:
        return show_run(grid.get_run(run_id))


@command.command("stop")
@click.argument("run_id", metavar="RUN")
@hub_options
def stop(run_id: str, hub_url: str | None, key: str | None) -> None:
    """Stop a run after a step that everybody has stored."""
    with _open(hub_url, key) as grid:
        grid.get_run(run_id).stop()


@command.command("resume")
@click.argument("run_id", metavar="RUN")
@click.option("--steps", type=click.IntRange(min=1), help="How many it is to have made in the end.")
@click.option("--serve", is_flag=True, help="Then answer, until it is stopped or its hours are over.")
@hub_options
def resume(run_id: str, steps: int | None, serve: bool, hub_url: str | None, key: str | None) -> None:
    """Go on with a run that was stopped; with --serve also with one that has made all its steps."""
    with _open(hub_url, key) as grid:
        grid.get_run(run_id).resume(steps, serve=serve)


@command.command("infer")
@click.argument("run_id", metavar="RUN")
@click.argument("inputs", type=click.Path(exists=True, dir_okay=False))
@click.argument("file", type=click.Path(dir_okay=False))
@click.option("--checkpoint", type=click.IntRange(min=1), metavar="STEP", help="Of this step. [default: the newest]")
@click.option("--batch", type=click.IntRange(min=1), default=64, show_default=True, help="Samples in one request.")
@hub_options
def infer(
    run_id: str, inputs: str, file: str, checkpoint: int | None, batch: int, hub_url: str | None, key: str | None
) -> None:
    """Ask the machines of a run that goes on. INPUTS is safetensors named as the network's sources.

    The answers go to FILE (safetensors, the tensor `output`), a row for each sample, all of one checkpoint.
    """
    from computepool.networks.questions import answer_file

    with _open(hub_url, key) as grid:
        count, step = answer_file(
            grid.get_run(run_id), Path(inputs), Path(file), checkpoint_step=checkpoint or 0, batch_size=batch
        )
    click.echo(f"{count} samples answered at checkpoint {step}, in {file}", err=True)


@command.command("export")
@click.argument("run_id", metavar="RUN")
@click.argument("file", type=click.Path(dir_okay=False))
@hub_options
def export(run_id: str, file: str, hub_url: str | None, key: str | None) -> None:
    """Write a run's weights to FILE (safetensors), under their names in the uncut network."""
    with _open(hub_url, key) as grid:
        _write_weights(grid.get_run(run_id), file)


def show_run(run: Run) -> int:
    """The loss as it goes: one moving line for people, a line now and then in a pipe. 0 if the run succeeded."""
    from computepool.cli.terminal import aside
    from computepool.cli.words import plain

    console = aside()
    state, agreed = "", 0
    with console.status("waits for machines") as status:
        for event, losses in _follow(run):
            if event.kind == "audit" and event.message.endswith(_AGREED):
                # The ordinary case: counted, not listed.
                agreed += 1
            elif event.kind == "step":
                line = describe_step(event, losses)
                status.update(line)
                if not console.is_terminal and event.step % _LINES_EVERY == 0:
                    console.print(line)
            elif event.message:
                state = event.message if event.kind == "state" else state
                console.print(plain(f"step {event.step}: {event.message}"))
    if agreed:
        console.print(f"{agreed} audits: other machines came to the same bits")
    if run.state.value != "succeeded":
        console.print(plain(f"The run is {run.state.value}. {state}"))
        return 1
    return 0


def _follow(run: Run) -> Iterator[tuple[TrainEvent, list[float]]]:
    losses: dict[int, float] = {}
    for event in run.watch():
        if event.loss is not None:
            losses[event.step] = event.loss
        # In order: what is done again keeps its place.
        yield event, list(losses.values())


def describe_step(event: TrainEvent, losses: list[float]) -> str:
    from computepool.networks.pictures import to_bars

    bars = to_bars(losses, _BARS_WIDTH)
    return f"step {event.step:,}  loss {event.loss:.4f}  {event.samples_per_second:,.0f} samples/s  {bars}"


def describe_local(plan: Plan) -> list[str]:
    by_machine: dict[int, list[str]] = {}
    for (vnode_id, replica), machine in plan.places.items():
        by_machine.setdefault(machine, []).append(vnode_id + (f" (replica {replica})" if replica else ""))
    estimate = plan.estimate
    lines = [
        f"machine {machine}: {', '.join(by_machine[machine])} (busy {estimate.busy_share[machine]:.0%})"
        for machine in sorted(by_machine)
    ]
    lines += [
        f"{edge.source} -> {edge.target}: {edge.bytes_per_step:,} bytes a step" for edge in plan.edges if edge.cut
    ]
    return [*lines, *_say_speed(estimate.samples_per_second, estimate.samples_per_second_one_machine, plan.warnings)]


def describe_plan(plan: pb.Plan) -> list[str]:
    from computepool.core.ledger.decimals import say_credits
    from computepool.core.words import say_bytes

    lines = []
    for seat in plan.seats:
        relayed = ", by relay" if seat.relayed else ""
        name = seat.node_name or seat.node_id
        lines.append(f"{name}: {', '.join(seat.vnode_ids)} ({say_bytes(seat.memory_bytes)}{relayed})")
    lines += [
        f"{edge.source} -> {edge.target}: {edge.bytes_per_step:,} bytes a step" for edge in plan.edges if edge.cut
    ]
    lines += _say_speed(plan.samples_per_second, plan.samples_per_second_one_machine, tuple(plan.warnings))
    return [*lines, f"It costs {say_credits(plan.microcredits_per_hour_max)} an hour at most."]


def _say_speed(samples: float, alone: float, warnings: tuple[str, ...]) -> list[str]:
    share = f", {samples / alone:.2f} times one machine" if alone else ""
    return [f"About {samples:,.0f} samples a second{share}.", *(f"Warning: {words}." for words in warnings)]


def _is_file(network: str) -> bool:
    return network.endswith((".yaml", ".yml")) or Path(network).exists()


def _load(network: str) -> Network:
    from computepool.networks import Network

    return Network.load(network)


def _open(hub_url: str | None, key: str | None) -> HubGrid:
    from computepool.networks import HubGrid

    return HubGrid(hub_url, key)


def _read_price(text: str | None) -> int | None:
    from computepool.sdk.sizes import parse_credits

    return None if text is None else parse_credits(text)


def _write_weights(run: Run, file: str) -> None:
    from computepool.networks.weights import write_weights

    count = write_weights(run.state_dict(), Path(file))
    click.echo(f"{count} tensors in {file}", err=True)
