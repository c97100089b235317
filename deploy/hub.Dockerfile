# The hub. Build from the root of the repository:
#   docker build -f deploy/hub.Dockerfile -t computepool-hub .
#
# Two stages: the first has pip and builds the package, the second has only what runs. Both use Debian's own Python,
# so that the virtual environment fits when it is moved from one to the other.

FROM debian:bookworm-slim AS build
RUN apt-get update \
 && apt-get install -y --no-install-recommends python3 python3-venv \
 && rm -rf /var/lib/apt/lists/*
RUN python3 -m venv /opt/computepool
WORKDIR /source
# Only what the package is made of: nothing else of the working tree can get into the image. The dashboard is part of
# it if `make web` was run before.
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY src ./src
# The versions that the tests ran with.
RUN /opt/computepool/bin/pip install --no-cache-dir --disable-pip-version-check -c constraints.txt '.[hub]'

FROM debian:bookworm-slim
RUN apt-get update \
 && apt-get install -y --no-install-recommends python3 ca-certificates \
 && rm -rf /var/lib/apt/lists/*
# A named user without rights. It has a name and not only a number because PostgreSQL, should somebody use the
# embedded one in here, refuses to run as a nameless user.
RUN useradd --uid 10001 --no-create-home --home-dir /data --shell /usr/sbin/nologin computepool \
 && install -d -o computepool -g computepool -m 0750 /data
COPY --from=build /opt/computepool /opt/computepool
ENV PATH=/opt/computepool/bin:/usr/bin:/bin \
    PYTHONUNBUFFERED=1 \
    PORT=8000 \
    COMPUTEPOOL_HUB_HOST=0.0.0.0 \
    COMPUTEPOOL_HUB_DATA_DIR=/data
USER computepool
# /data holds files by their hash and, without DATABASE_URL, the embedded database: mount a volume there. It is not
# declared as one, because Railway refuses images that do; compose.yaml names it.
EXPOSE 8000
# Ready means: the database answers and the hub is not shutting down.
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s --retries=3 \
  CMD ["python3", "-c", "import os, urllib.request as u; u.urlopen('http://127.0.0.1:' + os.environ['PORT'] + '/readyz', timeout=4)"]
CMD ["python3", "-m", "computepool.hub"]
