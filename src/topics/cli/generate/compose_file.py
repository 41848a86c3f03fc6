"""A file for Docker Compose."""

from typing import Final

from topics.cli.generate.image import DATA_DIR, PORT, USER_ID
from topics.server.settings_schema import SETTINGS, STREAMS_PORT_USUAL
from topics.version import VERSION

_SETTING: Final = {setting.name: setting for setting in SETTINGS}

_FILE: Final = """# Made by `topics generate compose`. Before the first start, beside this file:
#   topics generate dockerfile --out Dockerfile
#   openssl rand -hex 32 > topics-api-keys
#   sudo chown {user_id} topics-api-keys && sudo chmod 400 topics-api-keys
# Compose mounts the file of the keys as it is: the user of the container, {user_id}, must be able to read it.

services:
  topics:
    build: .
    image: topics:{version}
    restart: unless-stopped
    ports:
      # Only this machine. For others: TLS ({tls_cert}, {tls_key}) or a proxy with TLS, and "{port}:{port}".
      - "127.0.0.1:{port}:{port}"
    environment:
      {api_keys}_FILE: /run/secrets/topics-api-keys
      # For clients of Apache Iggy: {streams_port}: {streams_usual}, IGGY_ROOT_USERNAME and IGGY_ROOT_PASSWORD,
      # and that port above.
    secrets:
      - topics-api-keys
    volumes:
      - topics-data:{data_dir}
    # A stop gives requests ten seconds, then writes a checkpoint.
    stop_grace_period: 2m
    read_only: true
    tmpfs:
      - /tmp
    cap_drop:
      - ALL
    security_opt:
      - no-new-privileges:true
    ulimits:
      nofile: 1048576

secrets:
  topics-api-keys:
    file: ./topics-api-keys

volumes:
  topics-data:
"""


def compose_file() -> str:
    return _FILE.format(
        version=VERSION,
        port=PORT,
        data_dir=DATA_DIR,
        user_id=USER_ID,
        streams_usual=STREAMS_PORT_USUAL,
        **{name: _SETTING[name].env for name in ("api_keys", "streams_port", "tls_cert", "tls_key")},
    )
