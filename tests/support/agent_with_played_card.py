"""An agent whose card is played: NVML by the stand-in, and what it computes by the processor."""

from __future__ import annotations

import sys

from computepool.node.hardware import measuring
from computepool.node.main import main

# In the measuring process: the processor computes what the card is asked for, and has no memory of the card's size.
measuring.PROGRAM = (
    "import sys; sys.path.append(sys.argv.pop(1)); "
    "from computepool.core.trust.memory import split_seed, word_at; "
    "from computepool.node.hardware import measuring_process as m; "
    "find = m.find_engine; m.find_engine = lambda **how: find(on_gpu=False); "
    "from computepool.node.hardware.engines.by_numpy import NumpyEngine; "
    "NumpyEngine.fill = lambda self, seed, size, places: [word_at(*split_seed(seed), place) for place in places]; "
    "sys.exit(m.main())"
)

if __name__ == "__main__":
    sys.exit(main())
