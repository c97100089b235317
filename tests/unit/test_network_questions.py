"""Files of samples are asked in batches, and their answers put together in order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load, save
from torch import Tensor

from computepool.core.errors import InvalidRequest
from computepool.networks.questions import answer_file


class Doubling:
    """A run that answers with twice what it is asked."""

    inference = SimpleNamespace(checkpoint_step=30)

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def infer_stream(self, batches: Iterable[Mapping[str, Tensor]], *, checkpoint_step: int) -> Iterator[Tensor]:
        for batch in batches:
            self.sizes.append(len(batch["x"]))
            yield 2 * batch["x"]


def ask(folder: Path, content: bytes, **options: Any) -> tuple[Doubling, Path, tuple[int, int]]:
    questions, answers, run = folder / "questions", folder / "answers", Doubling()
    questions.write_bytes(content)
    told = answer_file(run, questions, answers, **{"checkpoint_step": 0, "batch_size": 4, **options})
    return run, answers, told


def test_a_file_is_asked_batch_by_batch_and_answered_in_order(tmp_path):
    x = torch.arange(20.0).reshape(10, 2)
    run, answers, told = ask(tmp_path, save({"x": x}))
    assert (run.sizes, told) == ([4, 4, 2], (10, 30))
    assert torch.equal(load(answers.read_bytes())["output"], 2 * x)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"no safetensors", "is no safetensors file"),
        (save({"x": torch.zeros(2, 3), "z": torch.zeros(3)}), "the same number of samples"),
        (save({"x": torch.zeros(0, 3)}), "at least one"),
    ],
)
def test_a_file_that_cannot_be_asked_is_told(tmp_path, content, words):
    with pytest.raises(InvalidRequest, match=words):
        ask(tmp_path, content)
