# pcr_ray for `docker run` and for KubeRay, head and workers alike.
#   docker build -t pcr-ray --build-arg VERSION=0.1.0 --build-arg COMMIT="$(git rev-parse HEAD)" .
# The package index's torch is the CUDA build (the image has about 7 GB); for the CPU build name the index that has it:
#   docker build -t pcr-ray:cpu --build-arg PIP_OPTIONS="--extra-index-url URL" .
FROM python:3.11-slim

# More packages of Debian, such as g++ for sweeps with --compile.
ARG APT_EXTRA=""
# KubeRay's probes run wget in bash. Debian keeps no old versions, so pinning them would break the build.
# hadolint ignore=DL3008,SC2086
RUN apt-get update \
 && apt-get install --yes --no-install-recommends bash ca-certificates wget ${APT_EXTRA} \
 && rm -rf /var/lib/apt/lists/* \
 && useradd --uid 1000 --user-group --create-home pcr

ENV PIP_NO_CACHE_DIR=1 \
    PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PIP_ROOT_USER_ACTION=ignore \
    PYTHONUNBUFFERED=1 \
    RAY_USAGE_STATS_ENABLED=0 \
    MLFLOW_DISABLE_TELEMETRY=true

# Options of pip, such as the index to take torch from.
ARG PIP_OPTIONS=""
WORKDIR /src

# The dependencies alone: this layer is built again only when they change, not with every line of code.
COPY pyproject.toml constraints.txt ./
# hadolint ignore=SC2086
RUN python -c "import tomllib; t = tomllib.load(open('pyproject.toml', 'rb')); p = t['project']; \
x = p['optional-dependencies']; need = [t['build-system']['requires'], p['dependencies'], x['cluster'], x['postgres']]; \
print(*sum(need, []), sep='\n')" > requirements.txt \
 && pip install ${PIP_OPTIONS} -c constraints.txt -r requirements.txt

COPY README.md ./
COPY pcr_ray ./pcr_ray
COPY trainables ./trainables
# What builds it is there already: this needs no index.
RUN pip install -c constraints.txt --no-deps --no-build-isolation .

# A number, so that Kubernetes can see that it is not root.
USER 1000:1000
WORKDIR /home/pcr
COPY --chown=1000:1000 sweeps ./sweeps

ARG VERSION=unknown
ARG COMMIT=unknown
LABEL org.opencontainers.image.title="pcr_ray" \
      org.opencontainers.image.description="Online continual-learning studies on Ray" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${COMMIT}"

# Where Kubernetes runs it, KubeRay's own probes take this one's place.
HEALTHCHECK --interval=10m --timeout=2m --start-period=1m --retries=2 CMD ["pcr-ray", "check"]
CMD ["pcr-ray", "--help"]
