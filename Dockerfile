# A worker, or `fairlane serve`, in a small image. It runs as a user without rights, in the folder of your handlers.
#
#   docker build -t fairlane .
#   docker run --init -e FAIRLANE_REDIS=redis://HOST:6379 -v "$PWD/handlers.py:/app/handlers.py:ro" \
#       fairlane --handler handlers:shout
#
# Your own image: FROM fairlane, then `COPY handlers.py /app/`. To install packages, use USER root
# before and USER 10001:10001 behind `RUN pip install ...`.
#
# `docker stop -t 60` gives a worker a minute to finish what it holds. Its work is not lost if the
# time is too short: it runs again elsewhere.

ARG BASE=python:3.13.5-slim-bookworm@sha256:4c2cf9917bd1cbacc5e9b07320025bdb7cdf2df7b0ceaccb55e9dd7e30987419

FROM ${BASE} AS install
WORKDIR /source
COPY pyproject.toml README.md LICENSE ./
COPY src src
COPY lua lua
RUN python -m pip install --no-cache-dir --prefix /installed ".[web]"

FROM ${BASE}
COPY --from=install /installed /usr/local
COPY docker/health.py /usr/local/lib/fairlane/health.py
# The health port is 7101 of the container's own address, which other workers can reach.
ENV PYTHONUNBUFFERED=1 FAIRLANE_WORKER_ID=:7101
WORKDIR /app
# A number, because Kubernetes compares it (runAsNonRoot), and the image needs no entry for it.
USER 10001:10001
EXPOSE 7101
HEALTHCHECK --interval=10s --timeout=5s --start-period=20s CMD ["python", "/usr/local/lib/fairlane/health.py"]
ENTRYPOINT ["rq-worker"]
