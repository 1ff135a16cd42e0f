"""When the application of a continuous group ends early: a task of its group waits for the pool's slot."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.airflow_process import isolated_airflow_env, run_in_airflow

pytestmark = pytest.mark.unit

PROGRAM = """
import json, time
from sluice.contract.groups import GroupSettings
from sluice_airflow import turns

turns.LOOK_S = 0.02


class Instance:
    # Its answers are those of Airflow's API to one look after another; the last one stays.
    def __init__(self, *answers):
        self.answers, self.asked = list(answers), []

    def get_ti_count(self, dag_id, task_ids, states):
        assert (task_ids, states) == (["spark_shop"], ["scheduled"])
        self.asked.append(dag_id)
        if dag_id != "backfill":
            return 0
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if answer is None:
            raise RuntimeError("no answer")
        return answer


def ends(ti, seconds=0.5, **maintenance):
    settings = GroupSettings.model_validate({"maintenance": {"seconds_per_turn": 1, **maintenance}})
    with turns.watch_pool("shop", settings, ti) as file:
        until = time.monotonic() + seconds
        while time.monotonic() < until and not file.exists():
            time.sleep(0.02)
        found = file.exists()
    assert not file.parent.exists()
    return found


own, shared = Instance(0), Instance(0)
print(json.dumps({
    "too early": ends(Instance(1)),
    "waits": ends(Instance(1), 30),
    "after an error": ends(Instance(None, 1), 30),
    "only for a moment": ends(Instance(1, 0), 1.5),
    "own pool": [ends(own, 0.1, pool="tidy"), sorted(set(own.asked))],
    "shared pool": [ends(shared, 0.1), sorted(set(shared.asked))],
}))
"""


def test_it_ends_when_a_task_has_waited_and_ingestion_had_its_turn(tmp_path: Path) -> None:
    env = {**isolated_airflow_env(tmp_path), "SLUICE_HOME": str(tmp_path / "home")}
    assert run_in_airflow(PROGRAM, env) == {
        "too early": False,
        "waits": True,
        "after an error": True,
        "only for a moment": False,
        "own pool": [False, ["backfill"]],
        "shared pool": [
            False,
            ["backfill", "maintain_expire_snapshots", "maintain_remove_orphan_files", "maintain_rewrite_data_files"],
        ],
    }
