"""The process that computes: started by agent or doctor, told what to do line by line, ended with its pipe.

Only this process loads numpy or torch, and a driver that hangs or dies takes only this process along.
"""

from __future__ import annotations

import base64
import sys
from typing import BinaryIO

import msgspec

from computepool import clock
from computepool.core.trust.commitment import Tree
from computepool.core.trust.products import Work
from computepool.node.hardware.benchmark import measure
from computepool.node.hardware.engines.choose import find_engine
from computepool.node.hardware.engines.port import Engine, NoEngine
from computepool.node.hardware.measuring_words import Answer, Compute, Open, Opened, Order


def main() -> int:
    on_gpu = sys.argv[1] == "gpu"
    # The library may print as it likes; what is said to the agent goes by a pipe of its own.
    answers = sys.stdout.buffer
    sys.stdout = sys.stderr
    try:
        engine = find_engine(on_gpu=on_gpu, card_name=sys.argv[2])
    except NoEngine as error:
        _say(answers, Answer(trouble=str(error)))
        return 1
    _say(answers, Answer(engine=engine.name))
    session = Session(engine, on_gpu=on_gpu)
    for line in sys.stdin.buffer:
        try:
            answer = session.obey(msgspec.json.decode(line, type=Order))
        except NoEngine as error:
            answer = Answer(trouble=str(error))
        except MemoryError:
            answer = Answer(trouble="there is not enough memory")
        _say(answers, answer)
    return 0


class Session:
    def __init__(self, engine: Engine, *, on_gpu: bool) -> None:
        self._engine = engine
        self._on_gpu = on_gpu
        self._tree: Tree | None = None
        self._pieces: list[memoryview] = []

    def obey(self, order: Order) -> Answer:
        if order.compute is not None:
            return self._compute(order.compute)
        if order.open is not None:
            return self._open(order.open)
        if order.fill is not None:
            fill = order.fill
            return Answer(words=self._engine.fill(bytes.fromhex(fill.seed), fill.byte_count, fill.indices))
        return Answer(measured=measure(self._engine, on_gpu=self._on_gpu, now_seconds=clock.seconds))

    def _compute(self, order: Compute) -> Answer:
        work = Work(bytes.fromhex(order.seed), order.size, order.products)
        whole = memoryview(self._engine.compute(work))
        each = work.segment_bytes
        self._pieces = [whole[at : at + each] for at in range(0, len(whole), each)]
        self._tree = Tree(self._pieces)
        return Answer(root=self._tree.root.hex())

    def _open(self, order: Open) -> Answer:
        if self._tree is None:
            return Answer(trouble="there is nothing to open")
        return Answer(
            opened=[
                Opened(
                    piece=base64.b64encode(self._pieces[index]).decode(),
                    path=[each.hex() for each in self._tree.prove(index)],
                )
                for index in order.segments
            ]
        )


def _say(answers: BinaryIO, answer: Answer) -> None:
    answers.write(msgspec.json.encode(answer) + b"\n")
    answers.flush()


if __name__ == "__main__":
    sys.exit(main())
