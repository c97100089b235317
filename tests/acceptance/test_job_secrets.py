"""A job finds its secrets in its environment, and nobody finds them in its log or anywhere else."""

from __future__ import annotations

import time

import httpx
import pytest

from computepool.core.errors import InvalidSpec
from computepool.core.jobs.state import JobState
from computepool.sdk import Client
from tests.support.people import sign_up

VALUE = "correct horse battery staple"
# Once at a time, once in pieces, once to the other stream; and in a file, which is the job's own business.
SCRIPT = """
import os, sys, time
value = os.environ["API_TOKEN"]
print("whole", value, flush=True)
for piece in ("pieces ", value[:7], value[7:20], value[20:], " end\\n"):
    os.write(1, piece.encode())
    time.sleep(0.3)
print("error", value, file=sys.stderr)
open("out/length", "w").write(str(len(value)))
"""


@pytest.fixture
def hub(start_hub):
    # Containers need root and an engine; what is tried here is the same behind every wall.
    return start_hub(secrets_isolation="sandboxed", secrets_key="the operator's own, long enough")


def test_a_job_reads_its_secrets_and_its_log_does_not_show_them(start_agent, client, submitter, hub, tmp_path):
    agent = start_agent()
    job = client.submit(script=SCRIPT, secrets={"API_TOKEN": VALUE}, isolation="sandboxed")
    assert job.wait(timeout=120).state is JobState.SUCCEEDED
    log = "".join(job.logs(follow=False))
    assert VALUE not in log
    assert [line for line in log.splitlines() if line] == ["whole [secret]", "pieces [secret] end", "error [secret]"]
    job.download(tmp_path / "results")
    assert (tmp_path / "results" / "length").read_text() == str(len(VALUE))

    def ask(path: str) -> str:
        answer = httpx.get(f"{hub.url}/v1/jobs/{job.id}{path}", headers=submitter.headers, timeout=60)
        assert answer.status_code == 200, answer.text
        return answer.text

    for path in ("", "/spec", "/slices", "/events", "/why", "/attempts", "/receipts"):
        assert VALUE not in ask(path)
    assert '"API_TOKEN":""' in ask("/spec")
    assert VALUE not in hub.log_path.read_text()
    assert VALUE not in agent.log_path.read_text()
    # Nothing of it stays on the machine either.
    deadline = time.monotonic() + 20
    while list((agent.state_dir / "attempts").iterdir()) and time.monotonic() < deadline:
        time.sleep(0.2)
    kept = [path for path in agent.state_dir.rglob("*") if path.is_file()]
    assert [path for path in kept if VALUE.encode() in path.read_bytes()] == []


def test_without_a_word_of_the_operator_a_plain_sandbox_gets_no_secrets(start_hub):
    hub = start_hub()
    with Client(hub_url=hub.url, key=sign_up(hub.url).key) as client:
        with pytest.raises(InvalidSpec, match="isolation container or stronger") as refused:
            client.submit(command=["true"], secrets={"API_TOKEN": VALUE}, isolation="sandboxed")
        assert VALUE not in str(refused.value)
        # Asked for nothing, the SDK asks for what is needed.
        job = client.submit(command=["true"], secrets={"API_TOKEN": VALUE})
        assert job.job.requirements.isolation.value == "container"
        job.cancel()
