"""Topic patterns and table templates are resolved when the topics are known."""

from __future__ import annotations

import itertools
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import SqlCatalog

from sluice.contract.contract import Contract
from sluice.contract.folder import Contracts, load_contracts
from sluice.contract.topic_pattern import TopicPattern
from sluice.errors import ContractError, TerminalError
from sluice.iceberg import table_names, tables
from sluice.ingest import outcome, settle
from sluice.maintain import targets
from sluice.plan import resolve_topics
from sluice.plan.model import GroupPlan

pytestmark = pytest.mark.unit

Folder = Callable[..., Contracts]


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    return SqlCatalog("lake", uri=f"sqlite:///{tmp_path}/iceberg.db", warehouse=f"file://{tmp_path}/warehouse")


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    def write(**files: dict[str, Any]) -> Contracts:
        for name, changes in files.items():
            body = {"group": "g", "owner": "me", "columns": [{"name": "id", "type": "long"}], **changes}
            (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(body))
        return load_contracts(tmp_path, strict=False)

    return write


def found(contracts: Contracts) -> dict[str, tuple[str, ...]]:
    return {name: contract.topics for name, contract in contracts.tables.items()}


@pytest.mark.parametrize(
    ("pattern", "taken", "left"),
    [
        (r"orders\..*", ["orders.eu", "orders."], ["orders", "my.orders.eu", "ordersXeu", "orders.old"]),
        ("a|b", ["a", "b"], ["ab", "aa"]),
        (".*", ["a", "_schemas"], ["__consumer_offsets", "__transaction_state", "orders.old"]),
        ("(?i)orders", ["ORDERS", "orders"], ["orders2"]),
    ],
)
def test_a_pattern_is_the_whole_name_and_never_an_internal_topic(pattern, taken, left):
    by = TopicPattern(pattern=pattern, omit=("orders.old",))
    assert [t for t in [*taken, *left] if by.matches(t)] == taken


def test_no_topics_name_makes_a_pattern_slow():
    by = TopicPattern(pattern="(a+)+b")
    began = time.monotonic()
    assert not by.matches("a" * 249)
    assert time.monotonic() - began < 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"topic": {"pattern": "a)|(b"}},
            "topic.pattern: 'a)|(b' is not a regular expression that Sluice supports: unopened",
        ),
        (
            {"topic": {"pattern": "(?=a)"}},
            "topic.pattern: '(?=a)' is not a regular expression that Sluice supports: look-aro",
        ),
        ({"topic": {"pattern": ""}}, "topic.pattern: must not be empty"),
        ({"topic": {"patern": "a"}}, "topic.patern: unknown field (did you mean 'pattern'?)"),
        ({"topic": {"pattern": "a", "omit": ["b d"]}}, "topic.omit[0]: 'b d' is not a legal Kafka topic"),
        ({"topic": "a", "topic_pattern": {"pattern": "a"}}, "topic_pattern: unknown field"),
        ({"topic": {"pattern": "a"}, "start": {0: 1}}, "start: offsets per partition need a single topic"),
        ({"topic": {"pattern": "a"}, "mode": "upsert", "identifier": ["id"]}, "order: with several topics, offsets do"),
        ({"table": "ns.{topic}{topic}", "topic": "a"}, "table: 'ns.{topic}{topic}' is not namespace.table"),
        ({"table": "{topic}.a", "topic": "a"}, "table: '{topic}.a' is not namespace.table"),
        ({"table": "ns.{topic}", "topic": ["a-b", "a.b"]}, "topic[1]: 'a.b' and 'a-b' both map to table 'ns.a_b'"),
        ({"table": "ns.{topic}", "topic": ["a", "A"]}, "topic[1]: 'A' and 'a' both map to table 'ns.A'"),
        ({"table": "ns.{topic}", "topic": ["a", "1.a"]}, "topic[1]: topic '1.a' does not make a valid table name"),
        ({"table": "ns.{topic}", "topic": "a" * 129}, "topic: topic 'aaa"),
        ({"table": "ns.{topic}", "topic": "a;drop table x"}, "topic: 'a;drop table x' is not a legal Kafka topic"),
    ],
)
def test_what_is_refused(folder, changes, message):
    problems = [re.sub(r"^.*\.yaml:\d+: ", "", str(each)) for each in folder(x={"table": "ns.x", **changes}).problems]
    assert [each for each in problems if each.startswith(message)], problems


def test_a_template_with_a_list_is_a_table_for_each_topic(folder):
    changes = {
        "mode": "upsert",
        "identifier": ["id"],
    }  # which several topics in one table could not be without an order
    contracts = folder(x={"table": "ns.raw_{topic}", "topic": ["orders.eu", "2024-orders"], **changes})
    assert contracts.problems == () and contracts.resolved
    assert found(contracts) == {"ns.raw_2024_orders": ("2024-orders",), "ns.raw_orders_eu": ("orders.eu",)}
    assert contracts.topics["orders.eu"].tables == ("ns.raw_orders_eu",)
    # Another file has the table, or another opinion of the topic: both files are named.
    contracts = folder(y={"table": "ns.raw_orders_EU", "topic": "orders.eu", "start": "latest"})
    words = [str(each).partition(".yaml:")[2] for each in contracts.problems]
    assert sum("is also the table of" in each for each in words) == 2
    assert sum("topic 'orders.eu' is shared with" in each for each in words) == 2
    assert found(contracts) == {}


def test_a_pattern_shares_named_topics_only_if_it_says_the_same(folder):
    one = folder(x={"table": "ns.x", "topic": "orders.eu"}, y={"table": "ns.y", "topic": {"pattern": "orders.*"}})
    assert one.problems == ()
    other = folder(y={"table": "ns.y", "topic": {"pattern": "orders.*"}, "start": "latest"})
    assert sorted(str(each).rpartition("/")[2] for each in other.problems) == [
        "x.yaml:1: start: topic 'orders.eu' is shared with y.yaml, which has latest, not earliest",
        "y.yaml:6: start: topic 'orders.eu' is shared with x.yaml, which has earliest, not latest",
    ]


def test_what_was_staged_stays_known_without_a_broker(folder, catalog):
    contracts = folder(
        all={"table": "ns.all", "topic": {"pattern": r"orders\..*", "omit": ["orders.old"]}},
        each={"table": "ns.{topic}", "topic": {"pattern": "orders.*"}},
        named={"table": "ns.named", "topic": "orders.eu"},
    )
    assert contracts.problems == () and not contracts.resolved
    assert found(contracts) == {"ns.all": (), "ns.named": ("orders.eu",)}
    assert list(contracts.templates) == ["ns.{topic}"]
    assert [c.table for c in contracts.group("g").all_contracts] == ["ns.all", "ns.named", "ns.{topic}"]
    with pytest.raises(ValueError, match="resolve"):
        targets.list_targets(contracts)
    assert found(resolve_topics.resolve(contracts, catalog, None))["ns.all"] == ()  # there is no staging at all
    for topic in ("orders.eu", "orders-us", "orders.old", "people"):
        tables.ensure_staging(catalog, topic)
    damaged = tables.ensure_staging(catalog, "orders.damaged")  # it can't tell whose it was, and hides no other
    Path(damaged.metadata_location.removeprefix("file://")).unlink()
    resolved = resolve_topics.resolve(contracts, catalog, None)
    assert found(resolved) == {
        "ns.all": ("orders.eu",),
        "ns.named": ("orders.eu",),
        "ns.orders_eu": ("orders.eu",),
        "ns.orders_old": ("orders.old",),
        "ns.orders_us": ("orders-us",),
    }
    assert resolved.stopped == {}
    assert resolved.topics["orders.eu"].tables == ("ns.all", "ns.named", "ns.orders_eu")
    # A table of a template is a table like any other to all that comes after.
    assert Contract.model_validate(resolved.table("ns.orders_us").model_dump(exclude_unset=True)).topics == (
        "orders-us",
    )
    assert {s.name for s in targets.list_targets(resolved)} >= {
        "ns.orders_us",
        ".".join(table_names.staging("orders-us")),
    }
    assert resolve_topics.resolve(resolved, None, None) is resolved


def test_staging_that_no_contract_reads_any_more_is_told(folder, catalog):
    contracts = folder(
        one={"table": "ns.one", "topic": "orders"}, any={"table": "ns.any", "topic": {"pattern": "eu.*"}}
    )
    resolved = resolve_topics.resolve(contracts, catalog, None)
    assert resolve_topics.find_unclaimed_staging(resolved, catalog) == []  # there is no staging at all
    for topic in ("orders", "eu.orders", "people.old"):
        tables.ensure_staging(catalog, topic)
    (name,) = resolve_topics.find_unclaimed_staging(resolve_topics.resolve(contracts, catalog, None), catalog)
    assert name == f"{'.'.join(table_names.staging('people.old'))} (topic people.old)"
    # It may be that of a contract which can't be read.
    broken = resolve_topics.resolve(
        folder(two={"table": "ns.two", "topic": "people.old", "colour": "red"}), catalog, None
    )
    assert resolve_topics.find_unclaimed_staging(broken, catalog) == []


def test_topics_that_come_to_one_table_stop_it_and_no_other(folder, catalog):
    contracts = folder(
        each={"table": "ns.{topic}", "topic": {"pattern": "[a-z0-9].*"}},
        named={"table": "ns.people", "topic": "crm"},
    )
    for topic in ("a-b", "a_b", "c", "people", "7up", "x" * 140):
        tables.ensure_staging(catalog, topic)
    resolved = resolve_topics.resolve(contracts, catalog, None)
    assert sorted(resolved.stopped) == ["ns.a_b", "ns.people", "ns.{topic}"]
    assert "ns.a_b of a-b and ns.a_b of a_b" in str(resolved.stopped["ns.a_b"])
    assert "omit: […]" in str(resolved.stopped["ns.a_b"])
    assert "topic '7up' does not make a valid" in str(resolved.stopped["ns.{topic}"])
    assert "topic 'xxx" in str(resolved.stopped["ns.{topic}"])
    assert found(resolved)["ns.c"] == ("c",)
    assert resolved.topics["a-b"].tables == resolved.topics["a_b"].tables == ("ns.a_b",)  # nothing is trimmed meanwhile
    # What can't be called a table has a task that is red all the same.
    plan = GroupPlan("g", {}, {}, resolved.stopped)
    outcomes = settle.settle(resolved.group("g"), catalog, outcome.summarize_plan(plan), run_id="r")
    assert {name: each["state"] for name, each in outcomes.items() if each["red"]} == dict.fromkeys(
        resolved.stopped, "stopped"
    )


def test_two_patterns_that_disagree_on_a_topic_stop(folder, catalog):
    contracts = folder(
        one={"table": "ns.one", "topic": {"pattern": "a.*"}, "start": "latest"},
        two={"table": "ns.two", "topic": {"pattern": ".*b"}},
        three={"table": "ns.three", "topic": {"pattern": ".*c"}},
    )
    assert contracts.problems == ()
    for topic in ("ab", "c"):
        tables.ensure_staging(catalog, topic)
    resolved = resolve_topics.resolve(contracts, catalog, None)
    assert sorted(resolved.stopped) == ["ns.one", "ns.two"]
    assert "Topic 'ab' is shared, and start is latest for ns.one, earliest for ns.two" in str(
        resolved.stopped["ns.two"]
    )
    # Its raw records are still kept for both.
    assert resolved.topics["ab"].tables == ("ns.one", "ns.two")


def test_topics_whose_raw_records_would_meet_are_refused(folder):
    # Who may create topics may look for two of one staging table: a name's hash is short.
    seen: dict[Any, str] = {}
    names = ("a".join(dots) for dots in itertools.product(".-", repeat=14))
    one, other = next(
        (seen[at], name) for name in names if seen.setdefault(at := table_names.staging(name), name) != name
    )
    contracts = folder(
        both={"table": "ns.both", "topic": [one, other]},
        more={"table": "ns.more", "topic": {"pattern": "nothing"}},
    )
    resolved = resolve_topics.resolve(contracts, None, None)
    assert list(resolved.stopped) == ["ns.both"]
    assert f"Topics {min(one, other)}, {max(one, other)} would share one staging table" in str(
        resolved.stopped["ns.both"]
    )


def test_a_contract_is_named_without_asking_anybody(folder):
    contracts = folder(
        all={"table": "ns.all", "topic": {"pattern": "orders.*"}},
        each={"table": "ns.{topic}", "topic": {"pattern": "orders.*"}},
    )
    assert resolve_topics.resolve_contract(contracts, "ns.all", "orders-eu").topics == ("orders-eu",)
    of = resolve_topics.resolve_contract(contracts, "ns.{topic}", "orders-eu")
    assert (of.table, of.topics) == ("ns.orders_eu", ("orders-eu",))
    with pytest.raises(TerminalError, match="--topic TOPIC"):
        resolve_topics.resolve_contract(contracts, "ns.all", "")
    with pytest.raises(TerminalError, match="'people' does not match"):
        resolve_topics.resolve_contract(contracts, "ns.{topic}", "people")
    with pytest.raises(ContractError, match=r"'ns\.other'.*tables of ns\.\{topic\} exist once their topics do"):
        resolve_topics.resolve_contract(contracts, "ns.other", "")
