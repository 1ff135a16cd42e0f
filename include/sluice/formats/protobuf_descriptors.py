"""Protobuf descriptors: in, a schema from the registry (.proto text or serialized descriptor); out, message types.

`prune_message` reduces a message to the wanted fields; the executors get only that.
"""

from __future__ import annotations

import base64
import binascii
import errno
import re
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module, resources
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from pyspark.sql import types as T

from sluice.formats.convert import MAX_FIELDS, SchemaMismatchError, resolved_references, too_many_fields
from sluice.formats.internal_columns import join_path
from sluice.kafka.registry import WriterSchema

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor

# Confluent's serializers register no references for these files, since every client has them.
_WELL_KNOWN = re.compile(r"(confluent|google/(?:protobuf|type))/(?:\w+/)*\w+\.proto")
_IMPORT = re.compile(rf"""\bimport\s+(?:public\s+|weak\s+)?["']({_WELL_KNOWN.pattern})["']\s*;""")
_MODULES = {"confluent": "confluent_kafka.schema_registry.confluent"}
_MAIN = "sluice_main.proto"
_INVALID_REFERENCE = "the schema has a reference whose name is not a relative path"
_NAME_ERRORS = frozenset({errno.ENAMETOOLONG, errno.EISDIR, errno.ENOTDIR, errno.EEXIST, errno.EINVAL})
"""Errors of writing a file that its name causes, not the disk."""
_WRAPPED = ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
_SCALAR_MESSAGES = {
    f"google.protobuf.{name}" for name in ("Timestamp", "Duration", *(f"{each}Value" for each in _WRAPPED))
}
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
    from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
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
    return tuple(f.SerializeToString() for f in FileDescriptorSet.FromString(_compile(schema)).file)


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


def _compile(schema: WriterSchema) -> bytes:
    """Compile a .proto text with protoc to a serialized FileDescriptorSet."""
    from google.protobuf.descriptor_pb2 import FileDescriptorSet
    from grpc_tools import protoc

    texts = [*resolved_references(schema), (_MAIN, schema.text)]
    imports = {found[1] for _, text in texts for found in _IMPORT.finditer(text)} - {name for name, _ in texts}
    with tempfile.TemporaryDirectory(prefix="sluice-") as folder:
        for name, text in texts:
            _write_source(Path(folder), name, text)
        output, others = Path(folder) / "made.bin", Path(folder) / "others.bin"
        others.write_bytes(FileDescriptorSet(file=_well_known_files(sorted(imports))).SerializeToString())
        include = resources.files("grpc_tools") / "_proto"
        arguments = [
            "protoc",
            f"-I{folder}",
            f"-I{include}",
            f"--descriptor_set_in={others}",
            f"--descriptor_set_out={output}",
            "--include_imports",
            _MAIN,
        ]
        if protoc.main(arguments) != 0:
            others.write_bytes(bytes(1 << 16))  # raises if the disk is full, which protoc does not report
            raise SchemaMismatchError("", "protoc cannot compile the schema")
        return output.read_bytes()


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
    names = [main.package] if main.package else []
    messages: Any = main.message_type
    for index in indexes:
        if index >= len(messages):
            raise SchemaMismatchError("", f"the schema has no message at {list(indexes)}")
        names.append(messages[index].name)
        messages = messages[index].nested_type
    return ".".join(names)


def prune_message(
    files: DescriptorFiles, indexes: tuple[int, ...], wanted: T.StructType
) -> tuple[DescriptorFiles, str, str]:
    """Add a copy of a message that has only the wanted fields, at any depth.

    Returns:
        The files with the copy, the message's full name, and the copy's.

    Raises:
        SchemaMismatchError: There is no such message, or a wanted field is recursive, a group, or of an edition.
    """
    from google.protobuf.descriptor_pb2 import FileDescriptorProto

    protos = [FileDescriptorProto.FromString(each) for each in files]
    if any(each.syntax == "editions" for each in protos):
        raise SchemaMismatchError("", "the schema uses an edition of Protobuf, but only proto2 and proto3 are read")
    name = message_name(files, indexes)
    copy = _MessagePruner({each.name: each for each in protos}).add_copy(find_descriptor(files, name), wanted, "")
    return tuple(each.SerializeToString() for each in protos), name, copy


@dataclass
class _MessagePruner:
    """Adds copies of messages, reduced to the wanted fields, to the files that define the messages."""

    files: dict[str, Any]
    copies: int = 0
    fields: int = 0
    enclosing: tuple[str, ...] = ()

    def add_copy(self, message: Descriptor, want: T.DataType | None, path: str) -> str:
        """Copy a message with the fields of a wanted struct, else with all fields; returns the copy's full name."""
        fields = {f.name: f.dataType for f in want.fields} if isinstance(want, T.StructType) else None
        if message.full_name in _SCALAR_MESSAGES:
            return str(message.full_name)
        if fields is None and message.full_name in self.enclosing:
            raise SchemaMismatchError(path, f"is recursive ({message.full_name}), which no column type holds")
        outer, self.enclosing = self.enclosing, (*self.enclosing, message.full_name)
        name = self._copy(message, fields, path)
        self.enclosing = outer
        return name

    def _copy(self, message: Descriptor, wanted: Mapping[str, T.DataType] | None, path: str) -> str:
        from google.protobuf.descriptor_pb2 import DescriptorProto

        original, copy = DescriptorProto(), DescriptorProto(name=f"Sluice{self.copies}_")
        self.copies += 1
        message.CopyToProto(original)
        copy.options.CopyFrom(original.options)
        full_name = f"{message.file.package}.{copy.name}".lstrip(".")
        fields = [f for f in original.field if wanted is None or f.name in wanted]
        self.fields += len(fields)
        if self.fields > MAX_FIELDS:
            raise too_many_fields(path)
        oneofs = sorted({f.oneof_index for f in fields if f.HasField("oneof_index")})
        copy.oneof_decl.extend(original.oneof_decl[index] for index in oneofs)
        for each in fields:
            if each.HasField("oneof_index"):
                each.oneof_index = oneofs.index(each.oneof_index)
            inner, inner_path = message.fields_by_name[each.name].message_type, join_path(path, each.name)
            if each.type == each.TYPE_GROUP:  # which the decoder silently skips
                raise SchemaMismatchError(inner_path, "is a group, which is not read; use a message type instead")
            want = wanted[each.name] if wanted else None
            if inner and inner.GetOptions().map_entry:
                each.type_name = f".{full_name}.{self._add_map_entry(copy, inner, want, inner_path)}"
            elif inner and each.type == each.TYPE_MESSAGE:
                if each.label == each.LABEL_REPEATED:
                    want = want.elementType if isinstance(want, T.ArrayType) else None
                    inner_path = f"{inner_path}[]"
                each.type_name = f".{self.add_copy(inner, want, inner_path)}"
        copy.field.extend(fields)
        self.files[message.file.name].message_type.append(copy)
        return full_name

    def _add_map_entry(self, copy: Any, original: Descriptor, want: T.DataType | None, path: str) -> str:
        """Copy a map's entry type into the message that has the map; returns its name."""
        entry = copy.nested_type.add()
        original.CopyToProto(entry)
        if value := original.fields_by_name["value"].message_type:
            wanted_value = want.valueType if isinstance(want, T.MapType) else None
            entry.field[1].type_name = f".{self.add_copy(value, wanted_value, path + '{}')}"
        return str(entry.name)


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
