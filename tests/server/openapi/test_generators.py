"""Code generators take the OpenAPI document as it is, and what they make works."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.server.openapi_document import fetch_document
from tests.server.running import Running, running

# Far fewer than operations times statuses: answers share their models.
MODELS_MAX = 140
# The binary answer of one endpoint has a type of its own, which generators are told how to read.
CLIENT_CONFIG = {"content_type_overrides": {"application/vnd.topics.frames": "application/octet-stream"}}

USE_CLIENT = """
import sys
import httpx
from made import Client
from made.api.queues import claim, get_queue, redrive
from made.api.records import append
from made.api.topics import get_topic, list_topics, put_topic
from made.models import ClaimBody, ConfigBody, ErrorEnvelope, RecordBody, RedriveBody, WriteBody

client = Client(sys.argv[1], timeout=httpx.Timeout(60))
body = ConfigBody.from_dict({"type": "queue", "max_deliveries": 1, "dead_letter": "dead"})
print(put_topic.sync("jobs", client=client, body=body).created)
body = WriteBody.from_dict({"records": [{"data": {"n": 1}}, {"data": {"n": 2}}]})
print(append.sync("jobs", client=client, body=body).last_seq)
claimed = claim.sync("jobs", client=client, body=ClaimBody(node="w"))
print(claimed.count, claimed.claimed[0].to_dict()["data"])
state = get_queue.sync("jobs", client=client)
print(state.ready, state.in_flight, state.leases[0].node, state.dead)
print(redrive.sync("jobs", client=client, body=RedriveBody(dry_run=True)).matched)
print(list_topics.sync(client=client).topics[0].queue.ready)
failed = get_topic.sync("nowhere", client=client)
print(isinstance(failed, ErrorEnvelope), failed.error.code)
"""

USE_MODELS = """
import msgspec, made_models
from made_models import ErrorEnvelope, QueueState, Redriven
print(QueueState.__struct_fields__[:3], len(made_models.__dict__) > 50)
"""


def ran(*command: str, cwd: Path) -> str:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def generated_in(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("generated")
    with running(folder / "data") as server:
        (folder / "openapi.json").write_text(json.dumps(fetch_document(server)), "utf-8")
    return folder


def test_a_generated_client_works_and_has_few_models(generated_in: Path, tmp_path: Path) -> None:
    (generated_in / "config.json").write_text(json.dumps(CLIENT_CONFIG), "utf-8")
    command = ("-m", "openapi_python_client", "generate", "--path", "openapi.json", "--config", "config.json")
    told = ran(sys.executable, *command, "--meta", "none", "--output-path", "made", cwd=generated_in)
    assert "WARNING" not in told, told
    assert len(list((generated_in / "made" / "models").glob("*.py"))) < MODELS_MAX
    with running(tmp_path) as server:
        printed = ran(sys.executable, "-c", USE_CLIENT, server.url, cwd=generated_in)
    assert printed.splitlines() == [
        "True",
        "2",
        "1 {'n': 1}",
        "1 1 w 0",
        "0",
        "1",
        "True topic_not_found",
    ]


def test_generated_models_can_be_imported(generated_in: Path) -> None:
    ran(
        *(sys.executable, "-W", "ignore", "-m", "datamodel_code_generator", "--input", "openapi.json"),
        *("--input-file-type", "openapi", "--output-model-type", "msgspec.Struct", "--output", "made_models.py"),
        cwd=generated_in,
    )
    text = (generated_in / "made_models.py").read_text("utf-8")
    assert len(re.findall(r"^class ", text, re.MULTILINE)) < MODELS_MAX
    assert ran(sys.executable, "-c", USE_MODELS, cwd=generated_in) == "('topic', 'ready', 'in_flight') True\n"


def test_no_schema_has_a_form_that_generators_refuse(server: Running) -> None:
    text = json.dumps(fetch_document(server))
    assert '"items": false' not in text
    assert '"allOf"' not in text
