"""The names of state logs. A directory with one of them is a data directory of the partitioned engine."""

from typing import Final

STATE_FOLDER: Final = "state"

# By flavour, below the data directory.
STATE_LOGS: Final = {"page": "state.messages", "iggy": f"{STATE_FOLDER}/log"}
