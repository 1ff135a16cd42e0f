"""Protobuf descriptors: in, a schema from the registry (.proto text or serialized descriptor); out, message types.

`prune_message` reduces a message to the wanted fields; the executors get only that.
"""

from __future__ import annotations

import base64
import binascii
import errno
import os
import re
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from importlib import import_module, resources
from pathlib import Path, PurePosixPath
from threading import Lock
from typing import Any, NamedTuple

from pyspark.sql import types as T

from sluice.formats.convert import MAX_FIELDS, SchemaMismatchError, resolved_references, too_many_fields
from sluice.formats.internal_columns import join_path
from sluice.kafka.proto_text import restore, simplify
from sluice.kafka.registry import WriterSchema

# Confluent's serializers register no references for these files, since every client has them.
_WELL_KNOWN = re.compile(r"(confluent|google/(?:protobuf|type))/(?:\w+/)*\w+\.proto")
_IMPORT = re.compile(rf"""\bimport\s+(?:public\s+|weak\s+)?["']({_WELL_KNOWN.pattern})["']\s*;""")
_MODULES = {"confluent": "confluent_kafka.schema_registry.confluent"}
_MAIN, _ENUMS, _ENUMS_PACKAGE = "sluice_main.proto", "sluice_enums.proto", "sluice_enums"
BATCH = "SluiceBatch"
_STDERR = Lock()
_SAME_ON_THE_WIRE = {9: 12, 11: 12, 14: 5}
"""Types of fields (string, message, enum) to those that say the same of the bytes, and less of the content."""
_INVALID_REFERENCE = "the schema has a reference whose name is not a relative path"
_NAME_ERRORS = frozenset({errno.ENAMETOOLONG, errno.EISDIR, errno.ENOTDIR, errno.EEXIST, errno.EINVAL})
"""Errors of writing a file that its name causes, not the disk."""
_WRAPPED = ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
_TIMES: dict[str, type[T.DataType] | tuple[type[T.DataType], ...]] = {
    "google.protobuf.Timestamp": T.TimestampType,
    "google.protobuf.Duration": (T.LongType, T.DecimalType),
}
"""Messages to the types that `convert` makes of their seconds and nanoseconds, since a reader may take invalid ones."""
_SCALAR_MESSAGES = {*_TIMES, *(f"google.protobuf.{each}Value" for each in _WRAPPED)}
"""Messages that are read as one value. google.type.Date and TimeOfDay are not: pruned copies have other names, since a
partial date would be read as a wrong one, and nanoseconds would be lost."""
DescriptorFiles = tuple[bytes, ...]
"""Serialized FileDescriptorProtos, dependencies first; the last one is the schema's own."""


@cache
def descriptor_files(schema: WriterSchema) -> DescriptorFiles:
    """The descriptors of a schema and of all that it imports.

    Raises:
        SchemaMismatchError: The schema cannot be compiled, or lacks an import.
    """
    from google.protobuf.descriptor_pb2 import FileDescriptorProto
    from google.protobuf.message import DecodeError

    try:
        texts = [*resolved_references(schema), (_MAIN, schema.text)]
        own = [FileDescriptorProto.FromString(base64.b64decode(text, validate=True)) for _, text in texts]
        for (name, _), file in zip(texts[:-1], own, strict=False):
            file.name = name
        own[-1].name = _MAIN
        known = {file.name for file in own}
        imported = _well_known_files(n for file in own for n in file.dependency if n not in known)
        return tuple(f.SerializeToString() for f in [*imported, *own])
    except (binascii.Error, ValueError, DecodeError):
        pass  # not a serialized descriptor, so a .proto text
    return tuple(f.SerializeToString() for f in _compile(schema))


def _well_known_files(names: Iterable[str]) -> list[Any]:
    """The descriptors of files that need no reference, and of their imports, dependencies first.

    Raises:
        SchemaMismatchError: A name is not one of these files.
    """
    from google.protobuf.descriptor_pb2 import FileDescriptorProto

    found: dict[str, FileDescriptorProto] = {}

    def follow(name: str) -> None:
        if name in found:
            return
        known = _WELL_KNOWN.fullmatch(name)
        try:
            if not known:
                raise ModuleNotFoundError(name)
            folder = _MODULES.get(known[1], known[1].replace("/", "."))
            inner = name[len(known[1]) :].removesuffix(".proto").replace("/", ".")
            file = FileDescriptorProto.FromString(import_module(f"{folder}{inner}_pb2").DESCRIPTOR.serialized_pb)
        except ModuleNotFoundError as error:
            reason = f"the schema imports {name!r}, which the registry does not list as a reference"
            raise SchemaMismatchError("", reason) from error
        for each in file.dependency:
            follow(each)
        found[name] = file

    for name in names:
        follow(name)
    return list(found.values())


def _compile(schema: WriterSchema) -> list[Any]:
    """Compile a .proto text with protoc to FileDescriptorProtos, dependencies first.

    Raises:
        SchemaMismatchError: protoc refuses the text, and also what `simplify` makes of it.
    """
    texts = [*resolved_references(schema), (_MAIN, schema.text)]
    if (files := _run_protoc(texts)) is not None:
        return files
    files = _run_protoc(simplify(texts, {name for name, _ in texts} | _well_known_imports(texts)))
    if files is None:
        raise SchemaMismatchError("", "protoc cannot compile the schema")
    for file in files:
        restore(file.message_type, file.enum_type)
    return files


def _run_protoc(texts: Sequence[tuple[str, str]]) -> list[Any] | None:
    """What protoc makes of .proto texts, by name, the main one last; None if it refuses them."""
    from google.protobuf.descriptor_pb2 import FileDescriptorSet
    from grpc_tools import protoc

    imports = _well_known_imports(texts) - {name for name, _ in texts}
    with tempfile.TemporaryDirectory(prefix="sluice-") as folder:
        for name, text in texts:
            _write_source(Path(folder), name, text)
        output, others = Path(folder) / "made.bin", Path(folder) / "others.bin"
        others.write_bytes(FileDescriptorSet(file=_well_known_files(sorted(imports))).SerializeToString())
        include = resources.files("grpc_tools") / "_proto"
        paths = [f"-I{folder}", f"-I{include}", f"--descriptor_set_in={others}", f"--descriptor_set_out={output}"]
        with _silent_stderr():
            failed = protoc.main(["protoc", *paths, "--include_imports", _MAIN])
        if failed:
            others.write_bytes(bytes(1 << 16))  # raises if the disk is full, which protoc does not report
            return None
        return list(FileDescriptorSet.FromString(output.read_bytes()).file)


@contextmanager
def _silent_stderr() -> Iterator[None]:
    """Discard what the process prints: protoc, which is C++, prints the schema's text, control characters included."""
    with _STDERR, Path(os.devnull).open("wb") as nothing:
        saved = os.dup(2)
        os.dup2(nothing.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(saved, 2)
            os.close(saved)


def _well_known_imports(texts: Iterable[tuple[str, str]]) -> set[str]:
    return {found[1] for _, text in texts for found in _IMPORT.finditer(text)}


def _write_source(folder: Path, name: str, text: str) -> None:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts:
        raise SchemaMismatchError("", _INVALID_REFERENCE)
    target = folder / path
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
    except OSError as error:
        if error.errno not in _NAME_ERRORS:
            raise
        raise SchemaMismatchError("", _INVALID_REFERENCE) from error


def message_name(files: DescriptorFiles, indexes: tuple[int, ...]) -> str:
    """The full name of the message at the wire format's message indexes.

    Raises:
        SchemaMismatchError: There is no such message.
    """
    from google.protobuf.descriptor_pb2 import FileDescriptorProto

    main = FileDescriptorProto.FromString(files[-1])
    # Most clients count a map's entry type, which protoc makes, but those that go by the text do not.
    for skips_entries in (False, True):
        messages, found = main.message_type, []
        for index in indexes:
            messages = [each for each in messages if not (skips_entries and each.options.map_entry)]
            found += messages[index : index + 1]
            messages = found[-1].nested_type if found else []
        if len(found) == len(indexes) and not found[-1].options.map_entry:
            return ".".join([*filter(None, [main.package]), *(each.name for each in found)])
    raise SchemaMismatchError("", f"the schema has no message at {list(indexes)}")


def prune_message(
    files: DescriptorFiles, indexes: tuple[int, ...], wanted: T.StructType
) -> tuple[DescriptorFiles, str, str]:
    """Copy a message with only the wanted fields, at any depth; nothing else of the files matters.

    A copy's fields are named by their numbers and have their names as `json_name`: libraries refuse names that differ
    by case or underscores only. The copy's file also has a message `BATCH`, which repeats the copy in its only field.

    Returns:
        Files that have only the copies, the message's full name, and the copy's.

    Raises:
        SchemaMismatchError: There is no such message, or a wanted field is recursive, a group, or of an edition.
    """
    from google.protobuf.descriptor_pb2 import FileDescriptorProto

    protos = [FileDescriptorProto.FromString(each) for each in files]
    name = message_name(files, indexes)
    pruner = _MessagePruner(protos)
    copy = pruner.add_copy(pruner.find(f".{name}"), wanted, "")
    batch = pruner.files[protos[-1].name].message_type.add(name=BATCH)
    batch.field.add(name="records", number=1, label="LABEL_REPEATED", type="TYPE_MESSAGE", type_name=f".{copy}")
    return tuple(each.SerializeToString() for each in pruner.files.values()), name, copy


class _Found(NamedTuple):
    """A message or an enum of the schema: its full name with a dot before it, its descriptor, and its file's."""

    name: str
    proto: Any
    file: Any


class _WantedField(NamedTuple):
    """A field to copy: its descriptor, the message that has it, what is wanted of it, and its path."""

    proto: Any
    owner: _Found
    type: T.DataType | None
    path: str


class _MessagePruner:
    """Makes files that have only copies of messages, reduced to the wanted fields.

    A copy is in a file like its original's, which decides whether absent fields are null.
    """

    def __init__(self, protos: Iterable[Any]) -> None:
        from google.protobuf.descriptor_pb2 import FileDescriptorProto

        self.files: dict[str, Any] = {_ENUMS: FileDescriptorProto(name=_ENUMS, package=_ENUMS_PACKAGE)}
        self.types: dict[str, _Found] = {}
        self.enums: set[str] = set()
        self.copies = self.fields = 0
        self.enclosing: tuple[str, ...] = ()
        for each in protos:
            syntax = "proto3" if each.syntax == "editions" else each.syntax or "proto2"
            file = FileDescriptorProto(name=each.name, package=each.package, syntax=syntax)
            file.dependency.extend([_ENUMS, *each.dependency])
            file.public_dependency.extend(index + 1 for index in each.public_dependency)
            package = f".{each.package}" if each.package else ""
            file.message_type.extend(m for m in each.message_type if f"{package}.{m.name}"[1:] in _SCALAR_MESSAGES)
            self.files[each.name] = file
            self._add_types(each, package, each.message_type, each.enum_type)

    def _add_types(self, file: Any, scope: str, messages: Iterable[Any], enums: Iterable[Any]) -> None:
        for each in (*messages, *enums):
            self.types[f"{scope}.{each.name}"] = _Found(f"{scope}.{each.name}", each, file)
        self.enums.update(f"{scope}.{each.name}" for each in enums)
        for each in messages:
            self._add_types(file, f"{scope}.{each.name}", each.nested_type, each.enum_type)

    def find(self, name: str, scope: str = "", path: str = "") -> _Found:
        """A type by the name that a field of a message (`scope`) has for it."""
        parts = scope.split(".")
        scopes = [""] if name.startswith(".") else [".".join(parts[:end]) + "." for end in range(len(parts), 0, -1)]
        found = next((self.types[each + name] for each in scopes if each + name in self.types), None)
        if found is None:
            raise SchemaMismatchError(path, f"is of type {name}, which the schema does not define")
        if found.file.syntax == "editions":
            raise SchemaMismatchError("", "the schema uses an edition of Protobuf, but only proto2 and proto3 are read")
        return found

    def add_copy(self, found: _Found, want: T.DataType | None, path: str) -> str:
        """Copy a message with the fields of a wanted struct, else with all fields; returns the copy's full name."""
        wanted = {f.name: f.dataType for f in want.fields} if isinstance(want, T.StructType) else None
        name = found.name[1:]
        is_time = isinstance(want, _TIMES.get(name, ()))
        if name in _SCALAR_MESSAGES and not is_time:
            return name
        if wanted is None and name in self.enclosing:
            raise SchemaMismatchError(path, f"is recursive ({name}), which no column type holds")
        if len({f.number for f in found.proto.field}) < len(found.proto.field):
            raise SchemaMismatchError(path, f"has several fields with one number (message {name})")
        outer, self.enclosing = self.enclosing, (*self.enclosing, name)
        copy, copy_name = self._new_message(found.file.name)
        fields = [f for f in found.proto.field if wanted is None or f.name in wanted]
        self.fields += len(fields)
        if self.fields > MAX_FIELDS:
            raise too_many_fields(path)
        oneofs = sorted({f.oneof_index for f in fields if f.HasField("oneof_index")})
        for index in oneofs:
            copy.oneof_decl.add(name=f"one_of_{index}")
        for each in fields:
            want = wanted[each.name] if wanted else None
            field = self._add_field(
                copy, f"sluice_{each.number}", _WantedField(each, found, want, join_path(path, each.name))
            )
            if is_time:  # no other message has such names
                field.json_name = f"{name}.{each.name}"
            if each.HasField("oneof_index"):
                field.oneof_index, field.proto3_optional = oneofs.index(each.oneof_index), each.proto3_optional
        for each in found.proto.field:  # whoever reads it, the last member of a oneof clears the others
            is_other = each.HasField("oneof_index") and each.oneof_index in oneofs and each not in fields
            if is_other and each.type != each.TYPE_GROUP:
                kind = _SAME_ON_THE_WIRE.get(each.type, each.type)
                name = f"sluice_{each.number}"
                member = copy.field.add(
                    name=name, json_name=name, number=each.number, label="LABEL_OPTIONAL", type=kind
                )
                member.oneof_index = oneofs.index(each.oneof_index)
        self.enclosing = outer
        return copy_name

    def _new_message(self, file: str) -> tuple[Any, str]:
        """Add a message to a file; returns it and its full name."""
        self.copies += 1
        message = self.files[file].message_type.add(name=f"Sluice{self.copies}_")
        return message, f"{self.files[file].package}.{message.name}".lstrip(".")

    def _add_field(self, copy: Any, name: str, wanted: _WantedField) -> Any:
        """Add a field to a copy, and what its type refers to."""
        original, owner, want, path = wanted
        if original.type == original.TYPE_GROUP:  # which the decoder silently skips
            raise SchemaMismatchError(path, "is a group, which is not read; use a message type instead")
        is_list = original.label == original.LABEL_REPEATED
        field = copy.field.add(name=name, json_name=original.name, number=original.number, type=original.type)
        field.label = field.LABEL_REPEATED if is_list else field.LABEL_OPTIONAL
        if original.options.HasField("packed"):
            field.options.packed = original.options.packed
        if not original.type_name:
            return field
        found = self.find(original.type_name, owner.name, path)
        if found.name in self.enums:
            field.type, field.type_name = field.TYPE_ENUM, self._add_enum(found, owner)
            if field.type_name.startswith(f".{_ENUMS_PACKAGE}.") and not is_list:
                if name == "value":
                    raise SchemaMismatchError(path, "is of an enum without the value 0, which a map's values must have")
                if not original.HasField("oneof_index"):
                    field.proto3_optional, field.oneof_index = True, len(copy.oneof_decl)
                    copy.oneof_decl.add(name=f"present_{original.number}")
            return field
        field.type = field.TYPE_MESSAGE
        if is_list and found.proto.options.map_entry:
            entry = copy.nested_type.add(name=f"Entry{original.number}", options={"map_entry": True})
            value = want.valueType if isinstance(want, T.MapType) else None
            for part, each in zip(("key", "value"), found.proto.field, strict=True):
                inner = value if part == "value" else None
                self._add_field(entry, part, _WantedField(each, found, inner, f"{path}{{}}"))
            package = self.files[owner.file.name].package
            field.type_name = ".".join(["", *filter(None, [package]), copy.name, entry.name])
        elif is_list:
            element = want.elementType if isinstance(want, T.ArrayType) else None
            field.type_name = f".{self.add_copy(found, element, f'{path}[]')}"
        else:
            field.type_name = f".{self.add_copy(found, want, path)}"
        return field

    def _add_enum(self, found: _Found, owner: _Found) -> str:
        """Copy an enum into a message of its own, where its values' names are unique; returns its name."""
        values = sorted(found.proto.value, key=lambda each: each.number != 0)
        # An enum of proto3 must have 0. One that lacks it becomes one of proto2; a field that was not set is null then.
        lacks_zero = owner.file.syntax == "proto3" and bool(values) and values[0].number != 0
        message, name = self._new_message(_ENUMS if lacks_zero else found.file.name)
        enum = message.enum_type.add(name="E", options={"allow_alias": True})
        for each in values:
            enum.value.add(name=each.name, number=each.number)
        return f".{name}.E"


@cache
def _pool(files: DescriptorFiles) -> Any:
    from google.protobuf.descriptor_pool import DescriptorPool

    pool = DescriptorPool()
    for each in files:
        pool.AddSerializedFile(each)
    return pool


def find_descriptor(files: DescriptorFiles, name: str) -> Any:
    """A message's descriptor, by its full name.

    Raises:
        SchemaMismatchError: The descriptors are inconsistent, or have no such message.
    """
    try:
        return _pool(files).FindMessageTypeByName(name)
    except (TypeError, KeyError) as error:
        raise SchemaMismatchError("", "the schema's descriptors are inconsistent") from error
