"""The last results of jobs, where others can see them: a record in a topic of the server (`--report-to TOPIC`).

The web console shows the topic `pipeline.reports`. A record has the members of the report, when the job ended, and the
options that were given. Its tag is the name of the job. Rows of a query are left out, and so is whatever may be secret.
"""

from dataclasses import MISSING, fields
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from topics.cli.output import message

if TYPE_CHECKING:
    from topics.cli.pipeline.frame import CommonOptions
    from topics.errors import TopicsError
    from topics.spark.jobs.job import Report

FINDINGS_MAX: Final = 20
# Settings of Spark may have keys of a store; the others say where a key is.
_LEFT_OUT: Final = frozenset({"conf", "token", "token_env", "token_file", "endpoint"})


def leave_report(common: "CommonOptions", options: Any, report: "Report") -> None:
    """Appends the report to the topic that was asked for. A failure is told, and changes nothing else."""
    members = report.members()
    members["detail"] = {name: value for name, value in members["detail"].items() if name != "rows"}
    members["findings_total"] = len(report.findings)
    members["findings"] = members["findings"][:FINDINGS_MAX]
    _leave(common, options, members)


def leave_failure(common: "CommonOptions", options: Any, job: str, error: "TopicsError") -> None:
    """The same for a job that ended with an error."""
    from topics.spark.jobs.job import exit_code_of

    _leave(common, options, {"job": job, "exit_code": exit_code_of(error), "error": error.message})


def _leave(common: "CommonOptions", options: Any, members: dict[str, Any]) -> None:
    if common.report_to is None:
        return
    from topics.errors import TopicsError
    from topics.results import NewRecord
    from topics.spark.jobs.connection import Connection

    ended_at = datetime.now(UTC).isoformat(timespec="milliseconds")
    record = NewRecord({**members, "ended_at": ended_at, "options": _given(options)}, tag=members["job"])
    connection = Connection(endpoint=common.endpoint, token_env=common.token_env, token_file=common.token_file)
    try:
        with connection.client() as client:
            client.with_options(deadline_s=10).append(common.report_to, [record])
    except TopicsError as error:
        message(f"topics: the report is not in the topic {common.report_to}: {error.message}")


def _given(options: Any) -> dict[str, Any]:
    """The options that are not their defaults, as text."""
    given = {}
    for member in fields(options):
        value = getattr(options, member.name)
        default = member.default if member.default_factory is MISSING else member.default_factory()
        if member.name not in _LEFT_OUT and value != default:
            given[member.name] = _shown(value)
    return given


def _shown(value: Any) -> int | str:
    if isinstance(value, tuple | list):
        return ",".join(map(str, value))
    return value if isinstance(value, int | str) else str(value)
