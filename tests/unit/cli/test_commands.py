"""Every command: its help, its examples, `--json`, the terminal's tables, and completion."""

from __future__ import annotations

import argparse
import io
import json
import os
import pty
import re
import shlex
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path

import pytest

from sluice import __version__
from sluice.cli import arguments, ledger, main, output, spark
from sluice.embedded.home import REPOSITORY
from sluice.ledger.ledger_rows import LedgerRow, LedgerState
from sluice.pages import quarantine_summary

pytestmark = pytest.mark.unit

FACTS = {
    "adopt",
    "at",
    "compare",
    "contract check",
    "contract diff",
    "contract test",
    "cost",
    "decide",
    "doctor",
    "find",
    "gap accept",
    "plan",
    "quarantine",
    "rehearse",
    "run",
    "topic moved",
    "rename",
    "catalog register",
}
FACTS |= {"backfill plan", "backfill run", "maintain run", "publish-blocked", "rollback", "schema", "status", "tables"}
FACTS |= {f"ledger {name}" for name in ("rebuild", "show", "retire-consumer")}
CONTRACT = "table: a.b\ntopic: t\ngroup: g\nowner: me\ncolumns: [{name: n, type: long}]\n"


def commands(
    parser: argparse.ArgumentParser, path: tuple[str, ...] = ()
) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """Each command that can be run, with its parser."""
    below = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    if not below:
        yield " ".join(path), parser
    for action in below:
        for name, each in action.choices.items():
            yield from commands(each, (*path, name))


COMMANDS = dict(commands(main.make_parser()))


@pytest.mark.parametrize("name", COMMANDS)
def test_each_example_of_a_command_is_one(name: str) -> None:
    examples = [
        line.strip() for line in COMMANDS[name].format_help().splitlines() if line.startswith("  python -m sluice ")
    ]
    assert 1 <= len(examples) <= 3
    for example in examples:
        typed = re.sub(r" 2?>\S+", "", example.removeprefix("python -m sluice "))  # where its output goes
        given = shlex.split(re.sub(r"(--to-snapshot) ID", r"\1 1", typed))
        assert " ".join(given).startswith(name)
        assert main.make_parser().parse_args(given).run


def test_each_command_that_prints_facts_has_json() -> None:
    assert {name for name, parser in COMMANDS.items() if "--json" in parser._option_string_actions} == FACTS
    assert set(COMMANDS) - FACTS == {
        *(
            "airflow setup",
            "contract init",
            "contract import",
            "contract export",
            "sql",
            "demo",
            "completion",
            "offsets",
        )
    }


def test_only_what_is_done_by_hand_asks_for_a_reason() -> None:
    by_hand = {name for name, parser in COMMANDS.items() if "--why" in parser._option_string_actions}
    assert by_hand == {
        "gap accept", "publish-blocked", "rollback", "schema", "backfill run", "ledger retire-consumer", "adopt",
        "topic moved", "rename", "catalog register",
        "decide",
    }  # fmt: skip
    assert {name for name, parser in COMMANDS.items() if "--yes" in parser._option_string_actions} == by_hand
    for name in by_hand:
        assert not COMMANDS[name]._option_string_actions["--why"].required


def test_the_program_is_called_as_it_was_started(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.main(["--version"]) == 0
    assert capsys.readouterr().out == f"sluice {__version__}\n"
    monkeypatch.setattr(sys, "argv", ["/usr/bin/sluice"])
    assert main.main(["plan", "--help"]) == 0
    assert "usage: sluice plan" in (shown := capsys.readouterr().out) and "  sluice plan shop\n" in shown
    monkeypatch.setattr(sys, "argv", ["/x/sluice/__main__.py"])
    assert main.main(["plan", "--help"]) == 0
    assert "usage: python -m sluice plan" in capsys.readouterr().out


def test_contract_check_as_json_holds_what_it_prints(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLUICE_CATALOG", "nowhere")
    (tmp_path / "good.yaml").write_text(CONTRACT)
    (tmp_path / "bad.yaml").write_text(CONTRACT.replace("a.b", "a.c").replace("long", "bigint"))
    assert main.main(["contract", "check", str(tmp_path), "--json"]) == 3
    told = json.loads(capsys.readouterr().out)
    assert (told["tables"], told["groups"], told["exist"]) == (["a.b"], ["g"], 0)
    assert [problem.partition(": ")[0].rsplit("/", 1)[1] for problem in told["problems"]] == ["bad.yaml:5"]
    assert "nowhere" in told["not_checked"]


def test_a_missing_masking_key_is_reported_before_a_run_stops_for_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLUICE_CATALOG", "nowhere")
    monkeypatch.setenv("SLUICE_CONTRACTS", str(tmp_path))
    monkeypatch.delenv("SLUICE_MASK_KEY", raising=False)

    def doctor() -> tuple[int, str]:
        code = main.main(["doctor", "masks"])
        return code, capsys.readouterr().out

    assert main.main(["doctor", "contracts"]) == 0
    assert f"{tmp_path} has none yet; `sluice contract init" in capsys.readouterr().out
    (tmp_path / "a.yaml").write_text(CONTRACT)
    assert doctor()[0] == 0
    (tmp_path / "b.yaml").write_text(CONTRACT.replace("a.b", "a.c").replace("type: long", "type: string, mask: sha256"))
    assert main.main(["contract", "check", "--json"]) == 0
    (warning,) = json.loads(capsys.readouterr().out)["warnings"]
    assert "SLUICE_MASK_KEY is not set" in warning and "table a.c" in warning
    assert main.main(["contract", "check"]) == 0
    assert "warning: here, a run would stop a.c: The masking key" in capsys.readouterr().out
    code, shown = doctor()
    assert (
        code == 3
        and "SLUICE_MASK_KEY is not set. Needed by a.c." in shown
        and "next step: Set SLUICE_MASK_KEY" in shown
    )
    monkeypatch.setenv("SLUICE_MASK_KEY", "a secret of 16 bytes or more")
    code, shown = doctor()
    assert code == 0 and "needed by a.c" in shown and "a secret" not in shown
    assert main.main(["contract", "check", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["warnings"] == []


def test_a_table_is_plain_in_a_pipe_and_drawn_on_a_terminal() -> None:
    rows = [["a.b", "\x1b[2J\u202e", "7"], ["c", "blocked", "1,000"]]
    code = f"from sluice.cli import output; output.print_table(['TABLE', 'STATE', 'N'], {rows!r}, right=[2])"
    env = {"PYTHONPATH": str(REPOSITORY / "include"), "TERM": "xterm-256color", "COLUMNS": "60"}
    plain = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True).stdout
    assert plain == "TABLE  STATE              N\na.b    \\x1b[2J\\u202e      7\nc      blocked        1,000\n"
    shown = on_terminal(code, env)
    assert "\\x1b[2J\\u202e" in shown and "\x1b[2J" not in shown and "\u202e" not in shown
    assert re.search(r"\x1b\[1;31mblocked", shown)  # rich's own colours
    assert "\x1b[" not in on_terminal(code, {**env, "NO_COLOR": "1", "TERM": "dumb"})


def test_doctor_shows_its_progress_on_a_terminal_and_beside_its_json(tmp_path: Path) -> None:
    code = "from sluice.cli import main; main.main(['doctor', 'contracts', 'masks', '--json'])"
    env = {"PYTHONPATH": str(REPOSITORY / "include"), "TERM": "xterm-256color", "HOME": "/"}
    with (tmp_path / "out").open("w+") as out:
        shown = on_terminal(code, env, stdout=out.fileno())
        assert [each["check"] for each in json.loads((tmp_path / "out").read_text())["checks"]] == [
            "contracts",
            "masks",
        ]
    assert "checking contracts" in shown and "checking masks" in shown


def test_quarantined_values_are_text_or_base64_and_add_no_line() -> None:
    shown = [
        quarantine_summary.shown(each) for each in ("é\n\x1b[2J".encode(), b"\xff\n", b"\x00\x00\x00\x00\x07ab", None)
    ]
    assert shown == ["é\\n\x1b[2J", "base64 /wo=", "base64 AAAAAAdhYg==", None]
    stream = io.StringIO()
    with redirect_stdout(output.Printable(stream)):
        output.print_table(["KEY"], [[quarantine_summary.one_line(each)] for each in shown])
    assert stream.getvalue().splitlines() == ["KEY", "é\\n\\x1b[2J", "base64 /wo=", "base64 AAAAAAdhYg==", "-"]


def on_terminal(code: str, env: dict[str, str], **streams: int) -> str:
    ours, theirs = pty.openpty()
    given = {"stdout": theirs, **({"stderr": theirs} if streams else {}), **streams}
    done = subprocess.run([sys.executable, "-c", code], env=env, check=True, **given)
    os.close(theirs)
    shown = b""
    try:
        while part := os.read(ours, 65_536):
            shown += part
    except OSError:  # how Linux ends a terminal
        pass
    os.close(ours)
    assert done.returncode == 0
    return shown.decode()


def test_colours_do_not_open_the_terminal_to_records(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    stream = Terminal()
    monkeypatch.setattr(sys, "stdout", output.Printable(stream))
    output.print_lines(["stop    a.b: \x1b]0;title\x07", "plain \x9b2J"])
    assert "\\x1b]0;title\\x07" in stream.getvalue() and "plain \\x9b2J" in stream.getvalue()
    assert "\x07" not in stream.getvalue() and "\x9b" not in stream.getvalue()


def test_an_error_with_a_line_feed_adds_no_row_to_the_ledger_that_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    row = LedgerRow(
        "t", LedgerState.FAILED, "id", 1, table="a.b", error="ValueError: x\nt batch 2 published", run_id="r"
    )
    output.print_lines(ledger._format_rows([row]))
    lines = capsys.readouterr().out.splitlines()
    assert (len(lines), lines[2].strip()) == (3, r"ValueError: x\nt batch 2 published")


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("sluice con", {"contract "}),
        ("sluice plan ", {"g"}),
        ("sluice status a", {"a.b "}),
        ("sluice backfill r", {"run "}),
    ],
)
def test_a_shell_completes_commands_and_what_the_contracts_name(tmp_path: Path, line: str, expected: set[str]) -> None:
    (tmp_path / "good.yaml").write_text(CONTRACT)
    answer = tmp_path / "answer"
    env = {
        "PYTHONPATH": str(REPOSITORY / "include"),
        "SLUICE_CONTRACTS": str(tmp_path),
        "_ARGCOMPLETE": "1",
        "_ARGCOMPLETE_STDOUT_FILENAME": str(answer),
        "_ARGCOMPLETE_IFS": "\n",
        "COMP_LINE": line,
        "COMP_POINT": str(len(line)),
        "_ARGCOMPLETE_SUPPRESS_SPACE": "0",
    }
    code = "import sys; sys.argv = ['/bin/sluice']; from sluice.cli.main import main; main()"
    subprocess.run([sys.executable, "-c", code], env=env, check=True, timeout=60)
    assert expected <= set(answer.read_text().split("\n"))


def test_the_completion_script_is_for_the_console_script(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["completion", "bash"]) == 0
    assert "complete -o nospace" in (script := capsys.readouterr().out) and " sluice\n" in script


def test_a_command_of_a_package_that_is_not_in_a_checkout_finds_its_job(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from sluice.cli import spark
    from sluice.errors import ConfigError

    assert spark.job_file("ingest.py") == REPOSITORY / "jobs" / "ingest.py"
    monkeypatch.setattr(spark, "INCLUDE", tmp_path / "site-packages")
    with monkeypatch.context() as absent:
        absent.setitem(sys.modules, "sluice_airflow", None)  # not found, even where the wheel is installed
        with pytest.raises(ConfigError, match=r"ingest\.py was not found"):
            spark.job_file("ingest.py")
    installed = tmp_path / "site-packages" / "sluice_airflow" / "jobs"
    installed.mkdir(parents=True)
    (installed.parent / "__init__.py").write_text("raise ImportError('needs Airflow')")
    (installed / "ingest.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path / "site-packages"))
    assert spark.job_file("ingest.py") == installed / "ingest.py"


def test_a_reason_is_asked_for_where_something_is_done() -> None:
    parser = arguments.Parser()
    arguments.add_decision(parser)
    arguments.check_decision(parser.parse_args([]))
    arguments.check_decision(parser.parse_args(["--yes", "--why", "x"]))
    with pytest.raises(SystemExit):
        arguments.check_decision(parser.parse_args(["--yes"]))


@pytest.mark.parametrize(
    "value", ["a\rspark.jars /evil.jar", "a\nspark.jars /evil.jar", " a", "\ta", "\fa", "\\", "", "é=:#!"]
)
def test_a_setting_stays_one_setting_in_sparks_properties_file(value: str) -> None:
    with spark.properties_file({"spark.a": value, "spark.b": "1"}) as file:
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert read_properties(file.read_text(encoding="utf-8")) == {"spark.a": value, "spark.b": "1"}


def read_properties(text: str) -> dict[str, str]:
    """As java.util.Properties reads a file whose keys have no escapes."""
    escapes = {"n": "\n", "r": "\r", "t": "\t", "f": "\f"}
    found = {}
    for line in filter(None, re.split(r"[\r\n]", text)):
        name, _, rest = line.partition(" ")
        value = re.sub(r"\\(.)", lambda each: escapes.get(each[1], each[1]), rest.lstrip(" \t\f"))
        found[name] = value
    return found
