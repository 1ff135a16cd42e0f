"""Checks the catalog and the storage with a scratch table in a namespace of its own; both are removed at the end.

In: PyIceberg's configuration. Out: what works, or the operation that does not.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from sluice.errors import CatalogUnavailableError, ConfigError, SluiceError, first_line
from sluice.iceberg import table_names

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table

NAMESPACE = f"{table_names.OWN}_doctor_"
"""A scratch table has a namespace of its own: two checks at once would create and drop one under each other's feet."""
RIGHTS = "Grant Sluice's user the rights to create, change, read and drop namespaces and tables, and to their files."


@contextmanager
def _step(what: str, next_step: str = RIGHTS) -> Iterator[None]:
    """Name the operation in the error."""
    try:
        yield
    except SluiceError as error:
        raise type(error)(f"{what}: {error.message}", next_step=error.next_step, **error.fields) from error
    except Exception as error:
        if isinstance(error, TimeoutError | ConnectionError):
            raise CatalogUnavailableError(f"{what}: {first_line(error)}") from error
        from sluice.iceberg import catalog

        why, step = catalog.find_file_problem(error) or (first_line(error), next_step)
        raise ConfigError(f"{what} fails: {why}", next_step=step) from error


@contextmanager
def _scratch_table(catalog: Catalog) -> Iterator[Table]:
    """A table in a namespace with a unique name; at the end, both and the table's files are removed."""
    from pyiceberg.schema import Schema
    from pyiceberg.types import LongType, NestedField

    from sluice.iceberg import tables

    unique = uuid.uuid4().hex[:12]
    name = (f"{NAMESPACE}{unique}", f"t_{unique}")
    try:
        with _step("creating a namespace and a table"):
            table = tables.ensure_table(catalog, name, Schema(NestedField(1, "n", LongType())))
        yield table
    except BaseException:
        with suppress(Exception):  # the first error is the one to report
            _remove(catalog, name)
        raise
    with _step("dropping the table"):
        _remove(catalog, name)


def _remove(catalog: Catalog, name: tuple[str, str]) -> None:
    from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError

    try:
        with suppress(NoSuchTableError):
            table = catalog.load_table(name)
            catalog.purge_table(name)
            remove_folder(table, name[0])
    finally:
        with suppress(NoSuchNamespaceError):
            catalog.drop_namespace(name[0])


def remove_folder(table: Table, namespace: str) -> None:
    """Remove what a purge leaves: folders of a local disk, or files of a catalog whose server purges later."""
    fs, path = _file_system(table, table.location())
    folder, _, last = path.rstrip("/").rpartition("/")
    if folder.rpartition("/")[2].startswith(namespace):
        path = folder
    elif not last.startswith(table.name()[-1]):
        return  # the catalog places tables in a shared folder
    with suppress(FileNotFoundError):
        fs.delete_dir(path)


def _file_system(table: Table, location: str) -> tuple[FileSystem, str]:
    """PyArrow's file system for a location of the table, and the path in it."""
    from pyiceberg.io.pyarrow import PyArrowFileIO

    io = table.io if isinstance(table.io, PyArrowFileIO) else PyArrowFileIO(table.io.properties)
    scheme, host, path = io.parse_location(location, io.properties)
    return io.fs_by_scheme(scheme, host), path


def check_catalog(patience: float) -> str:
    """Check commits, requirements, branches, tags and several updates in one commit, on a scratch table.

    Raises:
        CatalogUnavailableError: it does not answer.
        RequirementsNotEnforcedError: it accepts a commit whose requirement does not hold.
        ConfigError: it is not configured, or an operation fails.
    """
    import pyarrow as pa
    from pyiceberg.table.update import AssertRefSnapshotId, SetPropertiesUpdate

    from sluice.iceberg import availability, refs, requirements_check
    from sluice.iceberg.catalog import describe_differences

    different = describe_differences()  # before anything is created
    catalog = availability.open_catalog(patience)
    try:
        with _scratch_table(catalog) as scratch:
            with _step("committing rows"):
                scratch.append(pa.table({"n": pa.array([1], pa.int64())}))
            with _step("a commit that must be refused"):
                requirements_check.check(catalog, catalog.load_table(scratch.name()))
            table = catalog.load_table(scratch.name())
            head = table.metadata.current_snapshot_id or 0
            with _step("one commit with a branch, a tag and a property"):
                refs.commit(
                    catalog,
                    table,
                    (AssertRefSnapshotId(ref=refs.MAIN, snapshot_id=head),),
                    (
                        refs.set_ref("sluice_doctor_branch", head),
                        refs.set_ref("sluice_doctor_tag", head, tag=True),
                        SetPropertiesUpdate(updates={"sluice.doctor": "1"}),
                    ),
                )
            found = catalog.load_table(table.name())
            kept = {"sluice_doctor_branch", "sluice_doctor_tag"} <= set(found.metadata.refs)
            if not kept or found.properties.get("sluice.doctor") != "1":
                raise ConfigError(
                    "The catalog accepted one commit with a branch, a tag and a property, and kept only a part of it.",
                    next_step="Use a catalog that keeps all updates of a commit.",
                )
        kind = requirements_check.identify(catalog).rsplit(".", 1)[-1]
        return f"{kind}: commits, branches, tags and drops work{f'; {different}' if different else ''}"
    finally:
        catalog.close()


def check_storage(patience: float) -> str:
    """Check that files can be written, read, listed by their prefix and deleted where tables are.

    Raises:
        CatalogUnavailableError: the catalog does not answer.
        ConfigError: an operation fails.
    """
    from sluice.iceberg import availability

    catalog = availability.open_catalog(patience)
    advice = "Check the storage's address, region, credentials and rights in the catalog's settings."
    try:
        with _scratch_table(catalog) as table:
            folder = f"{table.location().rstrip('/')}/doctor"
            address = f"{folder}/{uuid.uuid4().hex[:8]}"
            try:
                writing = _step(f"writing a file in {folder}", advice)
                with writing, table.io.new_output(address).create() as stream:
                    stream.write(b"sluice doctor")
                with _step("reading it", advice), table.io.new_input(address).open() as stream:
                    content = stream.read()
                with _step("listing files by their prefix", advice):
                    listed = _list_files(table, folder)
            finally:
                with suppress(Exception):
                    table.io.delete(address)
            with _step("deleting a file", advice):
                remains = table.io.new_input(address).exists()
            if content != b"sluice doctor" or not listed or remains:
                raise ConfigError(
                    f"A file in {folder} was written; read back whole: {content == b'sluice doctor'}, listed: "
                    f"{listed}, deleted: {not remains}.",
                    next_step=advice,
                )
        return f"{folder.split('/', 3)[0] or 'file:'} files can be written, read, listed and deleted"
    finally:
        catalog.close()


def _list_files(table: Table, folder: str) -> bool:
    """Whether a listing of the folder has its file."""
    from pyarrow.fs import FileSelector

    fs, path = _file_system(table, folder)
    return bool(fs.get_file_info(FileSelector(path, allow_not_found=True)))
