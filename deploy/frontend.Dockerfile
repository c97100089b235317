# The dashboard on an address of its own. Build from the root of the repository:
#   docker build -f deploy/frontend.Dockerfile -t computepool-frontend .
#
# The hub can serve the dashboard itself (make web before its image is built); this one is for those who keep pages and
# hub apart. Three stages: Node builds the pages, Python hashes their scripts for the policy, nginx serves them.

FROM node:20-bookworm-slim AS build
WORKDIR /source/web
COPY web/package.json web/package-lock.json web/.npmrc ./
RUN npm ci --no-audit --no-fund
COPY web ./
# The client's types are made from it.
COPY docs/reference/openapi.json /source/docs/reference/openapi.json
RUN npm run generate && NEXT_TELEMETRY_DISABLED=1 npm run build

FROM debian:bookworm-slim AS pack
RUN apt-get update \
 && apt-get install -y --no-install-recommends python3 \
 && rm -rf /var/lib/apt/lists/*
COPY scripts/pack_site.py /source/scripts/pack_site.py
COPY --from=build /source/web/out /source/out
RUN python3 /source/scripts/pack_site.py /source/out --to /site --nginx /policies.conf

FROM debian:bookworm-slim
RUN apt-get update \
 && apt-get install -y --no-install-recommends nginx-light \
 && rm -rf /var/lib/apt/lists/*
RUN useradd --uid 10002 --no-create-home --home-dir /tmp --shell /usr/sbin/nologin frontend
COPY deploy/frontend.nginx.conf /etc/frontend/nginx.conf
COPY --from=pack /policies.conf /etc/frontend/policies.conf
COPY --from=pack /site /site
# The hub as this container reaches it.
ENV HUB_URL=http://backend:8000
USER frontend
EXPOSE 8080
HEALTHCHECK --interval=10s --timeout=5s --start-period=20s --retries=3 \
  CMD ["bash", "-c", "exec 3<>/dev/tcp/127.0.0.1/8080 && printf 'HEAD / HTTP/1.0\\r\\n\\r\\n' >&3 && head -1 <&3 | grep -q ' 200 '"]
# nginx reads no environment: the address is written into its file at every start.
CMD ["sh", "-c", "sed \"s#http://backend:8000#${HUB_URL%/}#\" /etc/frontend/nginx.conf > /tmp/nginx.conf && exec nginx -e stderr -c /tmp/nginx.conf -g 'daemon off;'"]
