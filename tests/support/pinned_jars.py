"""The jars that only tests need (REST catalog, S3, YARN), pinned in pinned.lock."""

from __future__ import annotations

from pathlib import Path

from sluice.embedded import jars, relock

LOCK = Path(__file__).with_name("pinned.lock")
HEADER = """\
# The jars of the tests, pinned: "organisation:name:revision" = SHA-256 of the jar.
# Written by `PYTHONPATH=include:. python -m tests.support.pinned_jars` from the sets there.
"""
REST, REST_SERVER, REST_S3 = "rest", "rest-server", "rest-s3"
S3_SERVER, LOCAL_FILES = "s3-server", "local-files"
YARN = "yarn"
SETS = {
    REST: relock.JarSet(
        (
            "org.apache.iceberg:iceberg-core:1.11.0",
            "org.eclipse.jetty.ee10:jetty-ee10-servlet:12.1.5",
            "org.eclipse.jetty.compression:jetty-compression-server:12.1.5",
            "org.eclipse.jetty.compression:jetty-compression-gzip:12.1.5",
        ),
        transitive=True,
    ),
    # 1.12.0 is not in every repository. A set of its own, because Ivy resolves one artifact of a module at a time.
    REST_SERVER: relock.JarSet(
        (
            "org.apache.iceberg:iceberg-core:1.11.0:tests@jar",
            "org.apache.iceberg:iceberg-open-api:1.11.0:test-fixtures@jar",
        ),
        transitive=False,
    ),
    # S3 for that server, of its own version: the client of 1.12 lacks classes that 1.11 needs.
    REST_S3: relock.JarSet(
        (
            "org.apache.iceberg:iceberg-aws:1.11.0",
            "org.apache.iceberg:iceberg-aws-bundle:1.11.0",
            "dev.failsafe:failsafe:3.3.2",
        ),
        transitive=False,
    ),
    S3_SERVER: relock.JarSet(("com.adobe.testing:s3mock:5.2.0:exec@jar",), transitive=False),
    # ResourceManager and NodeManager, and what Hadoop's shaded jars expect beside them.
    YARN: relock.JarSet(
        (
            "org.apache.hadoop:hadoop-client-minicluster:3.4.2",
            "org.bouncycastle:bcprov-jdk18on:1.78.1",
            "org.bouncycastle:bcpkix-jdk18on:1.78.1",
            "org.bouncycastle:bcutil-jdk18on:1.78.1",
            "javax.xml.bind:jaxb-api:2.3.1",
            "javax.activation:javax.activation-api:1.2.0",
            "com.sun.xml.bind:jaxb-impl:2.3.9",
            "com.sun.xml.bind:jaxb-core:2.3.0.1",
        ),
        transitive=False,
    ),
    LOCAL_FILES: relock.JarSet(("com.globalmentor:hadoop-bare-naked-local-fs:0.1.0",), transitive=False),
}
FAST_FILE_SETTINGS = {"spark.hadoop.fs.file.impl": "com.globalmentor.apache.hadoop.fs.BareLocalFileSystem"}
"""Spark settings that need the jar of `LOCAL_FILES`. By default Hadoop starts a `chmod` process for each local file and
its checksum, a tenth of the time of small batches; this file system sets permissions in Java."""


def jars_in_set(name: str) -> list[Path]:
    """Return the jars of a set, fetched and verified."""
    return sorted(jars.ensure_jars(name, lock=jars.read_lock(LOCK)).glob("*.jar"))


if __name__ == "__main__":
    relock.write_lock(LOCK, SETS, HEADER)
