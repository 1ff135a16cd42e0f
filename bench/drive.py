"""What `Lab.drive` starts: one module's `main` in a process of its own, its result left in a file."""

from __future__ import annotations

import importlib
import json
import logging
import sys
from pathlib import Path


def main() -> None:
    """Arguments: module, keyword arguments as JSON, file for the answer."""
    module, arguments, answer = sys.argv[1:]
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    for name in ("py4j", "pyiceberg"):
        logging.getLogger(name).setLevel(logging.WARNING)
    result = importlib.import_module(module).main(**json.loads(arguments))
    Path(answer).write_text(json.dumps(result), encoding="utf-8")


if __name__ == "__main__":
    main()
