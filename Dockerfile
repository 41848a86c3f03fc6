# Made by `topics generate dockerfile --from-source`.
#
#   docker build -t topics .
#   docker run -p 127.0.0.1:4000:4000 -v topics-data:/var/lib/topics -e TOPICS_API_KEYS=SECRET topics
#
# The server listens on every address of its container, so that it needs keys.

ARG PYTHON=3.13
FROM python:${PYTHON}-slim AS build
# With a C compiler the hot modules are compiled, and a request needs a third less CPU.
RUN apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/*
WORKDIR /source
COPY pyproject.toml setup.py README.md LICENSE ./
COPY src ./src
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .
RUN python -m venv --without-pip /opt/topics \
    && pip --python /opt/topics/bin/python install --no-cache-dir "$(echo /wheels/*.whl)[s3,streams]"

FROM python:${PYTHON}-slim
RUN useradd --uid 10001 --no-create-home --home-dir /var/lib/topics --shell /usr/sbin/nologin topics \
    && install -d -o topics -g topics -m 0700 /var/lib/topics
COPY --from=build /opt/topics /opt/topics
ENV PATH=/opt/topics/bin:$PATH TOPICS_HOST=0.0.0.0 TOPICS_DATA_DIR=/var/lib/topics
USER topics
WORKDIR /var/lib/topics
VOLUME /var/lib/topics
EXPOSE 4000
# Not ready is not healthy: while the log is recovered, and after a failed write.
HEALTHCHECK --interval=10s --timeout=5s --start-period=10m \
    CMD ["python", "-c", "from urllib.request import urlopen; urlopen('http://127.0.0.1:4000/v0/ready', timeout=4)"]
ENTRYPOINT ["topics"]
CMD ["serve"]
