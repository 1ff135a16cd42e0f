"""Takes settings and contracts to a driver on another machine, in one file that holds secrets.

In: variables and files of the Airflow worker. Out: the same in the driver's process, by `unpack`. Imports the standard
library alone, because DAG files import it.
"""

from __future__ import annotations

import atexit
import json
import os
import shutil
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

from sluice.errors import ConfigError

VARIABLE = "SLUICE_DRIVER_FILES"
"""Environment variable of a driver that names the file; without it the driver has its settings already."""
NAME = "sluice-driver.zip"

_VARIABLES, _CONTRACTS, _CATALOGS = "variables.json", "contracts", ".pyiceberg.yaml"


def pack(folder: Path, variables: Mapping[str, str], contracts: Path, catalogs: Path | None) -> Path:
    """Write the file, which only this user can read.

    Args:
        folder: where to write it.
        variables: the driver's environment variables.
        contracts: the folder of contracts.
        catalogs: PyIceberg's own configuration file, if there is one.
    """
    path = folder / NAME
    opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(opened, "wb") as file, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(_VARIABLES, json.dumps(variables))
        for each in sorted(contracts.iterdir()):
            if each.suffix in {".yaml", ".yml"}:
                archive.write(each, f"{_CONTRACTS}/{each.name}")
        if catalogs:
            archive.write(catalogs, _CATALOGS)
    return path


def unpack() -> None:
    """Set the variables, and put the files into a folder of this process, which is removed at its end.

    Raises:
        ConfigError: the file that `VARIABLE` names can't be read.
    """
    if not (name := os.environ.get(VARIABLE)):
        return
    folder = Path(tempfile.mkdtemp(prefix="sluice-driver-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    try:
        with zipfile.ZipFile(name) as archive:
            archive.extractall(folder)
        os.environ.update(json.loads((folder / _VARIABLES).read_text()))
    except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
        raise ConfigError(
            f"The driver's settings can't be read from {Path(name).absolute()}: {error}",
            next_step=f"Send the file with the application (spark-submit --files), and name it in {VARIABLE}.",
        ) from error
    os.environ["SLUICE_CONTRACTS"] = str(folder / _CONTRACTS)
    if (folder / _CATALOGS).exists():
        os.environ["PYICEBERG_HOME"] = str(folder)
