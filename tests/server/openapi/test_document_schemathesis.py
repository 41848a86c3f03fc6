"""Thousands of requests made from the OpenAPI document: the server answers all of them as the document says."""

from pathlib import Path

import pytest

from tests.conftest import FULL, SEED
from tests.server.openapi_document import ask
from tests.server.running import running
from tests.server.schemathesis_run import run


@pytest.mark.timeout(1800 if FULL else 600)
def test_answers_to_generated_requests_conform_to_the_document(tmp_path: Path) -> None:
    with running(tmp_path) as server:
        summary = run(
            server,
            cases_max=600 if FULL else 5,
            seed=SEED,
        )
        assert ask(server, "GET", "/v0/ready").status == 200
    print(summary)
    assert not summary.failures, str(summary)
    # Every operation was tried, with valid and invalid requests.
    assert summary.cases.total() > 1000
    assert {200, 201, 400, 404, 405, 409, 415} <= summary.statuses.keys()
