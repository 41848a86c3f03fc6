"""Options of jobs: what is declared can be told on a command line, and what cannot be meant is refused at once."""

from dataclasses import MISSING, fields
from typing import Any

import pytest

from topics.limits import MIB
from topics.spark.errors import BadOption
from topics.spark.jobs.job_options import (
    JOBS,
    ArchiveOptions,
    CompactOptions,
    ImportOptions,
    Job,
    ReencodeOptions,
    ReplayOptions,
    RestoreOptions,
    VacuumOptions,
)
from topics.spark.jobs.option_schema import declared_options


@pytest.mark.parametrize("job", JOBS, ids=lambda job: job.name)
def test_every_declared_option_has_a_help_text_a_flag_of_its_own_and_a_default_that_can_be_written(job: Job) -> None:
    options = list(declared_options(job.options))
    assert all(option.about.help.endswith(".") for option in options)
    flags = [option.flag for option in options if not option.about.is_argument]
    assert len(flags) == len(set(flags))
    for option in options:
        form = option.about.form
        if form is not None and form.collect is None and option.default not in (None, MISSING, {}):
            assert option.parse(form.show(option.default)) == option.default


@pytest.mark.parametrize("job", JOBS, ids=lambda job: job.name)
def test_the_help_of_a_job_is_its_docstring_with_an_example(job: Job) -> None:
    assert f"topics pipeline {job.name} " in (job.options.__doc__ or "")


def test_a_member_that_is_not_for_the_command_line_has_a_default() -> None:
    for job in JOBS:
        declared = {option.name for option in declared_options(job.options)}
        for member in fields(job.options):
            has_default = member.default is not MISSING or member.default_factory is not MISSING
            assert member.name in declared or has_default, f"{job.name}: {member.name}"


@pytest.mark.parametrize(
    ("kind", "given", "message"),
    [
        (ImportOptions, {"paths": ("a.json",)}, "give --topic or --topic-expr"),
        (ImportOptions, {"paths": ("a.json",), "topic": "t", "topic_expression": "x"}, "give --topic or --topic-expr"),
        (
            ImportOptions,
            {"paths": ("a.json",), "topic": "t", "data": "a", "data_text": "b"},
            "give --data or --data-text, not both",
        ),
        (ArchiveOptions, {"lake": "l", "path": "p", "seal": True}, "only a server can seal segments"),
        (VacuumOptions, {"lake": "l", "older_than_ms": 1000}, "younger than an hour"),
        (ReplayOptions, {"source": "a", "target": "a"}, 'topic "a" would get its own records a second time'),
        (RestoreOptions, {"path": "x"}, "give --to or --into-dir"),
        (RestoreOptions, {"target": "x"}, "give --lake or --path"),
        (RestoreOptions, {"lake": "l", "target": "x"}, "give --topic: it names the topic of the lake"),
        (CompactOptions, {}, "give --purge or --latest-by-tag"),
        (CompactOptions, {"latest_by_tag": True, "topics": ("a", "b")}, "takes one --topic, and --into"),
        (ReencodeOptions, {"source": "a", "target": "b", "decrypt": True, "target_key_env": "K"}, "leave out one"),
    ],
)
def test_options_that_do_not_go_together_are_refused(kind: type[Any], given: dict[str, Any], message: str) -> None:
    with pytest.raises(BadOption, match=message):
        kind(**given)


def written(kind: type[Any], name: str, given: Any) -> Any:
    (option,) = (option for option in declared_options(kind) if option.name == name)
    return option.parse(given)


def test_values_are_read_from_text() -> None:
    by_name = {job.name: job.options for job in JOBS}
    assert written(by_name["import"], "chunk_bytes", "64m") == 64 * MIB
    assert written(by_name["import"], "options_of_format", ["sep=;", "header=true"]) == {"sep": ";", "header": "true"}
    assert written(by_name["replay"], "as_of_ms", "2026-01-31T08:00:00Z") == 1_769_846_400_000
    assert written(by_name["replay"], "as_of_ms", "17") == 17
    assert written(by_name["restore"], "topic_config", '{"ttl_ms": 1}') == {"ttl_ms": 1}
    assert written(by_name["vacuum"], "older_than_ms", "12h") == 43_200_000
    assert written(by_name["sql"], "inputs", ["a=topic:x", "b=lake:y"]) == (("a", "topic:x"), ("b", "lake:y"))
    assert written(by_name["sql"], "input_options", ["a.tag=x", "a.node=n"]) == {"a": {"tag": "x", "node": "n"}}
