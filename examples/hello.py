"""The smallest job: one command, its log, its end.

export HUB_URL=http://127.0.0.1:8000 COMPUTEPOOL_KEY=cpk_...
python examples/hello.py
"""

from computepool.sdk import Client

with Client() as client:
    job = client.submit(command=["sh", "-c", "echo Hello from $(nproc) cores"], name="hello")
    for text in job.logs(follow=True):
        print(text, end="")
    print("The job has", job.wait().state.value)
