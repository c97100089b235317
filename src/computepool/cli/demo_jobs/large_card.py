"""How many sequences of a 7-billion-parameter model fit beside its weights into 16 GB, for one length of text.

Stands for work that needs a large card: the grid must give it to nodes with that much memory and to no others.
"""

from __future__ import annotations

import json
import os

CARD_BYTES = 16_000_000_000
PARAMETERS, LAYERS, MODEL_WIDTH = 6_738_000_000, 32, 4096
BYTES_PER_NUMBER = 2
LENGTHS = (512, 1024, 2048, 4096, 8192, 16384)


def main() -> None:
    length = LENGTHS[int(os.environ["COMPUTEPOOL_SLICE_INDEX"]) % len(LENGTHS)]
    weights_bytes = PARAMETERS * BYTES_PER_NUMBER
    # Keys and values of every layer are kept for every token that was read.
    sequence_bytes = 2 * LAYERS * MODEL_WIDTH * BYTES_PER_NUMBER * length
    fits = max(0, (CARD_BYTES - weights_bytes) // sequence_bytes)
    result = {"length": length, "sequence_bytes": sequence_bytes, "fits": fits}
    with open(os.path.join(os.environ["COMPUTEPOOL_OUTPUT_DIR"], "plan.json"), "w", encoding="utf-8") as file:
        json.dump(result, file)
    print(f"weights {weights_bytes / 1e9:.1f} GB; {length} tokens need {sequence_bytes / 1e9:.2f} GB: {fits} fit")


main()
