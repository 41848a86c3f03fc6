"""What a job reads is looked up before Java is started."""

from pathlib import Path

import pytest

from tests.spark.lakes import NOW_MS, archived
from tests.spark.world import world
from topics.errors import TopicNotFound, TopicsError
from topics.spark.errors import BadOption
from topics.spark.jobs.job_options import (
    ArchiveOptions,
    ImportOptions,
    ReplayOptions,
    RestoreOptions,
    SqlOptions,
    StatsOptions,
    VerifyOptions,
)
from topics.spark.jobs.sources import require_sources
from topics.spark.lake.lake import open_lake
from topics.spark.lake.state import LakeNotFound


def test_a_missing_topic_a_missing_lake_and_a_dead_server_are_told_at_once(tmp_path: Path) -> None:
    lake = str(tmp_path / "lake")
    made = open_lake(lake, must_exist=False)
    made.commit("test", [archived(made, 1, 10)], now_ms=NOW_MS)
    nowhere = str(tmp_path / "nowhere")
    with world(tmp_path) as place:
        url = place.url
        for sound in (
            ArchiveOptions(endpoint=url, lake=nowhere, topics=("t",)),
            SqlOptions(endpoint=url, query="q", inputs=(("a", "topic:t"), ("b", f"lake:{lake}")), into="topic:new"),
            VerifyOptions(lakes=(lake,)),
            RestoreOptions(endpoint=url, lake=lake, topic="a", target="new"),
            StatsOptions(path=nowhere),
        ):
            require_sources(sound)
        for missing in (
            ArchiveOptions(endpoint=url, lake=nowhere, topics=("x",)),
            StatsOptions(endpoint=url, topics=("x",)),
            ReplayOptions(endpoint=url, source="x", target="t"),
            SqlOptions(endpoint=url, query="q", inputs=(("a", "topic:x"),)),
        ):
            with pytest.raises(TopicNotFound, match='topic "x" does not exist'):
                require_sources(missing)
        for no_lake in (
            VerifyOptions(lakes=(nowhere,)),
            SqlOptions(query="q", inputs=(("a", f"lake:{nowhere}"),)),
            RestoreOptions(endpoint=url, lake=nowhere, topic="a", target="new"),
        ):
            with pytest.raises(LakeNotFound, match=f"there is no lake at {nowhere}"):
                require_sources(no_lake)
        for no_schema in (
            SqlOptions(endpoint=url, query="q", inputs=(("a", "topic:t"),), schemas={"a": "id nonsense"}),
            ImportOptions(endpoint=url, paths=("a.csv",), topic="t", schema="id nonsense"),
        ):
            with pytest.raises(BadOption, match="at 'nonsense': must be a type"):
                require_sources(no_schema)
    with pytest.raises(TopicsError, match=r"127\.0\.0\.1"):
        require_sources(StatsOptions(endpoint="http://127.0.0.1:1"))
