"""`topics generate`: every file is one that its program takes, and names what a server really has."""

import fnmatch
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import pytest
from prometheus_client.parser import text_string_to_metric_families
from typer.testing import CliRunner, Result

import topics
from tests.conftest import REPOSITORY
from topics.cli.generate.config_file import FOR_TESTS
from topics.cli.generate.dashboard import READ_ROUTES
from topics.cli.main import LATE, app
from topics.server.metrics import metric_families
from topics.server.settings import load_settings
from topics.server.settings_schema import ENV_PREFIX, SETTINGS, KeyList
from topics.testing.server_process import ServerProcess

# Without types of its own that the checker would know.
yaml: Final[Any] = import_module("yaml")

PAGE: Final = (REPOSITORY / "docs" / "deploy.md").read_text("utf-8")
VARIABLES: Final = {name for setting in SETTINGS for name in (setting.env, f"{setting.env}_FILE")}
NAME: Final = re.compile(r"(?<![:\w])(?:topics|process)_[a-z0-9_]+(?![:\w])")


def run(*args: object) -> Result:
    return CliRunner().invoke(app, [str(arg) for arg in args])


def made(*args: object) -> str:
    result = run("generate", *args)
    assert (result.exit_code, result.stderr) == (0, "")
    return result.stdout


def tool(name: str, package: str) -> str:
    path = shutil.which(name)
    if path is None:
        pytest.skip(f"{name} is missing; on Debian: apt-get install {package}")
    return path


def ran(*command: object, cwd: Path | None = None, **environ: str) -> str:
    """What a program says about a file of ours. It must accept the file."""
    done = subprocess.run(
        [str(part) for part in command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120,
        check=False,
        cwd=cwd,
        env=os.environ | environ,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


# Where it goes.


def test_a_file_is_written_and_replaced_only_with_force(tmp_path: Path) -> None:
    path = tmp_path / "topics.toml"
    result = run("generate", "config", "--out", path)
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", f"{path} is written\n")
    assert path.read_text() == made("config")
    path.write_text("port = 1\n")
    result = run("generate", "config", "--out", path)
    assert (result.exit_code, result.stderr) == (1, f"topics: {path} is there already; --force replaces it\n")
    assert path.read_text() == "port = 1\n"
    assert run("generate", "config", "--out", path, "--force").exit_code == 0
    assert path.read_text() == made("config")


def test_a_folder_that_is_missing_and_wrong_arguments_are_named(tmp_path: Path) -> None:
    result = run("generate", "config", "--out", tmp_path / "missing" / "file")
    assert (result.exit_code, result.stderr) == (1, f"topics: {tmp_path}/missing/file: No such file or directory\n")
    result = run("generate", "systemd", "--command", "bin/topics")
    assert result.exit_code == 1
    assert '"bin/topics" is no path that a unit can have' in result.stderr
    result = run("generate", "man", "topics-serv")
    assert result.exit_code == 1
    assert 'there is no page "topics-serv"; there are topics, topics-serve, ' in result.stderr


# Settings.


def test_the_sample_config_has_every_setting_with_its_meaning_and_its_default() -> None:
    text = made("config")
    assert load_settings({}, {}, text).origins == load_settings({}, {}, None).origins, "all are commented out"
    listed = [setting for setting in SETTINGS if not setting.name.startswith(FOR_TESTS)]
    names = "|".join(setting.name for setting in listed)
    entries = re.findall(rf"((?:^# .*\n)+)^#({names}) = (.*)$", text, re.MULTILINE)
    assert [name for _, name, _ in entries] == [setting.name for setting in listed]
    for setting, (comment, _, _) in zip(listed, entries, strict=True):
        told = " ".join(comment.replace("\n# ", " ").removeprefix("# ").split())
        assert told.startswith(setting.meaning)
        assert setting.accepted() in told
    used = load_settings({}, {}, "\n".join(f"{name} = {value}" for _, name, value in entries))
    assert set(used.origins.values()) <= {"topics.toml", "default"}
    for setting in listed:
        value, default = getattr(used.settings, setting.name), setting.make_default()
        if isinstance(value, KeyList):
            assert str(value) == str(default)
        else:
            assert value == default, setting.name


# systemd.


def test_the_unit_is_accepted_by_systemd_and_is_hardened(tmp_path: Path) -> None:
    analyze = tool("systemd-analyze", "systemd")
    run("generate", "man", "--out", tmp_path / "man")
    unit = tmp_path / "topics.service"
    # It must be a program that is there, and the pages of its Documentation= as well.
    unit.write_text(made("systemd", "--command", "/bin/true"))
    assert ran(analyze, "verify", "--man=yes", unit, MANPATH=str(tmp_path / "man")) == ""
    # The unit itself is examined, so that it needs no running systemd. 10 is a unit without any such line.
    exposure = re.search(
        r"exposure level for topics.service: ([0-9.]+)", ran(analyze, "security", "--offline=true", unit)
    )
    assert exposure is not None
    assert float(exposure[1]) < 2


def test_the_unit_names_settings_and_commands_that_there_are() -> None:
    text = made("systemd")
    assert set(re.findall(r"\bTOPICS_[A-Z_]+", text)) <= VARIABLES
    (start,) = re.findall(r"^ExecStart=/opt/topics/bin/topics (.*)$", text, re.MULTILINE)
    assert start == "serve --config /etc/topics/topics.toml"
    assert "generate config --out /etc/topics/topics.toml" in text


# Docker.


def instructions(text: str) -> list[tuple[str, str]]:
    joined = re.sub(r"\\\n\s*", "", text)
    lines = [line for line in joined.splitlines() if line and not line.startswith("#")]
    return [(line.split(" ", 1)[0], line.split(" ", 1)[1]) for line in lines]


def copied(text: str) -> list[str]:
    """The sources of each COPY from the folder of the Dockerfile."""
    lines = [rest.split() for word, rest in instructions(text) if word == "COPY" and not rest.startswith("--from")]
    return [source for line in lines for source in line[:-1]]


def is_ignored(path: str, patterns: list[str]) -> bool:
    """As Docker reads .dockerignore: the last pattern that fits decides."""
    found = False
    for pattern in patterns:
        plain = pattern.removeprefix("!").removeprefix("**/")
        parents = [path, *map(str, Path(path).parents)]
        if any(fnmatch.fnmatch(parent, plain) or fnmatch.fnmatch(Path(parent).name, plain) for parent in parents):
            found = not pattern.startswith("!")
    return found


def test_the_dockerfile_of_the_repository_is_the_generated_one() -> None:
    assert (REPOSITORY / "Dockerfile").read_text() == made("dockerfile", "--from-source"), (
        "run `topics generate dockerfile --from-source --out Dockerfile --force`"
    )


@pytest.mark.parametrize("flags", [[], ["--from-source"]])
def test_the_image_runs_a_server_as_a_plain_user(flags: list[str]) -> None:
    found = instructions(made("dockerfile", *flags))
    words = [word for word, _ in found]
    assert words.index("USER") < words.index("ENTRYPOINT")
    assert dict(found)["USER"] == "topics"
    assert [word for word, _ in found].count("FROM") == 2
    last = dict(found[len(words) - words[::-1].index("FROM") - 1 :])
    assert json.loads(last["ENTRYPOINT"]) + json.loads(last["CMD"]) == ["topics", "serve"]
    environ = dict(part.split("=", 1) for part in last["ENV"].split() if part.startswith(ENV_PREFIX))
    assert set(environ) <= VARIABLES
    loaded = load_settings({}, environ, None).settings
    assert last["EXPOSE"] == str(loaded.port)
    assert last["VOLUME"] == last["WORKDIR"] == loaded.data_dir


def test_the_wheel_builds_from_what_the_dockerfile_copies(tmp_path: Path) -> None:
    sources = copied((REPOSITORY / "Dockerfile").read_text())
    patterns = [
        line for line in (REPOSITORY / ".dockerignore").read_text().splitlines() if line and not line.startswith("#")
    ]
    for source in sources:
        assert not is_ignored(source, patterns)
        if (REPOSITORY / source).is_dir():
            shutil.copytree(
                REPOSITORY / source, tmp_path / source, ignore=shutil.ignore_patterns("__pycache__", "*.so")
            )
        else:
            shutil.copy(REPOSITORY / source, tmp_path)
    assert not is_ignored("src/topics/version.py", patterns)
    assert is_ignored("topics-data", patterns)
    assert is_ignored(".git", patterns)
    assert is_ignored("src/topics/__pycache__", patterns)
    # As in the Dockerfile, but with what builds it already there.
    (command,) = [rest for word, rest in instructions(made("dockerfile", "--from-source")) if "pip wheel" in rest]
    arguments = [part if part != "/wheels" else str(tmp_path / "wheels") for part in shlex.split(command)[1:]]
    ran(sys.executable, "-m", "pip", *arguments, "--no-build-isolation", cwd=tmp_path, TOPICS_COMPILE="0")
    (wheel,) = (tmp_path / "wheels").iterdir()
    assert wheel.name.startswith("topics_log-")
    extras = re.search(r"\*\.whl\)\[([a-z0-9,]+)\]", made("dockerfile", "--from-source"))
    assert extras is not None
    names = ran(sys.executable, "-m", "zipfile", "-l", wheel)
    assert "topics/cli/generate/app.py" in names


def test_the_compose_file_fits_the_image_and_names_settings_that_there_are() -> None:
    document = yaml.safe_load(made("compose"))
    (service,) = document["services"].values()
    assert set(service["environment"]) <= VARIABLES
    image = dict(instructions(made("dockerfile")))
    (volume,) = service["volumes"]
    name, target = volume.split(":")
    assert (name in document["volumes"], target) == (True, image["VOLUME"])
    (port,) = service["ports"]
    assert port == "127.0.0.1:4000:4000"
    assert service["environment"]["TOPICS_API_KEYS_FILE"] == f"/run/secrets/{service['secrets'][0]}"
    assert document["secrets"].keys() == set(service["secrets"])
    # A server with these settings would start: YAML would read a bare `off` as false.
    environ = {**service["environment"], "TOPICS_HOST": "0.0.0.0"}
    loaded = load_settings({}, environ, None, read_text=lambda path: "secret\n").settings
    assert (loaded.streams_port, loaded.api_keys.count) == (None, 1)


# Metrics.


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """With a topic, a queue, a group, a router, streams and a cold tier, each of which has been used."""
    with (
        ServerProcess(streams_port=0, cold_dir=str(tmp_path_factory.mktemp("cold"))) as running,
        topics.Client(running.url) as client,
    ):
        client.create("orders")
        client.create("jobs", type="queue")
        client.create_group("orders", "billing", at="start")
        client.create_router("copies", "orders", "orders.copy")
        for topic in ("orders", "jobs"):
            client.append(topic, [{"id": 1}])
        client.read("orders")
        client.claim("jobs", "w")
        client.frames("orders", 1, 1)
        with pytest.raises(topics.TopicsError):
            list(client.stream_messages("none", 1, 0))
        yield running


@pytest.fixture(scope="module")
def scraped(server: ServerProcess) -> dict[str, set[str]]:
    """The labels of each series that a scrape shows; of a family without a series none."""
    with topics.Client(server.url) as client:
        text = client.metrics()
    found: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(text):
        name = (
            family.name + "_total"
            if family.type == "counter" and f"# TYPE {family.name}_total" in text
            else family.name
        )
        found.setdefault(name, set())
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


def dashboard_queries() -> list[tuple[str, str]]:
    document = json.loads(made("grafana"))
    targets = [target for panel in document["panels"] for target in panel.get("targets", [])]
    return [(target["expr"], target["legendFormat"]) for target in targets]


def rules() -> list[dict[str, Any]]:
    document: dict[str, Any] = yaml.safe_load(made("alerts"))
    return [rule for group in document["groups"] for rule in group["rules"]]


def test_a_running_server_shows_every_metric_of_the_dashboard_and_the_alerts(scraped: dict[str, set[str]]) -> None:
    document = json.loads(made("grafana"))
    expressions = [expression for expression, _ in dashboard_queries()]
    expressions += [entry["expr"] for entry in document["annotations"]["list"]]
    expressions += [entry["definition"] for entry in document["templating"]["list"] if "definition" in entry]
    expressions += [rule["expr"] for rule in rules()]
    used = {name for expression in expressions for name in NAME.findall(expression)}
    assert used - scraped.keys() == set()
    assert len(used) > 40
    # And what the code says about its metrics is what a server shows.
    assert metric_families().keys() - scraped.keys() == set()


def test_legends_and_alerts_use_labels_that_the_metrics_have(scraped: dict[str, set[str]]) -> None:
    """`instance` is a label that Prometheus adds."""
    for expression, legend in dashboard_queries():
        shown = [scraped[name] for name in NAME.findall(expression) if scraped[name]]
        for label in set(re.findall(r"\{\{(\w+)\}\}", legend)) - {"instance"}:
            assert all(label in labels for labels in shown), (expression, legend)
    for rule in rules():
        used = set(re.findall(r"\$labels\.(\w+)", json.dumps(rule.get("annotations", {})))) - {"instance"}
        assert all(used <= scraped[name] for name in NAME.findall(rule["expr"])), rule


def test_the_routes_of_the_dashboard_are_those_of_the_server(server: ServerProcess) -> None:
    with topics.Client(server.url) as client:
        seen = set(re.findall(r'topics_request_seconds_count\{route="(\w+)"', client.metrics()))
    assert set(READ_ROUTES) <= seen


def test_the_health_check_of_the_image_follows_the_server() -> None:
    check = dict(instructions(made("dockerfile")))["HEALTHCHECK"]
    _, flag, program = json.loads(check.partition("CMD ")[2])
    with ServerProcess() as running:
        command = [sys.executable, flag, program.replace("127.0.0.1:4000", running.address)]
        assert subprocess.run(command, capture_output=True, timeout=60, check=False).returncode == 0
        running.kill()
        assert subprocess.run(command, capture_output=True, timeout=60, check=False).returncode == 1


def test_every_panel_has_a_place_a_query_and_an_explanation() -> None:
    document = json.loads(made("grafana"))
    panels = [panel for panel in document["panels"] if panel["type"] != "row"]
    places = [panel["gridPos"] for panel in document["panels"]]
    cells = [(place["x"] + x, place["y"] + y) for place in places for x in range(place["w"]) for y in range(place["h"])]
    assert len(cells) == len(set(cells)), "no two panels overlap"
    assert all(0 <= x < 24 for x, _ in cells)
    assert len({panel["id"] for panel in document["panels"]}) == len(document["panels"])
    for panel in panels:
        assert panel["targets"]
        assert len(panel["description"]) > 10
        assert panel["datasource"]["uid"] == "${datasource}"
    assert [variable["name"] for variable in document["templating"]["list"]] == ["datasource", "instance"]
    titles = {panel["title"] for panel in panels}
    assert {"Writes per second", "Reads per second", "Time of a sync", "Loss window", "Backlog of writes"} <= titles
    assert {"Ready jobs", "Age of the oldest ready job", "Lag of groups", "Lag of routers", "Memory"} <= titles


def test_prometheus_reads_the_rules_and_the_queries_of_the_dashboard(tmp_path: Path) -> None:
    promtool = tool("promtool", "prometheus")
    queries = [expression.replace("$__rate_interval", "5m") for expression, _ in dashboard_queries()]
    made_up = [{"record": f"query:{number}", "expr": expression} for number, expression in enumerate(queries)]
    (tmp_path / "queries.yml").write_text(json.dumps({"groups": [{"name": "queries", "rules": made_up}]}))
    (tmp_path / "alerts.yml").write_text(made("alerts"))
    said = ran(promtool, "check", "rules", "queries.yml", "alerts.yml", cwd=tmp_path)
    assert f"{len(queries)} rules found" in said
    assert f"{len(rules())} rules found" in said


# Of each series its values minute by minute, then the alerts that are expected after two hours.
SCENARIOS: Final = (
    (
        "a server that is well is silent",
        {
            'up{job="topics",instance="a"}': "1x130",
            'topics_ready{instance="a"}': "1x130",
            'topics_wal_read_only{instance="a"}': "0x130",
            'topics_disk_free_bytes{instance="a"}': "900x130",
            'topics_disk_total_bytes{instance="a"}': "1000x130",
            'topics_group_lag{instance="a",topic="t",group="g"}': "5000-10x130",
            'topics_queue_oldest_ready_seconds{instance="a",topic="q"}': "3x130",
            'topics_wal_fsync_seconds_bucket{instance="a",le="0.05"}': "0+100x130",
            'topics_wal_fsync_seconds_bucket{instance="a",le="+Inf"}': "0+100x130",
        },
        set[str](),
    ),
    (
        "a failed disk",
        {'topics_wal_read_only{instance="a"}': "0x100 1x30", 'topics_ready{instance="a"}': "1x100 0x30"},
        {"TopicsReadOnly", "TopicsNotReady"},
    ),
    (
        "a disk that fills, and slow syncs",
        {
            'topics_disk_free_bytes{instance="a"}': "450-1x130",
            'topics_disk_total_bytes{instance="a"}': "1000x130",
            'topics_wal_fsync_seconds_bucket{instance="a",le="0.05"}': "0x130",
            'topics_wal_fsync_seconds_bucket{instance="a",le="0.5"}': "0+100x130",
            'topics_wal_fsync_seconds_bucket{instance="a",le="+Inf"}': "0+100x130",
        },
        {"TopicsDiskFullSoon", "TopicsSlowSyncs"},
    ),
    (
        "workers and readers that are gone",
        {
            'topics_queue_oldest_ready_seconds{instance="a",topic="q"}': "0+60x130",
            'topics_topic_queue_dead_lettered_total{instance="a",topic="q"}': "0x115 1x15",
            'topics_group_lag{instance="a",topic="t",group="g"}': "0+100x130",
            'topics_router_lag{instance="a",router="r"}': "5000x130",
            'up{job="topics",instance="b"}': "0x130",
        },
        {"TopicsQueueOld", "TopicsDeadLetters", "TopicsGroupBehind", "TopicsRouterBehind", "TopicsDown"},
    ),
)


def test_alerts_fire_when_they_should_and_only_then(tmp_path: Path) -> None:
    promtool = tool("promtool", "prometheus")
    (tmp_path / "alerts.yml").write_text(made("alerts"))
    names = [rule["alert"] for rule in rules() if "alert" in rule]
    tests = []
    for title, series, fired in SCENARIOS:
        expected = [f'ALERTS{{alertname="{name}",alertstate="firing"}}' for name in sorted(fired)]
        tests.append(
            {
                "name": title,
                "interval": "1m",
                "input_series": [{"series": name, "values": values} for name, values in series.items()],
                "promql_expr_test": [
                    {
                        "expr": 'count by (alertname, alertstate) (ALERTS{alertstate="firing"})',
                        "eval_time": "2h",
                        "exp_samples": [{"labels": labels.removeprefix("ALERTS"), "value": 1} for labels in expected],
                    }
                ],
            }
        )
        assert fired <= set(names)
    document = {"rule_files": ["alerts.yml"], "evaluation_interval": "1m", "tests": tests}
    (tmp_path / "tests.yml").write_text(json.dumps(document))
    assert "SUCCESS" in ran(promtool, "test", "rules", "tests.yml", cwd=tmp_path)


# Manual pages.


def test_every_command_and_setting_has_its_page(tmp_path: Path) -> None:
    result = run("generate", "man", "--out", tmp_path)
    assert result.exit_code == 0
    pages = {path.name: path.read_text() for path in tmp_path.glob("man*/*")}
    assert {f"topics-{name}.1" for name in LATE} | {"topics.1", "topics.toml.5", "topics-verify.1"} <= pages.keys()
    assert made("man") == pages["topics.1"]
    assert made("man", "topics-serve") == pages["topics-serve.1"]
    for setting in SETTINGS:
        assert setting.name in pages["topics.toml.5"]
        assert setting.flag.replace("-", "\\-") in pages["topics-serve.1"]
    assert "topics queue redrive" in pages["topics-queue.1"]


def test_manual_pages_are_shown_without_a_warning(tmp_path: Path) -> None:
    run("generate", "man", "--out", tmp_path)
    pages = sorted(tmp_path.glob("man*/*"))
    mandoc = tool("mandoc", "mandoc")
    done = subprocess.run([mandoc, "-T", "lint", "-W", "warning", *pages], capture_output=True, text=True, check=False)
    # Pages have no date, so that the same version makes the same pages.
    findings = [line for line in done.stdout.splitlines() if 'missing date, using ""' not in line]
    assert [line for line in findings if "STYLE" not in line] == []
    if shutil.which("man") is not None:
        assert ran(
            "man", "--warnings", "-l", tmp_path / "man1" / "topics-queue.1", MANWIDTH="100", LC_ALL="C"
        ).isascii()


# The page.


def test_the_page_of_the_docs_has_every_command_and_a_config_that_prometheus_reads(tmp_path: Path) -> None:
    for name in ("config", "systemd", "dockerfile", "compose", "grafana", "alerts", "man"):
        assert f"`topics generate {name}`" in PAGE
    (config,) = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    document = yaml.safe_load(config)
    (job,) = document["scrape_configs"]
    assert (job["job_name"], job["metrics_path"]) == ("topics", "/v0/metrics")
    assert any(f'job="{job["job_name"]}"' in rule["expr"] for rule in rules())
    promtool = tool("promtool", "prometheus")
    (tmp_path / "prometheus.yml").write_text(config)
    ran(promtool, "check", "config", "--syntax-only", tmp_path / "prometheus.yml")
