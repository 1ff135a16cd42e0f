"""A folder of contracts: errors name file and line, shared topics are checked, and valid contracts stay usable."""

import subprocess
import sys
from collections import Counter
from datetime import timedelta
from pathlib import Path

import pytest

from sluice.contract import checks_across
from sluice.contract.columns import Auto, Column
from sluice.contract.contract import Contract
from sluice.contract.folder import ContractDefaults, Contracts, load_contracts
from sluice.contract.suggestions import KNOWN_ELSEWHERE
from sluice.contract.validation_messages import _fields
from sluice.errors import ContractError

pytestmark = pytest.mark.unit

REPO = Path(__file__).resolve().parents[3]
GOOD = """\
table: ns.{name}
topic: {topic}
group: {group}
owner: me
columns:
  - {{name: id, type: long}}
"""


@pytest.fixture
def folder(tmp_path):
    def write(name, text):
        (tmp_path / name).write_text(text, encoding="utf-8")
        return tmp_path

    def good(name, topic=None, group="g", extra=""):
        return write(f"{name}.yaml", GOOD.format(name=name, topic=topic or name, group=group) + extra)

    write.good, write.path = good, tmp_path
    return write


def problems(folder):
    """The problems without the folder's path; the strict way must say the same."""
    found = load_contracts(folder.path, strict=False)
    if found.problems:
        with pytest.raises(ContractError) as error:
            load_contracts(folder.path)
        assert error.value.message.splitlines() == list(map(str, found.problems))
    return [str(each).replace(f"{folder.path}/", "") for each in found.problems]


def test_the_contracts_of_the_project_are_sound():
    found = load_contracts(REPO / "include" / "contracts")
    assert list(found.tables) == ["aviation.airports", "aviation.flights", "aviation.planes"]
    assert list(found.groups) == ["aviation"]
    assert found.table("aviation.planes").column("tailnum").from_key
    assert found.table("aviation.airports").tombstone_column == "faa"
    assert found.group("aviation").settings.tags == ("aviation", "demo")


def test_the_folder_is_named_by_the_environment(folder, monkeypatch):
    folder.good("a")
    monkeypatch.setenv("SLUICE_CONTRACTS", str(folder.path))
    assert list(load_contracts().tables) == ["ns.a"]
    monkeypatch.delenv("SLUICE_CONTRACTS")
    assert load_contracts().folder == REPO / "include" / "contracts"


def test_tables_topics_and_groups(folder):
    folder.good("b", topic="[t1, t2]", extra="limits: {records_per_batch: 5}\n")
    folder.good("a", topic="t1", extra="limits: {records_per_batch: 5}\n")
    folder("c.yml", GOOD.format(name="c", topic="t3", group="h"))
    folder(".hidden.yaml", "{")
    folder("notes.txt", "{")
    found = load_contracts(folder.path)
    assert list(found.tables) == ["ns.a", "ns.b", "ns.c"]
    assert [(g.name, [c.table for c in g.contracts]) for g in found.groups.values()] == [
        ("g", ["ns.a", "ns.b"]),
        ("h", ["ns.c"]),
    ]
    assert {name: t.tables for name, t in found.topics.items()} == {
        "t1": ("ns.a", "ns.b"),
        "t2": ("ns.b",),
        "t3": ("ns.c",),
    }
    assert found.topics["t1"].limits.records_per_batch == 5
    assert isinstance(found, Contracts)


def test_looking_up_a_name_that_is_not_there(folder):
    folder.good("flights", group="aviation")
    found = load_contracts(folder.path)
    with pytest.raises(ContractError, match=r"the table 'ns.flihgts' \(did you mean 'ns.flights'\?\)"):
        found.table("ns.flihgts")
    with pytest.raises(ContractError, match=r"the group 'zzz' \(known: aviation\)"):
        found.group("zzz")


def test_every_problem_of_every_file_with_its_line(folder):
    folder("a.yaml", "table: ns.a\ntopic: [ok, b d]\ngroup: g\nowner: me\ncolumns:\n  - name: x\n    type: bigint\n")
    folder("b.yaml", "tabel: ns.b\n" + GOOD.format(name="b", topic="b", group="g") + "identifier: [x]\n")
    folder("c.yaml", GOOD.format(name="c", topic="b d", group="g") + "  - {type: int}\nlimits:\n\n  x: 1\n")
    assert problems(folder) == [
        "a.yaml:2: topic[1]: 'b d' is not a legal Kafka topic: 1 to 249 letters, digits, '.', '_' and '-'",
        "a.yaml:7: columns[0].type: unknown type 'bigint' (did you mean 'long'?) at character 1 of 'bigint'",
        "b.yaml:1: tabel: unknown field (did you mean 'table'?)",
        "c.yaml:2: topic: 'b d' is not a legal Kafka topic: 1 to 249 letters, digits, '.', '_' and '-'",
        "c.yaml:7: columns[1].name: is required",
        "c.yaml:10: limits.x: unknown field (known: records_per_batch, seconds_per_run, batches_per_run, "
        "batches_per_commit)",
    ]


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("primary_key", "identifier"),
        ("id-columns", "identifier"),
        ("unique_key", "identifier"),
        ("partition-by", "partition_by"),
        ("Partitioned_By", "partition_by"),
        ("errors.tolerance", "errors.tolerance"),
        ("sort-order", "maintenance.sort_by"),
        ("expectation", "expectations"),
    ],
)
def test_fields_by_the_names_of_other_tools(folder, word, meant):
    folder("a.yaml", GOOD.format(name="a", topic="a", group="g") + f"{word}: x\n")
    assert problems(folder) == [f"a.yaml:7: {word}: unknown field (did you mean {meant!r}?)"]


def test_each_name_of_another_tool_stands_for_a_field():
    roots = {*Contract.model_fields, *Column.model_fields, *Auto.model_fields}
    for meant in KNOWN_ELSEWHERE.values():
        *outer, last = meant.split(".")
        assert last in (_fields(Contract, tuple(outer)) if outer else roots), meant


def test_one_broken_file_does_not_hide_the_others(folder):
    folder.good("good")
    folder("bad.yaml", "table: [")
    found = load_contracts(folder.path, strict=False)
    assert list(found.tables) == ["ns.good"]
    assert list(found.groups) == ["g"]
    assert len(found.problems) == 1


@pytest.mark.parametrize("column", ["2024", "[{a: b}]", "[[x]]", ""])
def test_nor_does_one_whose_columns_are_not_known_yet(folder, column):
    folder.good("good")
    text = GOOD.format(name="bad", topic="bad", group="g").partition("columns:")[0] + "columns: auto\n"
    text += "value: {format: avro}\n"
    folder("bad.yaml", f"{text}expectations: [{{type: expect_column_values_to_not_be_null, column: {column}}}]\n")
    found = load_contracts(folder.path, strict=False)
    assert list(found.tables) == ["ns.good"]
    assert "expectations[0].column: " in str(found.problems[0])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", ":1: must be a map"),
        ("- a\n", ":1: must be a map"),
        ("just text", ":1: must be a map"),
        ("a: 1\nb: [1\n", ":3: is not YAML: while parsing a flow sequence"),
        ("a: 1\n---\nb: 2\n", ":2: is not YAML: expected a single document"),
        ("a: 1\n\tb: 2\n", ":2: is not YAML"),
        ("a: \x00", ":1: is not YAML"),
    ],
)
def test_what_is_no_contract_at_all(folder, text, message):
    folder("x.yaml", text)
    [found] = problems(folder)
    assert found.startswith(f"x.yaml{message}")


def test_text_that_is_not_utf8(folder):
    (folder.path / "x.yaml").write_bytes(b"a: 1\nb: \xff\xfe\n")
    assert problems(folder) == ["x.yaml:2: is not UTF-8 text"]


def test_a_folder_that_is_missing_or_empty(tmp_path):
    with pytest.raises(ContractError, match="SLUICE_CONTRACTS names the folder"):
        load_contracts(tmp_path / "none")
    with pytest.raises(ContractError, match="has no contracts"):
        load_contracts(tmp_path)


def test_a_directory_called_like_a_contract(folder):
    (folder.path / "x.yaml").mkdir()
    assert problems(folder) == ["x.yaml: cannot be read: Is a directory"]


def test_one_table_has_one_contract(folder):
    folder.good("a")
    folder("b.yaml", GOOD.format(name="A", topic="b", group="g"))
    folder.good("c")
    assert problems(folder) == [
        "a.yaml:1: table: 'ns.a' is also the table of b.yaml",
        "b.yaml:1: table: 'ns.A' is also the table of a.yaml",
    ]
    assert list(load_contracts(folder.path, strict=False).tables) == ["ns.c"]


@pytest.mark.parametrize(
    ("mine", "theirs", "field", "says"),
    [
        ("start: latest", "", "start", "earliest, not latest"),
        ("start: 2024-01-01T00:00:00Z", "start: latest", "start", "latest, not 2024-01-01T00:00:00+00:00"),
        ("transactional: true", "", "transactional", "False, not True"),
        ("limits: {records_per_batch: 7}", "", "limits.records_per_batch", "1000000, not 7"),
        ("limits: {seconds_per_run: 7}", "", "limits.seconds_per_run", "240, not 7"),
        ("limits: {batches_per_run: 7}", "", "limits.batches_per_run", "20, not 7"),
    ],
)
def test_tables_of_one_topic_agree(folder, mine, theirs, field, says):
    folder.good("a", topic="t", extra=mine + "\n")
    folder.good("b", topic="[t, u]", extra=theirs + "\n")
    found = problems(folder)
    assert found[0] == f"a.yaml:7: {field}: topic 't' is shared with b.yaml, which has {says}"
    assert found[1].startswith("b.yaml:")
    assert "shared with a.yaml" in found[1]
    assert not load_contracts(folder.path, strict=False).tables


def test_tables_of_one_topic_are_of_one_group(folder):
    folder.good("a", topic="t", group="g")
    folder.good("b", topic="t", group="h")
    assert problems(folder)[0] == "a.yaml:3: group: topic 't' is shared with b.yaml, which has h, not g"


def test_group_settings_over_defaults(folder):
    folder.good("a", group="g")
    folder.good("b", group="h")
    folder.good("c", group="i")
    folder(
        "groups.yaml",
        "defaults:\n  retries: 5\n  spark: {driver_memory: 4g, conf: {spark.a: 1, spark.b: 1}}\n"
        "g:\n  schedule: '@hourly'\n  spark: {conf: {spark.b: 2}}\nh:\n",
    )
    groups = load_contracts(folder.path).groups
    g, h, i = (groups[name].settings for name in "ghi")
    assert (g.schedule, g.retries, g.spark.driver_memory) == ("@hourly", 5, "4g")
    assert g.spark.conf == {"spark.a": "1", "spark.b": "2"}
    assert h == i
    assert (h.schedule, h.retries, h.spark.conf["spark.b"]) == ("*/5 * * * *", 5, "1")


def test_a_group_that_runs_on_data(folder):
    folder.good("a", group="g")
    folder("groups.yaml", "g:\n  schedule: on_data\n  on_data: {min_records: 5, max_wait: 10s}\n")
    settings = load_contracts(folder.path).groups["g"].settings
    assert (settings.on_data.min_records, settings.on_data.max_wait) == (5, timedelta(seconds=10))
    folder("groups.yaml", "g:\n  on_data: {min_records: 5}\n")
    assert problems(folder) == ["groups.yaml:2: g.on_data: needs schedule: on_data"]
    folder("groups.yaml", "maintenance:\n  expire_snapshots: on_data\n")
    assert "is neither five cron fields" in problems(folder)[0]


def test_wrong_group_settings_concern_that_group_alone(folder):
    folder.good("a", group="good")
    folder.good("b", group="bad")
    folder("groups.yaml", "bad:\n  retires: 1\n  spark: {memory: 1g}\ngod: {}\n")
    assert problems(folder) == [
        "groups.yaml:2: bad.retires: unknown field (did you mean 'retries'?)",
        "groups.yaml:3: bad.spark.memory: unknown field (did you mean 'driver_memory'?)",
        "groups.yaml:4: god: no contract is in this group (did you mean 'good'?)",
    ]
    found = load_contracts(folder.path, strict=False)
    assert list(found.groups) == ["good"]
    assert list(found.tables) == ["ns.a"]


@pytest.mark.parametrize("text", ["[", "- a\n", "defaults: {retries: x}\n", "defaults: 5\n"])
def test_settings_that_concern_every_group(folder, text):
    folder.good("a")
    folder("groups.yaml", text)
    [found] = problems(folder)
    assert found.startswith("groups.yaml:")
    assert not load_contracts(folder.path, strict=False).groups


def test_schedules_of_maintenance(folder):
    folder.good("a")
    folder("groups.yaml", "maintenance: {expire_snapshots: '0 3 * * 1', remove_orphan_files: null}\n")
    found = load_contracts(folder.path).common.maintenance
    assert found is not None
    assert (found.rewrite_data_files, found.expire_snapshots, found.remove_orphan_files) == (
        "@hourly",
        "0 3 * * 1",
        None,
    )
    assert found.schedules == {
        "rewrite_data_files": "@hourly",
        "expire_snapshots": "0 3 * * 1",
        "remove_orphan_files": None,
    }
    assert found.history == timedelta(days=90)
    folder("groups.yaml", "maintenance: {history: null}\n")
    forever = load_contracts(folder.path).common.maintenance
    assert forever is not None and forever.history is None
    folder("groups.yaml", "maintenance:\n  history: 7d\n")
    assert problems(folder) == ["groups.yaml:2: maintenance.history: must be 8d or more: the pages show a week"]
    folder("groups.yaml", "maintenance:\n  rewrite_data_file: '@daily'\n")
    assert problems(folder) == [
        "groups.yaml:2: maintenance.rewrite_data_file: unknown field (did you mean 'rewrite_data_files'?)"
    ]
    folder("groups.yaml", "maintenance:\n  expire_snapshots: nightly\n")
    (problem,) = problems(folder)
    assert problem.startswith("groups.yaml:2: maintenance.expire_snapshots: 'nightly' is neither five cron fields")
    lax = load_contracts(folder.path, strict=False)
    assert lax.common.maintenance is None
    assert lax.tables


def test_groups_yml_is_not_taken_for_a_table(folder):
    folder.good("a")
    folder("groups.yml", "g: {}\n")
    assert problems(folder) == ["groups.yml: is not read: rename it to groups.yaml"]


def test_a_run_has_less_time_than_its_timeout(folder):
    folder.good("a", extra="limits: {seconds_per_run: 3600}\n")
    assert problems(folder) == [
        "a.yaml:7: limits.seconds_per_run: 3600 s must be less than the timeout of group 'g' (3600 s)"
    ]


def test_reading_contracts_imports_nothing_heavy():
    code = (
        "import sys; from sluice.contract import folder; folder.load_contracts(); "
        "print([m for m in ('pyiceberg', 'pyarrow', 'pyspark', 'airflow', 'pandas') if m in sys.modules])"
    )
    env = {"PYTHONPATH": str(REPO / "include")}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("topic", ["t", "t{i}"])
def test_what_contracts_share_is_looked_at_once_however_many_there_are(folder, monkeypatch, topic):
    for i in range(150):
        folder.good(f"a{i:03}", topic=topic.format(i=i), extra="start: latest\n" if i == 90 else "")
    looks = Counter()

    def counted(name):
        was = getattr(checks_across, name)
        monkeypatch.setattr(checks_across, name, lambda *given: looks.update([name]) or was(*given))

    counted("_reads")
    counted("_get")
    found = problems(folder)
    assert looks.total() < 150 * 60, "each contract was compared with each"
    wrong = "start: topic 't' is shared with a{:03}.yaml, which has {}"
    if topic == "t":
        assert found[0].endswith(wrong.format(90, "latest, not earliest"))
        assert found[90].endswith(wrong.format(0, "earliest, not latest"))
    assert len(found) == (150 if topic == "t" else 0)


SHARED = "table: ns.{name}\ntopic: {name}\ncolumns:\n  - {{name: id, type: long}}\n"


def test_defaults_are_shared_and_a_contracts_own_values_win(folder):
    shared = "group: shop\nowner: data\nfreshness: 15m\nlimits: {batches_per_run: 7}\n"
    folder("defaults.yaml", shared + "errors: {max_ratio: 0.5, max_count: 3}\n")
    folder("a.yaml", SHARED.format(name="a"))
    folder("b.yaml", SHARED.format(name="b") + "group: other\nowner: me\nfreshness: 1h\nerrors: {max_count: 1}\n")
    found = load_contracts(folder.path)
    a, b = found.table("ns.a"), found.table("ns.b")
    assert (a.group, a.owner, a.freshness, a.limits.batches_per_run) == ("shop", "data", timedelta(minutes=15), 7)
    assert (b.group, b.owner, b.freshness, b.limits.batches_per_run) == ("other", "me", timedelta(hours=1), 7)
    assert (a.errors.max_ratio, a.errors.max_count, b.errors.max_ratio, b.errors.max_count) == (0.5, 3, 0.5, 1)
    assert list(found.groups) == ["other", "shop"]


def test_the_defaults_are_fields_of_a_contract():
    for name, field in ContractDefaults.model_fields.items():
        own = Contract.model_fields[name]
        assert own.is_required() or own.default == field.default or own.default_factory == field.default_factory, name


def test_the_group_is_the_namespace_by_default(folder):
    folder("a.yaml", SHARED.format(name="a").replace("ns.a", "lake.raw.a") + "owner: me\n")
    folder("groups.yaml", "lake_raw: {retries: 5}\n")
    found = load_contracts(folder.path)
    assert found.table("lake.raw.a").group == "lake_raw"
    assert found.group("lake_raw").settings.retries == 5


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("ownr: me\n", "defaults.yaml:1: ownr: unknown field (did you mean 'owner'?)"),
        ("owner: me\nfreshness: 5 parsecs\n", "defaults.yaml:2: freshness: '5 parsecs' is not a duration"),
        ("table: a.b\n", "defaults.yaml:1: table: unknown field"),
        ("columns: auto\n", "defaults.yaml:1: columns: unknown field"),
        ("- a\n", "defaults.yaml:1: must be a map of fields of contracts"),
        ("a: [\n", "defaults.yaml:2: is not YAML"),
    ],
)
def test_a_mistake_in_the_defaults_stops_all_tables(folder, text, problem):
    folder.good("a")
    folder("defaults.yaml", text)
    found = load_contracts(folder.path, strict=False)
    assert len(found.problems) == 1 and str(found.problems[0]).removeprefix(f"{folder.path}/").startswith(problem)
    assert found.tables == {}


def test_what_only_the_defaults_have_is_reported_at_the_contract(folder):
    folder("defaults.yaml", "owner: me\nmaintenance: {strategy: sort, sort_by: [day]}\n")
    folder("a.yaml", SHARED.format(name="a"))
    (problem,) = problems(folder)
    assert problem == "a.yaml:1: maintenance.sort_by: there is no column 'day' (the value is from defaults.yaml)"


def test_defaults_of_another_suffix_are_not_read(folder):
    folder.good("a")
    folder("defaults.yml", "owner: me\n")
    assert problems(folder) == ["defaults.yml: is not read: rename it to defaults.yaml"]


def test_empty_defaults_are_none(folder):
    folder.good("a")
    folder("defaults.yaml", "# nothing yet\n")
    assert list(load_contracts(folder.path).tables) == ["ns.a"]


def test_an_owner_is_asked_for_if_nobody_names_one(folder):
    folder("a.yaml", SHARED.format(name="a"))
    assert problems(folder) == ["a.yaml:1: owner: is required"]


def test_a_table_of_a_continuous_group_keeps_few_snapshots(folder):
    folder("groups.yaml", "g: {schedule: continuous}\n")
    folder.good("a", group="g")
    assert problems(folder) == [
        "a.yaml:1: maintenance.snapshot_age: a table of group 'g', with a round every 10 s, would keep 43,200 "
        "snapshots, and each commit writes the metadata of them all: set at most 13h"
    ]
    folder.good("a", group="g", extra="maintenance: {snapshot_age: 13h}\n")
    assert problems(folder) == []


def test_a_continuous_group_has_a_pause_and_ends_before_its_timeout(folder):
    folder.good("a", group="g", extra="maintenance: {snapshot_age: 1h}\n")
    folder("groups.yaml", "g:\n  schedule: continuous\n  continuous: {every: 2s, stay: 20m}\n")
    settings = load_contracts(folder.path).groups["g"].settings
    assert settings.is_continuous
    assert (settings.continuous.every, settings.continuous.stay) == (timedelta(seconds=2), timedelta(minutes=20))
    folder("groups.yaml", "g:\n  schedule: continuous\n  timeout: 30m\n")
    assert problems(folder) == ["groups.yaml:1: g.continuous.stay: must be at least 5 minutes less than timeout"]
    folder("groups.yaml", "g:\n  schedule: continuous\n  continuous: {every: 1s}\n")
    assert problems(folder) == [
        "groups.yaml:3: g.continuous.every: must be 2s or more: each round makes several commits"
    ]
    folder("groups.yaml", "defaults:\n  timeout: 30m\ng:\n  schedule: continuous\n")
    assert problems(folder) == ["groups.yaml:3: g.continuous.stay: must be at least 5 minutes less than timeout"]
    folder("groups.yaml", "defaults:\n  schedule: continuous\ng:\n  continuous: {every: 5s}\n")
    assert problems(folder) == []
    folder("groups.yaml", "g:\n  continuous: {every: 5s}\n")
    assert problems(folder) == ["groups.yaml:2: g.continuous: needs schedule: continuous"]
