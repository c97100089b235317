"""An agent whose card is played: NVML by the stand-in, and what it computes by the processor.

With PLAYED_CARD_SLOW in the environment, the card is as slow as that file says, in seconds a round, once it is there.
"""

from __future__ import annotations

import sys

from computepool.node.hardware import measuring
from computepool.node.main import main

# In the measuring process: the processor computes what the card is asked for, and has no memory of the card's size.
measuring.PROGRAM = (
    "import os, sys, time; sys.path.append(sys.argv.pop(1)); "
    "from pathlib import Path; "
    "from computepool.core.trust.memory import split_seed, word_at; "
    "from computepool.node.hardware import measuring_process as m; "
    "slow = Path(os.environ.get('PLAYED_CARD_SLOW', '/nowhere')); "
    "card = sys.argv[1] == 'gpu'; "
    "rest = lambda: time.sleep(float(slow.read_text())) if card and slow.exists() else None; "
    "find = m.find_engine; m.find_engine = lambda **how: find(on_gpu=False); "
    "from computepool.node.hardware.engines.by_numpy import NumpyEngine; "
    "NumpyEngine.fill = lambda self, seed, size, places: [word_at(*split_seed(seed), place) for place in places]; "
    "compute = NumpyEngine.compute; "
    "NumpyEngine.compute = lambda self, work, **how: (rest(), compute(self, work, **how))[1]; "
    "sys.exit(m.main())"
)

if __name__ == "__main__":
    sys.exit(main())
