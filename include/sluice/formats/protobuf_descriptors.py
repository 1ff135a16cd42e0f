"""Protobuf's descriptors: from what the registry has, a .proto text or a serialized descriptor, to a message's type."""

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

from sluice.formats.convert import UnfitError, references_of
from sluice.formats.internal_columns import dotted
from sluice.kafka.registry import WriterSchema

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor

# Confluent's serializers register no references for these: every client has them.
_WELL_KNOWN = re.compile(r"(confluent|google/(?:protobuf|type))/(?:\w+/)*\w+\.proto")
_IMPORT = re.compile(rf"""\bimport\s+(?:public\s+|weak\s+)?["']({_WELL_KNOWN.pattern})["']\s*;""")
_MODULES = {"confluent": "confluent_kafka.schema_registry.confluent"}
_MAIN = "sluice_main.proto"
_NO_PATH = "there is a reference whose name is no relative path"
_BY_NAME = frozenset({errno.ENAMETOOLONG, errno.EISDIR, errno.ENOTDIR, errno.EEXIST, errno.EINVAL})
"""Errors of a file that its name is to blame for, and not the disk."""
_WRAPPED = ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
_AS_ONE = {f"google.protobuf.{name}" for name in ("Timestamp", "Duration", *(f"{each}Value" for each in _WRAPPED))}
"""Messages that are read as one value, by their names. google.type.Date and TimeOfDay are not, and copied under others:
half a date would become a wrong one, and nanoseconds would be lost."""
Files = tuple[bytes, ...]
"""Serialized FileDescriptorProtos, what is needed first coming first; the last one is the schema's own."""


@cache
def files_of(schema: WriterSchema) -> Files:
    """The descriptors of a schema and of all that it imports."""
    from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
    from google.protobuf.message import DecodeError

    try:
        texts = [*references_of(schema), (_MAIN, schema.text)]
        own = [FileDescriptorProto.FromString(base64.b64decode(text, validate=True)) for _, text in texts]
        for (name, _), file in zip(texts[:-1], own, strict=False):
            file.name = name
        own[-1].name = _MAIN
        known = {file.name for file in own}
        needed = _well_known(n for file in own for n in file.dependency if n not in known)
        return tuple(f.SerializeToString() for f in [*needed, *own])
    except (binascii.Error, ValueError, DecodeError):
        pass  # a .proto text, then
    return tuple(f.SerializeToString() for f in FileDescriptorSet.FromString(_compiled(schema)).file)


def _well_known(names: Iterable[str]) -> list[Any]:
    """The descriptors of files that need no reference, and of what these import, what is needed first coming first.

    Raises:
        UnfitError: One of them is no such file.
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
            raise UnfitError(
                "", f"there is an import of {name!r}, which the registry does not name as a reference"
            ) from error
        for each in file.dependency:
            follow(each)
        found[name] = file

    for name in names:
        follow(name)
    return list(found.values())


def _compiled(schema: WriterSchema) -> bytes:
    """What protoc makes of the text: a serialized FileDescriptorSet."""
    from google.protobuf.descriptor_pb2 import FileDescriptorSet
    from grpc_tools import protoc

    texts = [*references_of(schema), (_MAIN, schema.text)]
    imports = {found[1] for _, text in texts for found in _IMPORT.finditer(text)} - {name for name, _ in texts}
    with tempfile.TemporaryDirectory(prefix="sluice-") as folder:
        for name, text in texts:
            pure = PurePosixPath(name)
            if pure.is_absolute() or ".." in pure.parts:
                raise UnfitError("", _NO_PATH)
            place = Path(folder) / pure
            try:
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_text(text, encoding="utf-8")
            except OSError as error:
                if error.errno not in _BY_NAME:
                    raise
                raise UnfitError("", _NO_PATH) from error
        made, others = Path(folder) / "made.bin", Path(folder) / "others.bin"
        others.write_bytes(FileDescriptorSet(file=_well_known(sorted(imports))).SerializeToString())
        include = resources.files("grpc_tools") / "_proto"
        arguments = [
            "protoc",
            f"-I{folder}",
            f"-I{include}",
            f"--descriptor_set_in={others}",
            f"--descriptor_set_out={made}",
            "--include_imports",
            _MAIN,
        ]
        if protoc.main(arguments) != 0:
            others.write_bytes(bytes(1 << 16))  # raises where the disk is full: protoc does not tell
            raise UnfitError("", "there is what protoc does not compile")
        return made.read_bytes()


def name_of(files: Files, path: tuple[int, ...]) -> str:
    """The full name of the message at a path of indexes.

    Raises:
        UnfitError: There is no such message.
    """
    from google.protobuf.descriptor_pb2 import FileDescriptorProto

    main = FileDescriptorProto.FromString(files[-1])
    names = [main.package] if main.package else []
    at: Any = main.message_type
    for index in path:
        if index >= len(at):
            raise UnfitError("", f"there is no message at {list(path)}")
        names.append(at[index].name)
        at = at[index].nested_type
    return ".".join(names)


def cut(files: Files, path: tuple[int, ...], wanted: T.StructType) -> tuple[Files, str, str]:
    """The same files with a copy of a message that has only what is wanted of it, however deep; both full names.

    Raises:
        UnfitError: There is no such message, or what is wanted of it nests without end, is a group, or of an edition.
    """
    from google.protobuf.descriptor_pb2 import FileDescriptorProto

    protos = [FileDescriptorProto.FromString(each) for each in files]
    if any(each.syntax == "editions" for each in protos):
        raise UnfitError("", "there is an edition of Protobuf, and what is read is proto2 and proto3")
    full = name_of(files, path)
    copy = _Cutter({each.name: each for each in protos}).message(descriptor(files, full), wanted, "")
    return tuple(each.SerializeToString() for each in protos), full, copy


@dataclass
class _Cutter:
    """Adds copies of messages, cut down to what is wanted, to the files that these stand in."""

    files: dict[str, Any]
    made: int = 0
    inside: tuple[str, ...] = ()

    def message(self, of: Descriptor, want: T.DataType | None, path: str) -> str:
        """The full name of a copy with the fields that a wanted struct has, else with all of them."""
        part = {f.name: f.dataType for f in want.fields} if isinstance(want, T.StructType) else None
        if of.full_name in _AS_ONE:
            return str(of.full_name)
        if part is None and of.full_name in self.inside:
            raise UnfitError(path, f"holds itself ({of.full_name}): a column can't nest without end")
        outer, self.inside = self.inside, (*self.inside, of.full_name)
        name = self._copy(of, part, path)
        self.inside = outer
        return name

    def _copy(self, of: Descriptor, part: Mapping[str, T.DataType] | None, path: str) -> str:
        from google.protobuf.descriptor_pb2 import DescriptorProto

        whole, copy = DescriptorProto(), DescriptorProto(name=f"Sluice{self.made}_")
        self.made += 1
        of.CopyToProto(whole)
        copy.options.CopyFrom(whole.options)
        full = f"{of.file.package}.{copy.name}".lstrip(".")
        kept = [f for f in whole.field if part is None or f.name in part]
        used = sorted({f.oneof_index for f in kept if f.HasField("oneof_index")})
        copy.oneof_decl.extend(whole.oneof_decl[index] for index in used)
        for each in kept:
            if each.HasField("oneof_index"):
                each.oneof_index = used.index(each.oneof_index)
            inner, where = of.fields_by_name[each.name].message_type, dotted(path, each.name)
            if each.type == each.TYPE_GROUP:  # which the decoder passes over, and says nothing
                raise UnfitError(where, "is a group, which is not read: it takes a field of a message's type")
            want = part[each.name] if part else None
            if inner and inner.GetOptions().map_entry:
                each.type_name = f".{full}.{self._entry(copy, inner, want, where)}"
            elif inner and each.type == each.TYPE_MESSAGE:
                if each.label == each.LABEL_REPEATED:
                    want, where = want.elementType if isinstance(want, T.ArrayType) else None, f"{where}[]"
                each.type_name = f".{self.message(inner, want, where)}"
        copy.field.extend(kept)
        self.files[of.file.name].message_type.append(copy)
        return full

    def _entry(self, copy: Any, of: Descriptor, want: T.DataType | None, path: str) -> str:
        """The name of a map's entry, which stands in the message that has the map."""
        entry = copy.nested_type.add()
        of.CopyToProto(entry)
        if value := of.fields_by_name["value"].message_type:
            part = want.valueType if isinstance(want, T.MapType) else None
            entry.field[1].type_name = f".{self.message(value, part, path + '{}')}"
        return str(entry.name)


@cache
def _pool(files: Files) -> Any:
    from google.protobuf.descriptor_pool import DescriptorPool

    pool = DescriptorPool()
    for each in files:
        pool.AddSerializedFile(each)
    return pool


def descriptor(files: Files, name: str) -> Any:
    """A message's descriptor, by its full name."""
    try:
        return _pool(files).FindMessageTypeByName(name)
    except (TypeError, KeyError) as error:
        raise UnfitError("", "there are descriptors that don't belong together") from error
