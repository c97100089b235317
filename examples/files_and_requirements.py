"""Files go along with a job, requirements say where it may run, and what failed can be asked why.

python examples/files_and_requirements.py examples docs
"""

import sys

from computepool.core.jobs.state import JobState
from computepool.sdk import Client

# Runs on the node, in a folder where the files lie under the same names as here.
SCRIPT = """
import collections, os, pathlib

words = collections.Counter()
for path in pathlib.Path(".").rglob("*"):
    if path.is_file() and path.name != "main.py":
        words.update(path.read_text(errors="ignore").lower().split())
target = pathlib.Path(os.environ["COMPUTEPOOL_OUTPUT_DIR"], "words.txt")
target.write_text("".join(f"{count:6d} {word}\\n" for word, count in words.most_common(20)))
print(f"{len(words)} different words")
"""

with Client() as client:
    job = client.submit(
        script=SCRIPT,
        files=sys.argv[1:] or ["examples"],
        cores=2,
        ram="1GB",
        disk="2GB",
        wall_seconds=120,
        name="words",
    )
    if job.wait(timeout=300).state is JobState.SUCCEEDED:
        (path,) = job.download("words")
        print(path.read_text())
    else:
        for part in job.slices():
            for attempt in part.attempts:
                print(f"slice {part.index}, attempt {attempt.number}: {attempt.cause} {attempt.message or ''}")
