"""Hive's metastore, of the version whose client Spark has, with its database (Derby) and its tables in a folder.

Everything but Thrift for Python is in Spark's jars. It listens on every interface, because it has no setting for it.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Self

import pyspark

from sluice.embedded.home import cache_folder
from sluice.embedded.java import find_java
from sluice.embedded.ports import HOST, accepts_connections
from sluice.iceberg import compat
from tests.support.services.java_server import JavaServer

JARS = Path(pyspark.__file__).parent / "jars"
# What the metastore's own tool would create for locks; it creates the other tables by itself.
LOCK_TABLES = """
CREATE TABLE NEXT_LOCK_ID (NL_NEXT bigint NOT NULL);
INSERT INTO NEXT_LOCK_ID VALUES (1);
CREATE TABLE AUX_TABLE (
  MT_KEY1 varchar(128) NOT NULL, MT_KEY2 bigint NOT NULL, MT_COMMENT varchar(255), PRIMARY KEY (MT_KEY1, MT_KEY2)
);
CREATE TABLE TXNS (TXN_ID bigint PRIMARY KEY, TXN_STATE char(1), TXN_LAST_HEARTBEAT bigint);
CREATE TABLE HIVE_LOCKS (
  HL_LOCK_EXT_ID bigint NOT NULL, HL_LOCK_INT_ID bigint NOT NULL, HL_TXNID bigint,
  HL_DB varchar(128), HL_TABLE varchar(128), HL_PARTITION varchar(767), HL_LOCK_STATE char(1), HL_LOCK_TYPE char(1),
  HL_LAST_HEARTBEAT bigint, HL_ACQUIRED_AT bigint, HL_USER varchar(128), HL_HOST varchar(128),
  HL_HEARTBEAT_COUNT integer, HL_AGENT_INFO varchar(128), HL_BLOCKEDBY_EXT_ID bigint, HL_BLOCKEDBY_INT_ID bigint,
  PRIMARY KEY (HL_LOCK_EXT_ID, HL_LOCK_INT_ID)
);
"""


class HiveMetastore(JavaServer):
    """A metastore for a `with` block, whose setting allows contracts to change columns."""

    NAME, HEAP = "Hive metastore", "512m"
    SETTINGS: Mapping[str, str] = {compat.HIVE_COLUMNS_BY_POSITION: "false"}

    def __enter__(self) -> Self:
        script = self.folder / "locks.sql"
        script.write_text(f"CONNECT 'jdbc:derby:{self.folder}/database;create=true';{LOCK_TABLES}EXIT;")
        java = str(find_java(cache_folder()).executable)
        derby = os.pathsep.join(map(str, JARS.glob("derby*.jar")))
        command = [java, f"-Dderby.stream.error.file={self.folder}/derby.log", "-cp", derby]
        command += ["org.apache.derby.tools.ij", str(script)]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
        assert "ERROR" not in done.stdout, done.stdout
        return super().__enter__()

    @property
    def settings(self) -> dict[str, str]:
        """The settings of a PyIceberg catalog."""
        return {"TYPE": "hive", "URI": f"thrift://{HOST}:{self.port}", "WAREHOUSE": f"file://{self.folder}/warehouse"}

    def command(self) -> tuple[list[str], dict[str, str]]:
        settings = {
            "javax.jdo.option.ConnectionURL": f"jdbc:derby:{self.folder}/database",
            "datanucleus.schema.autoCreateAll": "true",
            "datanucleus.connectionPoolingType": "dbcp",
            "hive.metastore.schema.verification": "false",
            "hive.metastore.warehouse.dir": f"file://{self.folder}/of-the-server",
            "hive.async.log.enabled": "false",
            "derby.stream.error.file": f"{self.folder}/derby.log",
            "derby.system.durability": "test",
            "java.io.tmpdir": str(self.folder),  # for its log
            **self.SETTINGS,
        }
        return [
            *(f"-D{name}={value}" for name, value in settings.items()),
            *("-cp", f"{JARS}/*", "org.apache.hadoop.hive.metastore.HiveMetaStore", "-p", str(self.port)),
        ], {}

    def answers(self) -> bool:
        return accepts_connections(self.port)


class DefaultHiveMetastore(HiveMetastore):
    """One that compares columns by their positions, as a metastore does by default."""

    SETTINGS: Mapping[str, str] = {}
