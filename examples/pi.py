"""Many slices of one job, each with its own share of the work; the results are added up at home.

python examples/pi.py
"""

import json
import tempfile
from pathlib import Path

from computepool.sdk import Client
from computepool.wire.jobs import Job

SLICES = 12

# Runs on the nodes. Each slice looks at its own part of the quarter circle.
SCRIPT = """
import json, os

index = int(os.environ["COMPUTEPOOL_SLICE_INDEX"])
count = int(os.environ["COMPUTEPOOL_SLICE_COUNT"])
side = 1200
hits = sum(
    (2 * x + 1) ** 2 + (2 * y + 1) ** 2 <= (2 * side) ** 2
    for x in range(index, side, count)
    for y in range(side)
)
points = len(range(index, side, count)) * side
with open(os.path.join(os.environ["COMPUTEPOOL_OUTPUT_DIR"], "hits.json"), "w") as file:
    json.dump({"hits": hits, "points": points}, file)
"""


def show(job: Job) -> None:
    print(f"{job.counts.succeeded} of {job.slice_count} slices done")


with Client() as client, tempfile.TemporaryDirectory() as folder:
    job = client.submit(script=SCRIPT, slices=SLICES, name="pi")
    job.wait(timeout=300, on_change=show)
    results = [json.loads(path.read_text()) for path in job.download(Path(folder))]

pi = 4 * sum(result["hits"] for result in results) / sum(result["points"] for result in results)
print(f"pi is about {pi:.5f}")
