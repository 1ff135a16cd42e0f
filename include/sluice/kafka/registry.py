"""Writer schemas from the schema registry, by id or as a subject's newest, with everything they reference.

An id's schema never changes, so it is cached in the process, and on disk for outages; if the registry then returns
another one, that is an error. A subject's newest schema is cached for `cache.latest.ttl.sec`; unknown ids only within
`pinned_answers`, or good records would be quarantined.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sluice.errors import ConfigError, RegistryUnavailableError
from sluice.kafka.compat import raise_on_redirect
from sluice.kafka.registry_errors import (
    NO_LEVEL,
    NO_SCHEMA,
    NO_SUBJECT,
    Answer,
    call_registry,
    check_reachable,
    is_not_a_registry,
)
from sluice.kafka.registry_settings import SETTINGS_SOURCE, extract_url_credentials, registry_config
from sluice.kafka.schema_fingerprint import SchemaFingerprint, make_fingerprint, reused_id_error

if TYPE_CHECKING:
    from confluent_kafka.schema_registry import Schema, SchemaRegistryClient

log = logging.getLogger(__name__)

TIMEOUT_S, RETRIES = 10, 2
LATEST_TTL_S = 60
"""Default cache time of a subject's newest schema, so that all tables of a plan use the same one."""
LARGEST_ID = 2**31 - 1


@dataclass(frozen=True)
class WriterSchema:
    """A registered schema. Stored as JSON in the disk cache, by field name.

    Attributes:
        kind: `AVRO`, `JSON` or `PROTOBUF`.
        text: The schema.
        references: Name and text of each schema that it references; each after its own references.
        missing: References that the registry does not have, or no longer has; empty if it has them all.
        registered: The schema as registered, where `text` has its references inlined; else empty.
    """

    id: int
    kind: str
    text: str
    references: tuple[tuple[str, str], ...] = ()
    missing: str = ""
    registered: str = ""

    @property
    def fingerprint(self) -> SchemaFingerprint:
        """What tells it from other schemas; the same with its references apart, inlined, or missing."""
        references = None if self.missing or self.registered else self.references
        return make_fingerprint(self.kind, self.registered or self.text, references)


_fetched: dict[tuple[str, int], WriterSchema] = {}
_pinned: ContextVar[dict[tuple[str, int], WriterSchema | None] | None] = ContextVar("held", default=None)
_clients: dict[str, SchemaRegistryClient] = {}
"""By all of their settings: each has its own connections, and its own cache of newest schemas."""


@contextmanager
def pinned_answers() -> Iterator[None]:
    """Pin the registry's answer for each id, "unknown" included, in this context and thread.

    A batch is decoded twice, for the table and for the quarantine, and both must agree: a record that fails first and
    decodes the second time would get into neither.
    """
    token = _pinned.set({})
    try:
        yield
    finally:
        _pinned.reset(token)


def pinned_schemas() -> list[WriterSchema]:
    """Return the schemas that records were read with since `pinned_answers`; none outside of it."""
    return [each for each in (_pinned.get() or {}).values() if each and not each.missing]


def candidate_subjects(topic: str, types: Iterable[str] = ()) -> list[str]:
    """Return the subjects under which schemas of a topic's values may be registered.

    Args:
        topic: the topic.
        types: full names of the record types, for TopicRecordNameStrategy and RecordNameStrategy. The subject of
            TopicNameStrategy comes first: a union there may list all types.
    """
    return [f"{topic}-value", *(subject for each in types for subject in (f"{topic}-{each}", each))]


class SchemaRegistry:
    """A schema registry with Confluent's API.

    Args:
        settings: Settings of confluent-kafka's client; by default from the environment.
        folder: The disk cache; by default `SLUICE_SCHEMAS`, else in `SLUICE_HOME`, else in the user's cache folder.
    """

    def __init__(self, settings: Mapping[str, Any] | None = None, folder: Path | None = None) -> None:
        self._settings = extract_url_credentials(settings or registry_config())
        self._url = str(self._settings.get("url", ""))
        key = hashlib.sha256(self._url.encode()).hexdigest()[:16]
        self._key, self._folder = key, (folder or _default_folder()) / key

    @property
    def address(self) -> str:
        """Its URL, without user and password."""
        return self._url

    @cached_property
    def _client(self) -> SchemaRegistryClient:
        from confluent_kafka.schema_registry import SchemaRegistryClient

        defaults = {"timeout": TIMEOUT_S, "max.retries": RETRIES, "cache.latest.ttl.sec": LATEST_TTL_S}
        settings = {**defaults, **self._settings}
        key = json.dumps(settings, sort_keys=True, default=repr)
        try:
            return _clients.setdefault(key, _clients.get(key) or raise_on_redirect(SchemaRegistryClient(settings)))
        except (ValueError, TypeError, OSError) as error:  # the text may quote a setting
            what = "a certificate or key" if isinstance(error, OSError) else "a name or value"
            raise ConfigError(
                f"The settings of the schema registry are unusable: {what} ({type(error).__name__}).",
                next_step=f"Correct the extra of {SETTINGS_SOURCE}; ssl.ca.location is a file of PEM certificates.",
            ) from None

    def schemas(self, ids: Iterable[int]) -> dict[int, WriterSchema | None]:
        """Return the schemas of these ids; None for an id that the registry does not know.

        Raises:
            RegistryUnavailableError: The registry does not answer, and one of the ids was never fetched before.
            SchemaIdReusedError: An id has another schema than when it was fetched before.
            ConfigError: The address is not a registry's, or the registry rejects the login or the request.
        """
        return {each: self._schema(each) for each in sorted(set(ids))}

    def _schema(self, number: int) -> WriterSchema | None:
        if not 0 <= number <= LARGEST_ID:
            return None
        answers = _pinned.get()
        if answers is None:
            return self._known_or_asked(number)
        # Checked before the process's cache: another table may have fetched the schema since.
        if (self._key, number) not in answers:
            answers[self._key, number] = self._known_or_asked(number)
        return answers[self._key, number]

    def _known_or_asked(self, number: int) -> WriterSchema | None:
        if found := _fetched.get((self._key, number)):
            return found
        try:
            check_reachable(self._url, f"schema {number}", only_silent=True)
            found = self._fetch(number)
        except (RegistryUnavailableError, ConfigError) as error:
            unavailable = isinstance(error, RegistryUnavailableError) or is_not_a_registry(error)
            found = self._read_cached(number) if unavailable else None
            if found is None:
                raise
            log.warning("%s Using schema %s from the cache.", error.message, number)
        if found and not found.missing:
            _fetched[self._key, number] = found
        return found

    def newest(self, subject: str) -> WriterSchema | None:
        """Return a subject's newest schema; None if the subject does not exist.

        Raises:
            RegistryUnavailableError: The registry does not answer.
            ConfigError: The address is not a registry's, or the registry rejects the login or the request.
        """
        what = f"the newest schema of subject {subject}"
        check_reachable(self._url, what)
        return self._ask(what, NO_SUBJECT, lambda: self._latest(subject))

    def compatibility(self, subject: str) -> str:
        """Return the compatibility level of a subject, such as `BACKWARD` or `NONE`.

        Raises:
            RegistryUnavailableError: The registry does not answer.
            ConfigError: The address is not a registry's, or the registry rejects the login or the request.
        """
        what = f"the compatibility of subject {subject}"
        check_reachable(self._url, what)
        own = self._ask(what, NO_LEVEL, lambda: self._client.get_compatibility(subject))
        return own or self._ask("the compatibility of all subjects", (), self._client.get_compatibility) or "NONE"

    def _latest(self, subject: str) -> WriterSchema:
        found = self._client.get_latest_version(subject)
        return self._writer(found.schema_id or 0, found.schema)

    def _writer(self, number: int, schema: Schema) -> WriterSchema:
        return WriterSchema(number, schema.schema_type or "AVRO", self._text(schema), *self._references(schema))

    def _text(self, schema: Schema) -> str:
        text = schema.schema_str
        if not isinstance(text, str) or not text.strip():
            self._client.clear_caches()  # type: ignore[no-untyped-call]  # which would keep it
            raise ValueError("an answer without the text of a schema")
        return text

    def _fetch(self, number: int) -> WriterSchema | None:
        found = self._ask(f"schema {number}", NO_SCHEMA, lambda: self._writer(number, self._client.get_schema(number)))
        if found and found.missing and found.kind == "AVRO":
            found = self._resolved(found)
        if found:
            self._refuse_reused(found)
        if found and not found.missing:
            self._write_cached(found)
        return found

    def _refuse_reused(self, found: WriterSchema) -> None:
        """Compare a schema with the one in the disk cache, which is no longer used for outages if they differ."""
        path, reused = self._path(found.id), self._path(found.id, ".reused")
        kept = self._read_cached(found.id) or self._read_cached(found.id, ".reused")
        if kept is None or not kept.fingerprint.differs_from(found.fingerprint):
            return
        self._client.clear_caches()  # type: ignore[no-untyped-call]  # it may be restored while this process runs
        with suppress(OSError):
            path.replace(reused)
        raise reused_id_error(self._url, found.id, file=reused if reused.exists() else path)

    def _resolved(self, schema: WriterSchema) -> WriterSchema:
        """Return the schema with its references inlined: Apicurio has that even where the references were deleted."""
        # The client caches a schema by id, whatever its format.
        self._client.clear_caches()  # type: ignore[no-untyped-call]
        number = schema.id
        found = self._ask(f"schema {number}", NO_SCHEMA, lambda: self._client.get_schema(number, fmt="resolved"))
        text = (found and found.schema_str) or schema.text
        if text == schema.text:
            return schema
        return replace(schema, text=text, references=(), missing="", registered=schema.text)

    def _ask(self, what: str, absent: tuple[int, ...], call: Callable[[], Answer]) -> Answer | None:
        return call_registry(self._url, what, absent, call)

    def _references(self, schema: Schema) -> tuple[tuple[tuple[str, str], ...], str]:
        """Return name and text of all references, dependencies first; and what of them is missing, as text."""
        found: dict[str, str] = {}
        missing: list[str] = []
        followed: set[str] = set()

        def follow(parent: Schema) -> None:
            for each in parent.references or ():
                if each.name and each.name not in followed:
                    followed.add(each.name)
                    subject, version = each.subject or "", each.version or -1
                    what = f"version {version} of subject {subject!r}"
                    # Deleted versions too: records written with the schema are still in the topic.
                    call = partial(self._client.get_version, subject, version, deleted=True)
                    if inner := self._ask(what, NO_SUBJECT, call):
                        follow(inner.schema)
                        found[each.name] = self._text(inner.schema)
                    else:
                        missing.append(what)

        follow(schema)
        return tuple(found.items()), " and ".join(missing)

    def _write_cached(self, schema: WriterSchema) -> None:
        """Write to the disk cache, used when the registry is away; a failure is only logged."""
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile("w", dir=self._folder, delete=False, encoding="utf-8") as stream:
                json.dump(asdict(schema), stream)
            Path(stream.name).replace(self._path(schema.id))
            self._path(schema.id, ".reused").unlink(missing_ok=True)
        except OSError as error:
            log.warning("schema %s can't be cached in %s: %s", schema.id, self._folder, error)

    def _path(self, number: int, suffix: str = "") -> Path:
        """The file of a schema in the disk cache."""
        return self._folder / f"{number}{suffix}.json"

    def _read_cached(self, number: int, suffix: str = "") -> WriterSchema | None:
        try:
            cached = json.loads(self._path(number, suffix).read_text(encoding="utf-8"))
            if not cached["text"]:  # older releases cached any answer
                return None
            references = tuple((str(name), str(text)) for name, text in cached["references"])
            registered = str(cached.get("registered", ""))
            return WriterSchema(number, cached["kind"], cached["text"], references, registered=registered)
        except (OSError, ValueError, KeyError, TypeError):
            return None


def _default_folder() -> Path:
    if folder := os.environ.get("SLUICE_SCHEMAS"):
        return Path(folder)
    if home := os.environ.get("SLUICE_HOME"):
        return Path(home) / "schemas"
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "sluice" / "schemas"
