"""Protobuf's descriptors: from what the registry has, a .proto text or a serialized descriptor, to a message's type."""

from __future__ import annotations

import base64
import binascii
import tempfile
from functools import cache
from importlib import import_module, resources
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from sluice.fit import UnfitError
from sluice.registry import WriterSchema

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor

_WELL_KNOWN = (
    "any",
    "api",
    "duration",
    "empty",
    "field_mask",
    "source_context",
    "struct",
    "timestamp",
    "type",
    "wrappers",
)
_MAIN = "sluice_main.proto"
Files = tuple[bytes, ...]
"""Serialized FileDescriptorProtos, what is needed first coming first; the last one is the schema's own."""


def files_of(schema: WriterSchema) -> Files:
    """The descriptors of a schema and of all that it imports."""
    from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
    from google.protobuf.message import DecodeError

    try:
        texts = [*schema.references, (_MAIN, schema.text)]
        own = [FileDescriptorProto.FromString(base64.b64decode(text, validate=True)) for _, text in texts]
        for (name, _), file in zip(texts[:-1], own, strict=False):
            file.name = name
        own[-1].name = _MAIN
        known = {file.name for file in own}
        needed = [_well_known(n) for file in own for n in file.dependency if n not in known]
        return tuple(dict.fromkeys(f.SerializeToString() for f in [*needed, *own]))
    except (binascii.Error, ValueError, DecodeError):
        pass  # a .proto text, then
    return tuple(f.SerializeToString() for f in FileDescriptorSet.FromString(_compiled(schema)).file)


def _well_known(name: str) -> Any:
    from google.protobuf import descriptor_pool
    from google.protobuf.descriptor_pb2 import FileDescriptorProto

    for each in _WELL_KNOWN:
        import_module(f"google.protobuf.{each}_pb2")
    found = FileDescriptorProto()
    try:
        descriptor_pool.Default().FindFileByName(name).CopyToProto(found)
    except KeyError as error:
        raise UnfitError(
            "", f"there is an import of {name!r}, which the registry does not name as a reference"
        ) from error
    return found


def _compiled(schema: WriterSchema) -> bytes:
    """What protoc makes of the text: a serialized FileDescriptorSet."""
    from grpc_tools import protoc

    with tempfile.TemporaryDirectory(prefix="sluice-") as folder:
        for name, text in [*schema.references, (_MAIN, schema.text)]:
            pure = PurePosixPath(name)
            if pure.is_absolute() or ".." in pure.parts:
                raise UnfitError("", "there is a reference whose name is no relative path")
            place = Path(folder) / pure
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(text, encoding="utf-8")
        made = Path(folder) / "made.bin"
        include = resources.files("grpc_tools") / "_proto"
        arguments = [
            "protoc",
            f"-I{folder}",
            f"-I{include}",
            f"--descriptor_set_out={made}",
            "--include_imports",
            _MAIN,
        ]
        if protoc.main(arguments) != 0:
            raise UnfitError("", "there is what protoc does not compile")
        return made.read_bytes()


def cut(files: Files, path: tuple[int, ...], wanted: frozenset[str]) -> tuple[Files, str]:
    """The same files, the message cut down to the wanted fields; and its full name."""
    from google.protobuf.descriptor_pb2 import FileDescriptorProto

    main = FileDescriptorProto.FromString(files[-1])
    names = [main.package] if main.package else []
    at: Any = main.message_type
    for index in path:
        if index >= len(at):
            raise UnfitError("", f"there is no message at {list(path)}")
        message, at = at[index], at[index].nested_type
        names.append(message.name)
    full = ".".join(names)
    _refuse_recursion(descriptor(files, full), wanted)
    kept = [f for f in message.field if f.name in wanted]
    used = sorted({f.oneof_index for f in kept if f.HasField("oneof_index")})
    for each in kept:
        if each.HasField("oneof_index"):
            each.oneof_index = used.index(each.oneof_index)
    declared = [message.oneof_decl[index] for index in used]
    for field, values in (("field", kept), ("oneof_decl", declared)):
        copies = [type(v).FromString(v.SerializeToString()) for v in values]
        message.ClearField(field)
        getattr(message, field).extend(copies)
    return (*files[:-1], main.SerializeToString()), full


def _refuse_recursion(root: Descriptor, wanted: frozenset[str]) -> None:
    def follow(message: Descriptor, path: str, inside: tuple[str, ...]) -> None:
        if message.full_name in inside:
            raise UnfitError(path, f"holds itself ({message.full_name}): a column can't nest without end")
        for each in message.fields:
            if each.message_type and (inside or each.name in wanted):
                where = f"{path}.{each.name}" if path else each.name
                follow(each.message_type, where, (*inside, message.full_name))

    follow(root, "", ())


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
