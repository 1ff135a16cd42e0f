"""The program that `Lab.drive` starts: runs a module's `main` and writes its result to a file."""

from __future__ import annotations

import importlib
import json
import logging
import sys
from pathlib import Path


def main() -> None:
    """Command line: the module, its keyword arguments as JSON, the file for the result."""
    module, arguments, answer = sys.argv[1:]
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    for name in ("py4j", "pyiceberg"):
        logging.getLogger(name).setLevel(logging.WARNING)
    result = importlib.import_module(module).main(**json.loads(arguments))
    Path(answer).write_text(json.dumps(result), encoding="utf-8")


if __name__ == "__main__":
    main()
