"""Networks answer while they train, on real agents at a real hub, to the bits of one machine, whatever is killed."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load, save
from torch import Tensor

from computepool.cli.main import run as say
from computepool.core.errors import InvalidRequest, NotFound, PayloadTooLarge
from computepool.core.networks.errors import InferenceFailed, NoLiveRun
from computepool.core.networks.run import RunState
from computepool.core.networks.spec import NetworkSpec
from computepool.networks import Dataset, HubGrid, Network, TrainOptions, reference
from computepool.networks.reference_run import ReferenceRun
from computepool.networks.remote import HubRun
from computepool.networks.uncut import UncutNetwork, answer
from tests.support.network_grid import CEILING, NetworkGrid
from tests.support.vnode_nets import make_net, make_samples

pytestmark = pytest.mark.alone

OPTIONS = TrainOptions(seats=2, ceiling_microcredits_per_hour=CEILING)
# More than any test waits for.
STEPS = 1_000_000


def pick(seed: int, samples: int = 4) -> Tensor:
    return torch.randn(samples, 6, generator=torch.Generator().manual_seed(seed))


class OneMachine:
    """The same training in one process, done once and only as far as somebody wants to know."""

    def __init__(self, spec: NetworkSpec, data: Dataset) -> None:
        self._spec, self._data = spec, data
        self._latest: ReferenceRun | None = None
        self.losses: list[float] = []

    def answer_at(self, step: int, *inputs: Tensor) -> list[Tensor]:
        """What it would answer with its weights after this step, which is no earlier than the last one asked for."""
        done, before = len(self.losses), self._latest
        if step > done or before is None:
            state = {"state": before.state_dict, "optimizer_state": before.optimizer_state} if before else {}
            self._latest = reference(self._spec, self._data, step - done, from_step=done, **state)
            self.losses += self._latest.losses
        assert self._latest is not None
        assert len(self.losses) == step
        network = UncutNetwork(self._spec)
        network.load_state_dict(self._latest.state_dict)
        network.eval()
        with torch.no_grad():
            return [network(each) for each in inputs]


class Asking:
    """Somebody who streams questions until told to stop; not so fast that nothing else gets done."""

    def __init__(self, run: HubRun) -> None:
        self._run = run
        self._ended = threading.Event()
        self.asked: list[Tensor] = []
        self.answers: list[Tensor] = []
        self.failure: Exception | None = None
        self._thread = threading.Thread(target=self._ask, daemon=True)
        self._thread.start()

    def _list_questions(self) -> Iterator[dict[str, Tensor]]:
        while not self._ended.wait(0.02):
            self.asked.append(pick(len(self.asked)))
            yield {"x": self.asked[-1]}

    def _ask(self) -> None:
        try:
            for output in self._run.infer_stream(self._list_questions()):
                self.answers.append(output)
        except Exception as error:
            self.failure = error

    async def has_answers(self, count: int) -> bool:
        assert self.failure is None, self.failure
        return len(self.answers) >= count

    async def end(self) -> None:
        self._ended.set()
        await asyncio.to_thread(self._thread.join, 60)
        assert self.failure is None, self.failure
        assert len(self.answers) == len(self.asked)


@pytest.mark.timeout(280)
async def test_a_network_answers_while_it_trains_and_through_the_loss_of_a_pnode(grid, tmp_path, capfd):
    spec = make_net("residual", checkpoint_every=10)
    data, network = make_samples(spec), Network(spec)
    hub = await asyncio.to_thread(HubGrid, grid.hubs[0].url, grid.submitter.key)
    try:
        run = await asyncio.to_thread(lambda: network.train(data, STEPS, grid=hub, options=OPTIONS))
        await grid.wait_for_step(run.id, 25)

        asking = Asking(run)
        await grid.wait_until(lambda: asking.has_answers(5), "answers")
        step = run.inference.checkpoint_step
        victim = await grid.find_agent(run.id, "seat-1")
        victim.cut_power()
        await grid.wait_for_epoch(run.id, 2)
        # Many checkpoints later, when this one would have been thrown away, the stream is still answered by it.
        await grid.wait_for_step(run.id, step + 6 * spec.checkpoint_every)
        enough = len(asking.asked) + 5
        await grid.wait_until(lambda: asking.has_answers(enough), "answers after the loss")
        await asking.end()
        assert run.inference.checkpoint_step == step
        assert (await grid.get_run(run.id)).checkpoint_step > step + 3 * spec.checkpoint_every
        alone = OneMachine(spec, data)
        right = await asyncio.to_thread(alone.answer_at, step, *asking.asked)
        assert all(torch.equal(*each) for each in zip(asking.answers, right, strict=True))

        await asyncio.to_thread(_ask_in_other_ways, grid, network, run, alone, tmp_path)
        assert "samples answered at checkpoint" in capfd.readouterr().err
        await asyncio.to_thread(run.stop)
        await grid.wait_for_state(run.id, "stopped")
        with pytest.raises(NoLiveRun, match="stopped"):
            await asyncio.to_thread(run.infer, pick(0))
        # A run that is over is taken up again to answer, without another step.
        await asyncio.to_thread(_serve, run, spec)
        # Nobody is there to be asked: it is computed here.
        assert torch.equal(network.infer(pick(0)), answer(spec, run.state_dict(), pick(0)))
        # As far as anybody has looked; whole curves are compared where nobody asks.
        assert (await grid.list_losses(run.id))[: len(alone.losses)] == alone.losses
    finally:
        hub.close()


def _serve(run: HubRun, spec) -> None:
    weights, step = run.state_dict(), run.look().checkpoint_step
    run.resume(steps=step, serve=True)
    assert torch.equal(run.infer(pick(4)), answer(spec, weights, pick(4)))
    assert run.inference.checkpoint_step == step
    run.stop()
    assert run.wait().state is RunState.SUCCEEDED


def _ask_in_other_ways(grid: NetworkGrid, network: Network, run: HubRun, alone: OneMachine, tmp_path: Path) -> None:
    output = network.infer(pick(1))
    assert torch.equal(output, *alone.answer_at(run.inference.checkpoint_step, pick(1)))
    questions, answers = tmp_path / "questions.safetensors", tmp_path / "answers.safetensors"
    questions.write_bytes(save({"x": pick(2, samples=10)}))
    words = ["net", "infer", run.id, str(questions), str(answers), "--batch", "4"]
    assert say([*words, "--hub-url", grid.hubs[0].url, "--key", grid.submitter.key]) == 0
    assert load(answers.read_bytes())["output"].shape[0] == 10
    # What cannot be asked is said, and neither the run nor the next request minds.
    for inputs, error, words in (
        ({"x": pick(0)[:, :5]}, InvalidRequest, r"input x: shape \[4, 5\]; it should be \[samples, 6\]"),
        ({"x": pick(0).to(torch.int64)}, InvalidRequest, "input x: dtype 'i64'; it should be f32"),
        ({"z": pick(0)}, InvalidRequest, "input x is missing"),
        ({"x": torch.full((2, 6), float("nan"))}, InferenceFailed, "NaN"),
        ({"x": torch.zeros(200_000, 6)}, PayloadTooLarge, "ask in parts"),
    ):
        with pytest.raises(error, match=words):
            run.infer(**inputs)
    with pytest.raises(NotFound, match="Complete ones"):
        run.inference.ask({"x": pick(0)}, checkpoint_step=7, seconds=20)
    epoch = run.look().epoch
    assert run.infer(pick(3)).shape[0] == 4
    assert run.look().epoch == epoch
