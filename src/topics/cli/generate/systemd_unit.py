"""A unit for systemd. The service has a user of its own, and can write only to its data directory."""

from typing import Final

from topics.server.settings_schema import SETTINGS

CONFIG_PATH: Final = "/etc/topics/topics.toml"
_ENV: Final = {setting.name: setting.env for setting in SETTINGS}

_UNIT: Final = """# Made by `topics generate systemd`. Before the first start:
#   useradd --system --no-create-home --home-dir /var/lib/topics --shell /usr/sbin/nologin topics
#   install -d -m 0750 -g topics /etc/topics
#   {command} generate config --out {config}
#   systemctl daemon-reload && systemctl enable --now topics

[Unit]
Description=topics, a durable event log
Documentation=man:topics-serve(1) man:topics.toml(5)
Wants=network-online.target
After=network-online.target

[Service]
Type=exec
User=topics
Group=topics
ExecStart={command} serve --config {config}
# Keys, limits and the log level are read again: `systemctl reload topics`.
ExecReload=/bin/kill -HUP $MAINPID
# This wins over `data_dir` in {config}.
Environment={data_dir}=%S/topics
StateDirectory=topics
StateDirectoryMode=0700
WorkingDirectory=%S/topics
Restart=on-failure
RestartSec=2
# A stop gives requests ten seconds, then writes a checkpoint. Only the main process is told: it ends the others itself.
KillMode=mixed
TimeoutStopSec=120
LimitNOFILE=1048576

# The service can write to its data directory and to nothing else. A cold tier in a folder needs ReadWritePaths=FOLDER.
UMask=0077
ProtectSystem=strict
ProtectHome=yes
PrivateTmp=yes
PrivateDevices=yes
PrivateMounts=yes
ProtectProc=invisible
ProtectClock=yes
ProtectControlGroups=yes
ProtectHostname=yes
ProtectKernelLogs=yes
ProtectKernelModules=yes
ProtectKernelTunables=yes
RemoveIPC=yes

# It gets no rights that its user does not have.
NoNewPrivileges=yes
PrivateUsers=yes
CapabilityBoundingSet=
AmbientCapabilities=
LockPersonality=yes
RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
SystemCallArchitectures=native
SystemCallErrorNumber=EPERM
SystemCallFilter=@system-service
SystemCallFilter=~@privileged

[Install]
WantedBy=multi-user.target
"""


def systemd_unit(command: str) -> str:
    return _UNIT.format(command=command, config=CONFIG_PATH, data_dir=_ENV["data_dir"])
