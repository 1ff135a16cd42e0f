"""`sluice completion`: prints the script by which a shell completes commands, options, tables and groups.

In: a shell's name. Out: argcomplete's script for it.
"""

from __future__ import annotations

import argparse
from typing import Any

from sluice.cli.arguments import add_command


def add_commands(commands: Any) -> None:
    """Add the command."""
    parser = add_command(
        commands,
        "completion",
        _completion,
        "print the script with which a shell completes `sluice`",
        ["bash >~/.local/share/bash-completion/completions/sluice", "zsh >~/.zfunc/_sluice"],
    )
    parser.add_argument("shell", choices=["bash", "zsh", "fish"])


def _completion(given: argparse.Namespace) -> int:
    from argcomplete.shell_integration import shellcode

    print(shellcode(["sluice"], shell=given.shell))
    return 0
