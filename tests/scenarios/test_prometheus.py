"""What Prometheus makes of a metrics page, and of the files in examples/monitoring."""

from __future__ import annotations

import json
import re
import runpy
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from meshmsg import Monitor, Peer, Stream
from tests.support import processes
from tests.support.ports import free_port
from tests.support.tools import need
from tests.support.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "examples" / "monitoring"
TOKEN = "0123456789abcdef0123"
HOSTILE = 'x"}\\{<script>'


def promtool(*arguments: str | Path, stdin: str = "") -> str:
    (program,) = need("promtool")
    done = subprocess.run(
        [program, *arguments], input=stdin, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.mark.parametrize(
    "what",
    [("check", "config", "prometheus.yml"), ("test", "rules", "rules_test.yml")],
    ids=lambda what: " ".join(what),
)
def test_rules_and_configuration_are_good(what: tuple[str, str, str]) -> None:
    assert "SUCCESS" in promtool(*what[:2], FOLDER / what[2])


def names() -> set[str]:
    from meshmsg.spark_sink.sink.metrics import OUTPUT, WHOLE

    documented = runpy.run_path(str(ROOT / "docs" / "refresh.py"))["metrics"]()
    found = (*documented, *OUTPUT.values(), *WHOLE.values())
    ends = ("_bucket", "_sum", "_count")
    parts = {f"{one.name}{end}" for one in found if one.kind == "histogram" for end in ends}
    return {metric.shown for metric in found} | parts


@pytest.mark.parametrize("file", ["rules.yml", "rules_test.yml", "dashboard.json"])
def test_metrics_that_are_asked_for_exist(file: str) -> None:
    text = (FOLDER / file).read_text(encoding="utf-8")
    used = set(re.findall(r"\bmeshmsg_\w+", text))
    assert used
    assert used - names() == set()


def test_every_alert_says_what_to_do() -> None:
    rules = (FOLDER / "rules.yml").read_text(encoding="utf-8")
    alerts = re.findall(r"- alert: (\w+)", rules)
    page = (ROOT / "docs" / "monitoring.md").read_text(encoding="utf-8")
    assert len(alerts) > 15
    assert re.findall(r"^\| `(Meshmsg\w+)` \|", page, re.M) == sorted(alerts, key=alerts.index)
    tested = (FOLDER / "rules_test.yml").read_text(encoding="utf-8")
    assert len(set(re.findall(r"alertname: (\w+)", tested))) >= 8


def test_counters_that_alerts_are_about_are_there_before_they_count() -> None:
    from meshmsg.monitor.answers import COUNTERS
    from meshmsg.monitor.peer_metrics import ALERTED

    rules = (FOLDER / "rules.yml").read_text(encoding="utf-8")
    asked = {
        word for found in re.findall(r'counter=~?"([\w|]+)"', rules) for word in found.split("|")
    }
    assert asked - {*ALERTED, *COUNTERS} == set()


def test_the_dashboard_is_whole() -> None:
    board = json.loads((FOLDER / "dashboard.json").read_text(encoding="utf-8"))
    numbers = [panel["id"] for panel in board["panels"]]
    assert len(set(numbers)) == len(numbers) > 10
    assert all(target["expr"] for panel in board["panels"] for target in panel["targets"])


def test_the_metrics_pass_the_linter() -> None:
    with Peer("a", streams=[Stream("a.**")], monitor="127.0.0.1:0") as peer:
        peer.publish("a.b", 1)
        with urllib.request.urlopen("http://{}:{}/metrics".format(*peer.monitor.address)) as answer:
            promtool("check", "metrics", stdin=answer.read().decode())


def test_a_real_prometheus_scrapes_a_peer(tmp_path: Path) -> None:
    """With a token, hostile names, and every expression of the rules and the dashboard."""
    (program,) = need("prometheus")
    token = tmp_path / "token"
    token.write_text(TOKEN)
    port = free_port()
    monitor = Monitor("127.0.0.1:0", token=TOKEN)
    with (
        Peer("shop", streams=[Stream("orders.**")], monitor=monitor) as shop,
        Peer("desk", connect=shop.address) as desk,
        desk.subscribe("**", name=HOSTILE) as events,
    ):
        shop.wait_for_subscribers("orders.x", timeout=30)
        for n in range(7):
            shop.publish("orders.x", n)
            assert events.get(timeout=30) is not None
        host, at = shop.monitor.address
        (tmp_path / "prometheus.yml").write_text(
            "scrape_configs:\n- job_name: meshmsg\n  scrape_interval: 200ms\n"
            "  scrape_timeout: 200ms\n  authorization: {credentials_file: token}\n"
            f"  static_configs: [{{targets: ['{host}:{at}']}}]\n"
            f"rule_files: [{str(FOLDER / 'rules.yml')!r}]\n"
        )
        process = processes.start(
            [
                program,
                f"--config.file={tmp_path / 'prometheus.yml'}",
                f"--storage.tsdb.path={tmp_path / 'data'}",
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

        def ask(path: str, **query: str) -> Any:
            words = urllib.parse.urlencode(query)
            try:
                url = f"http://127.0.0.1:{port}/api/v1/{path}?{words}"
                with urllib.request.urlopen(url, timeout=30) as answer:
                    return json.load(answer)["data"]
            except urllib.error.HTTPError as error:
                with error:
                    if error.code == 503:  # it is starting
                        return {"result": []}
                    raise AssertionError(f"{path} {query}: {error.read().decode()}") from None
            except OSError:
                return {"result": []}

        def found(expression: str) -> list[Any]:
            return list(ask("query", query=expression)["result"])

        try:
            wait_until(lambda: found("meshmsg_stream_events_total == 7"), 60)
            assert found('up{job="meshmsg"}')[0]["value"][1] == "1"
            assert found("meshmsg_peer_info")[0]["metric"]["peer"] == "shop"
            (reader,) = found("meshmsg_subscriber_attached")
            assert HOSTILE in reader["metric"]["subscription"]
            (target,) = ask("targets")["activeTargets"]
            assert (target["health"], target["lastError"]) == ("up", "")
            rules = [rule for group in ask("rules")["groups"] for rule in group["rules"]]
            board = json.loads((FOLDER / "dashboard.json").read_text(encoding="utf-8"))
            asked = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
            for expression in (*asked, *(rule["query"] for rule in rules)):
                written = expression.replace("$__rate_interval", "1m").replace("$instance", ".*")
                ask("query", query=written)
        finally:
            process.terminate()
            process.wait(30)
