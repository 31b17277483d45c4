# SPDX-License-Identifier: Apache-2.0
"""Verifies /metrics of all three services: the text is valid (promtool, or our own strict reader), what a run does moves
the metrics that say so, each of a store's faults moves its counter, series do not grow, and docs/metrics.md is what the
tables say. Also the log as JSON with run, stage, step and attempt."""
import json
import os
import re
import signal
import subprocess
import sys

import ballast
import prometheus
from ballast import Service, small_inline, wait_until, write_job

METRICS = ("--metrics-listen", "127.0.0.1:0")


def metrics_address(service):
    found = re.search(r"metrics on http://(\S+)/metrics", service.log())
    assert found, f"no metrics address in the log:\n{service.log()}"
    return found[1]


def check_texts(texts):
    if not all([prometheus.promtool(text) for text in texts]):
        print("SKIPPED: promtool is not installed (Debian package prometheus): our own reader alone looked at the text")


def check_json_log(path, wanted):
    with open(path) as file:
        lines = [json.loads(line) for line in file]
    for line in lines:
        assert {"time", "level", "program", "message"} <= set(line), line
    assert any(wanted <= set(line) for line in lines), f"no line has {wanted}:\n{lines}"


def a_run():
    with ballast.scratch() as folder:
        services = []
        try:
            for i in range(2):
                services.append(Service(folder, "stage-service", "--listen", "127.0.0.1:0", "--log-format", "json",
                                        *METRICS))
            job = write_job(folder, services={"stages": [s.address for s in services]},
                            model=small_inline(), train={"steps": 8}, data={"validation": 0.1},
                            balance={"policy": "drop", "cap": 1},
                            checkpoint={"folder": os.path.join(folder, "kept"), "every": 4})
            addresses = [re.search(r"metrics on http://([^/]+)/metrics", s.log())[1] for s in services]
            idle = prometheus.scrape(addresses[0])
            assert idle.get("ballast_stage_rank") == -1 and idle.get("ballast_steps_total") == 0
            driver = Service(folder, "ballast-driver", "--job", job, "--listen", "127.0.0.1:0", "--linger", "--log-format",
                             "json", *METRICS)
            services.append(driver)
            run = metrics_address(driver)
            wait_until(lambda: prometheus.scrape(run).get("ballast_run_phase", phase="finished") == 1, 120,
                       "the run has not finished")
            of_run = prometheus.scrape(run)
            of_stages = [prometheus.scrape(address) for address in addresses]
            for rank, metrics in enumerate(of_stages):
                check_stage(metrics, rank)
            assert set(idle.values) == set(of_stages[0].values), "series appear only at the start"
            check_driver(of_run)
            check_texts([of_run.text, *[metrics.text for metrics in of_stages]])
            assert prometheus.fetch(run, "/nothing")[0] == 404
            driver.end()
            check_json_log(driver.log_path, {"run", "step", "attempt"})
            check_json_log(services[0].log_path, {"run", "stage", "step", "attempt"})
        finally:
            for service in services:
                service.end()


def a_failure(folder):
    """A run that failed can be scraped until somebody ends its driver, which takes the exit code of the failure."""
    stage = Service(folder, "stage-service", "--listen", "127.0.0.1:0")
    job = write_job(folder, "failure.yaml", services={"stages": [stage.address]}, model=small_inline(),
                    pipeline={"stages": 1}, train={"steps": 1000000},
                    checkpoint={"folder": os.path.join(folder, "failed")})
    driver = Service(folder, "ballast-driver", "--job", job, "--listen", "127.0.0.1:0", *METRICS)
    try:
        run = metrics_address(driver)
        wait_until(lambda: prometheus.scrape(run).get("ballast_run_step") > 0, 120, "no step was made")
        stage.kill()
        wait_until(lambda: prometheus.scrape(run).get("ballast_run_phase", phase="failed") == 1, 60, "the run has not failed")
        assert prometheus.scrape(run).get("ballast_stages_reachable") == 0
        wait_until(lambda: "exit code 5" in driver.log(), 60, "the driver does not say how it ends")
        assert driver.process.poll() is None and prometheus.scrape(run).get("ballast_run_waiting_seconds") == 0
        assert os.listdir(os.path.join(folder, "failed")) == [], "the folder is not free for another run"
        assert driver.kill(signal.SIGTERM) == 5, driver.log()
    finally:
        driver.end()
        stage.end()


def coordinates(folder):
    """Every rank of a grid says which one it is."""
    services = [Service(folder, "stage-service", "--listen", "127.0.0.1:0", *METRICS) for _ in range(4)]
    try:
        job = write_job(folder, "grid.yaml", services={"stages": [s.address for s in services]}, model=small_inline(),
                        pipeline={"stages": 1}, parallel={"tensor": 2, "data": 2}, train={"steps": 1})
        services.append(Service(folder, "ballast-driver", "--job", job, "--listen", "127.0.0.1:0", "--linger", *METRICS))
        run = metrics_address(services[-1])
        wait_until(lambda: prometheus.scrape(run).get("ballast_run_phase", phase="finished") == 1, 120,
                   "the run has not finished")
        found = [prometheus.scrape(metrics_address(service)) for service in services[:4]]
        names = ("ballast_stage_replica", "ballast_stage_rank", "ballast_stage_tensor_rank")
        assert [tuple(metrics.get(name) for name in names) for metrics in found] == \
            [(data, 0, tensor) for data in range(2) for tensor in range(2)]
        for metrics in found:  # waits inside operations have a cause, too
            causes = {labels: value for (name, labels), value in metrics.values.items() if name == "ballast_stall_seconds_total"}
            stalled = metrics.get("ballast_step_seconds_sum") - metrics.get("ballast_busy_seconds_total")
            assert abs(sum(causes.values()) - stalled) < 1e-5 and stalled > 0, f"waited {stalled} s, by causes {causes}"
    finally:
        for service in services:
            service.end()


def check_stage(metrics, rank):
    assert metrics.get("ballast_stage_rank") == rank and metrics.get("ballast_stage_replica") == 0
    assert metrics.get("ballast_stage_step") == metrics.get("ballast_steps_total") == 8
    assert metrics.get("ballast_attempts_total", outcome="voted") >= 8
    assert metrics.get("ballast_step_seconds_count") == 8
    assert metrics.get("ballast_step_seconds_sum") >= metrics.get("ballast_busy_seconds_total") > 0
    cause = "gradient" if rank == 0 else "activation"
    assert metrics.get("ballast_stall_seconds_total", cause=cause) > 0
    assert metrics.get("ballast_stall_seconds_total", cause="other") == 0, "every wait has a cause"
    assert 0 <= metrics.get("ballast_bubble_ratio") < 1
    assert metrics.get("ballast_plan_version") >= 1
    assert not [name for name, _ in metrics.values if name == "ballast_policy_version"], "the driver's, of the policy"
    for tag in ("weights", "gradients", "optimizer", "slots", "edges"):
        now = metrics.get("ballast_memory_bytes", tag=tag)
        assert 0 < now <= metrics.get("ballast_memory_peak_bytes", tag=tag) <= \
            metrics.get("ballast_memory_planned_bytes", tag=tag), tag
    assert metrics.get("ballast_data_path_peers", path="shm") + metrics.get("ballast_data_path_peers", path="tcp") == 1
    assert metrics.get("ballast_own_slots") >= metrics.get("ballast_peak_slots") > 0
    assert metrics.get("ballast_used_slots") == 0, "slots are in use after the run"
    assert metrics.get("ballast_process_resident_memory_bytes") > 1 << 20


def check_driver(metrics):
    assert metrics.get("ballast_run_step") == metrics.get("ballast_run_steps") == 8
    assert metrics.get("ballast_run_steps_total") == metrics.get("ballast_run_step_seconds_count") == 8
    assert 0 < metrics.get("ballast_run_loss") < 10 and metrics.get("ballast_run_gradient_norm") > 0
    assert 0 < metrics.get("ballast_run_validation_loss") < 10
    assert metrics.get("ballast_stages_reachable") == metrics.get("ballast_stages") == 2
    assert metrics.get("ballast_stores_reachable") == metrics.get("ballast_stores") == 0
    assert metrics.get("ballast_policy_version") >= 1
    assert metrics.get("ballast_run_tokens_total") == 8 * 2 * 4 * 64
    assert metrics.get("ballast_run_recomputed_blocks_total") > 0, "the policy drops nothing"
    assert metrics.get("ballast_run_unplanned_recomputes_total") == 0, "what the policy drops is planned"
    assert metrics.get("ballast_run_checkpoint_every_steps") == 4
    assert metrics.get("ballast_run_checkpoints_total", outcome="committed") == 2  # of steps 4 and 8
    assert metrics.get("ballast_run_unsaved_steps") == 0
    assert metrics.get("ballast_tls_certificate_expires_seconds") == 0, "a time without TLS"


def documentation():
    """docs/metrics.md is what the programs' tables say; tools/check/docs.py writes it."""
    done = subprocess.run([sys.executable, "-B", os.path.join(ballast.ROOT, "tools", "check", "docs.py"), ballast.BIN,
                           "docs/metrics.md"], text=True, capture_output=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


if __name__ == "__main__":
    documentation()
    a_run()
    with ballast.scratch() as of_ranks:
        coordinates(of_ranks)
        a_failure(of_ranks)
