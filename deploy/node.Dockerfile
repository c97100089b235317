# The agent. Build from the root of the repository:
#   docker build -f deploy/node.Dockerfile -t computepool-node .
#
# The agent locks strangers' jobs in with bubblewrap and control groups. Inside a container that takes rights which
# containers do not have by default; deploy/README.md says which and why. Without them the agent ends at once with
# exit code 3 and says what is missing. It never runs a job without walls.

FROM debian:bookworm-slim AS build
RUN apt-get update \
 && apt-get install -y --no-install-recommends python3 python3-venv \
 && rm -rf /var/lib/apt/lists/*
RUN python3 -m venv /opt/computepool
WORKDIR /source
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY src ./src
# Without the hub's extra: an agent needs neither a web server nor a database.
RUN /opt/computepool/bin/pip install --no-cache-dir --disable-pip-version-check -c constraints.txt .

FROM debian:bookworm-slim
# bubblewrap: the walls. e2fsprogs and mount: the job's disk of a fixed size. python3: runs the agent, and runs the
# jobs, which see this image's /usr and nothing else of it.
RUN apt-get update \
 && apt-get install -y --no-install-recommends python3 ca-certificates bubblewrap e2fsprogs mount \
 && rm -rf /var/lib/apt/lists/*
COPY --from=build /opt/computepool /opt/computepool
ENV PATH=/opt/computepool/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    PYTHONUNBUFFERED=1 \
    COMPUTEPOOL_NODE_STATE_DIR=/var/lib/computepool-node
# The node's key pair, its cache and its running attempts. Losing it makes a new node of this machine.
VOLUME /var/lib/computepool-node
# Root on purpose: only root can give each job a kernel user id, a disk and a control group of its own. The job itself
# never has root: the agent drops to an unused user id before bubblewrap starts.
# The agent touches this file every few seconds; it says that the agent lives, not that the hub hears it.
HEALTHCHECK --interval=30s --timeout=5s --start-period=30s --retries=3 \
  CMD ["python3", "-c", "import os, sys, time; sys.exit(time.time() - os.stat(os.environ['COMPUTEPOOL_NODE_STATE_DIR'] + '/agent_alive').st_mtime > 60)"]
# The first SIGTERM drains: running jobs may finish for COMPUTEPOOL_NODE_DRAIN_SECONDS.
CMD ["python3", "-m", "computepool.node"]
