"""A Dockerfile: one stage builds, the other has the result only."""

from typing import Final

from topics.server.settings_schema import SETTINGS
from topics.version import VERSION

DATA_DIR: Final = "/var/lib/topics"
EXTRAS: Final = "s3,streams"
USER_ID: Final = 10001

_SETTING: Final = {setting.name: setting for setting in SETTINGS}
PORT: Final[int] = _SETTING["port"].make_default()

# What `pip wheel` needs of the repository: see pyproject.toml.
_FROM_SOURCE: Final = """# With a C compiler the hot modules are compiled, and a request needs a third less CPU.
RUN apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/*
WORKDIR /source
COPY pyproject.toml setup.py README.md LICENSE ./
COPY src ./src
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .
RUN python -m venv --without-pip /opt/topics \\
    && pip --python /opt/topics/bin/python install --no-cache-dir "$(echo /wheels/*.whl)[{extras}]"
"""

_FROM_INDEX: Final = """RUN python -m venv --without-pip /opt/topics \\
    && pip --python /opt/topics/bin/python install --no-cache-dir 'topics-log[{extras}]=={version}'
"""

_FILE: Final = """# Made by `topics generate dockerfile{flag}`.
#
#   docker build -t topics .
#   docker run -p 127.0.0.1:{port}:{port} -v topics-data:{data_dir} -e {keys}=SECRET topics
#
# The server listens on every address of its container, so that it needs keys.

ARG PYTHON=3.13
FROM python:${{PYTHON}}-slim AS build
{build}
FROM python:${{PYTHON}}-slim
RUN useradd --uid {user_id} --no-create-home --home-dir {data_dir} --shell /usr/sbin/nologin topics \\
    && install -d -o topics -g topics -m 0700 {data_dir}
COPY --from=build /opt/topics /opt/topics
ENV PATH=/opt/topics/bin:$PATH {host}=0.0.0.0 {data}={data_dir}
USER topics
WORKDIR {data_dir}
VOLUME {data_dir}
EXPOSE {port}
# Not ready is not healthy: while the log is recovered, and after a failed write.
HEALTHCHECK --interval=10s --timeout=5s --start-period=10m \\
    CMD ["python", "-c", "from urllib.request import urlopen; urlopen('http://127.0.0.1:{port}/v0/ready', timeout=4)"]
ENTRYPOINT ["topics"]
CMD ["serve"]
"""


def image_file(*, from_source: bool) -> str:
    build = (_FROM_SOURCE if from_source else _FROM_INDEX).format(extras=EXTRAS, version=VERSION)
    return _FILE.format(
        flag=" --from-source" if from_source else "",
        build=build,
        port=PORT,
        data_dir=DATA_DIR,
        user_id=USER_ID,
        keys=_SETTING["api_keys"].env,
        host=_SETTING["host"].env,
        data=_SETTING["data_dir"].env,
    )
