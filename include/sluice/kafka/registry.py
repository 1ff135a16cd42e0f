"""The schema registry: the writer's schema of an id, with all that it refers to.

Ids are for ever, so what was fetched is kept: in the process, and on disk for the time when the registry does not
answer. While it answers, each application asks it once for each id. What may change is asked for again: a subject's
newest schema after `cache.latest.ttl.sec`, an id that the registry does not know by each attempt at a batch, for
believing it too long would set good records apart. Within an attempt all answers hold: see `held`.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sluice.errors import ConfigError, RegistryUnavailableError
from sluice.kafka.registry_errors import (
    NO_LEVEL,
    NO_SCHEMA,
    NO_SUBJECT,
    Answer,
    ask,
    check_not_away,
    of_another,
    told_of_redirections,
)
from sluice.kafka.registry_settings import CONNECTION, config, without_password_in_url

if TYPE_CHECKING:
    from confluent_kafka.schema_registry import Schema, SchemaRegistryClient

log = logging.getLogger(__name__)

TIMEOUT_S, RETRIES = 10, 2
LATEST_TTL_S = 60
"""How long a subject's newest schema is believed, unless the settings say otherwise: the tables of a plan agree."""
LARGEST_ID = 2**31 - 1


@dataclass(frozen=True)
class WriterSchema:
    """What a producer registered.

    Attributes:
        kind: `AVRO`, `JSON` or `PROTOBUF`.
        text: The schema.
        references: What it refers to, name and text, each after what it refers to itself.
        lacking: What it refers to that the registry does not have, or not any more; empty where it has all.
    """

    id: int
    kind: str
    text: str
    references: tuple[tuple[str, str], ...] = ()
    lacking: str = ""


_known: dict[tuple[str, int], WriterSchema] = {}
_held: ContextVar[dict[tuple[str, int], WriterSchema | None] | None] = ContextVar("held", default=None)
_clients: dict[str, SchemaRegistryClient] = {}
"""By all of their settings: each has connections, and a cache of its own for newest schemas."""


@contextmanager
def held() -> Iterator[None]:
    """Within it each id has one answer, "there is none" among them; other threads, and whoever comes next, ask anew.

    What an attempt decodes twice, for the table and for the quarantine, must be judged alike: a record that was bad the
    first time and good the second would come into neither.
    """
    token = _held.set({})
    try:
        yield
    finally:
        _held.reset(token)


def subjects_of(topic: str, types: Iterable[str] = ()) -> list[str]:
    """The subjects that schemas of a topic's values may stand under.

    Args:
        types: names of the types that are read; by these go TopicRecordNameStrategy and RecordNameStrategy, after
            TopicNameStrategy's, under which a union may name them all.
    """
    return [f"{topic}-value", *(subject for each in types for subject in (f"{topic}-{each}", each))]


class Registry:
    """A registry that speaks Confluent's API.

    Args:
        settings: Of confluent-kafka's client.
        folder: Where schemas are kept; by default in SLUICE_HOME, else in the user's cache.
    """

    def __init__(self, settings: Mapping[str, Any] | None = None, folder: Path | None = None) -> None:
        self._settings = without_password_in_url(settings or config())
        self._url = str(self._settings.get("url", ""))
        key = hashlib.sha256(self._url.encode()).hexdigest()[:16]
        self._key, self._folder = key, (folder or _folder()) / key

    @cached_property
    def _client(self) -> SchemaRegistryClient:
        from confluent_kafka.schema_registry import SchemaRegistryClient

        usual = {"timeout": TIMEOUT_S, "max.retries": RETRIES, "cache.latest.ttl.sec": LATEST_TTL_S}
        settings = {**usual, **self._settings}
        key = json.dumps(settings, sort_keys=True, default=repr)
        try:
            return _clients.setdefault(key, _clients.get(key) or told_of_redirections(SchemaRegistryClient(settings)))
        except (ValueError, TypeError, OSError) as error:  # the text may quote a setting
            what = "a certificate or key" if isinstance(error, OSError) else "a name or value"
            raise ConfigError(
                f"The settings of the schema registry are unusable: {what} ({type(error).__name__}).",
                way_out=f"Correct the extra of {CONNECTION}; ssl.ca.location is a file of PEM certificates.",
            ) from None

    def schemas(self, ids: Iterable[int]) -> dict[int, WriterSchema | None]:
        """The schemas of these ids; None where the registry says that there is none.

        Raises:
            RegistryUnavailableError: It does not answer, or did not a moment ago, and one of the ids was never seen.
            ConfigError: What answers is no registry, or refuses us, or what was asked for.
        """
        return {each: self._schema(each) for each in sorted(set(ids))}

    def _schema(self, number: int) -> WriterSchema | None:
        if not 0 <= number <= LARGEST_ID:
            return None
        answers = _held.get()
        if answers is None:
            return self._known_or_asked(number)
        # Before what the process knows: another table's attempt may have learnt of the schema since.
        if (self._key, number) not in answers:
            answers[self._key, number] = self._known_or_asked(number)
        return answers[self._key, number]

    def _known_or_asked(self, number: int) -> WriterSchema | None:
        if found := _known.get((self._key, number)):
            return found
        try:
            check_not_away(self._url, f"schema {number}", silent=True)
            found = self._fetch(number)
        except (RegistryUnavailableError, ConfigError) as error:
            away = isinstance(error, RegistryUnavailableError) or of_another(error)
            found = self._kept(number) if away else None
            if found is None:
                raise
            log.warning("%s Going on with schema %s as it was fetched before.", error.message, number)
        if found and not found.lacking:
            _known[self._key, number] = found
        return found

    def newest(self, subject: str) -> WriterSchema | None:
        """The newest schema of a subject; None where nothing is registered under it.

        Raises:
            RegistryUnavailableError: It does not answer, or did not a moment ago.
            ConfigError: What answers is no registry, or refuses us, or what was asked for.
        """
        what = f"the newest schema of subject {subject}"
        check_not_away(self._url, what)
        return self._ask(what, NO_SUBJECT, lambda: self._latest(subject))

    def compatibility(self, subject: str) -> str:
        """What a new schema of a subject is held against, as the registry names it, as `BACKWARD` or `NONE`.

        Raises:
            RegistryUnavailableError: It does not answer, or did not a moment ago.
            ConfigError: What answers is no registry, or refuses us, or what was asked for.
        """
        what = f"the compatibility of subject {subject}"
        check_not_away(self._url, what)
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
            self._client.clear_caches()  # type: ignore[no-untyped-call]  # or it would be believed from now on
            raise ValueError("an answer without the text of a schema")
        return text

    def _fetch(self, number: int) -> WriterSchema | None:
        found = self._ask(f"schema {number}", NO_SCHEMA, lambda: self._writer(number, self._client.get_schema(number)))
        if found and found.lacking and found.kind == "AVRO":
            found = self._resolved(found)
        if found and not found.lacking:
            self._keep(found)
        return found

    def _resolved(self, schema: WriterSchema) -> WriterSchema:
        """The schema with what it refers to in it: Apicurio gives that even where it denies what was deleted."""
        # The caches know a schema by its id, whatever its format.
        self._client.clear_caches()  # type: ignore[no-untyped-call]
        number = schema.id
        found = self._ask(f"schema {number}", NO_SCHEMA, lambda: self._client.get_schema(number, fmt="resolved"))
        text = (found and found.schema_str) or schema.text
        return schema if text == schema.text else replace(schema, text=text, references=(), lacking="")

    def _ask(self, what: str, absent: tuple[int, ...], call: Callable[[], Answer]) -> Answer | None:
        return ask(self._url, what, absent, call)

    def _references(self, schema: Schema) -> tuple[tuple[tuple[str, str], ...], str]:
        """All that a schema refers to, however deep, what is needed first coming first; and what of it is not there."""
        found: dict[str, str] = {}
        lacking: list[str] = []

        def follow(of: Schema) -> None:
            for each in of.references or ():
                if each.name and each.name not in found:
                    subject, version = each.subject or "", each.version or -1
                    what = f"version {version} of subject {subject!r}"
                    # A subject may be deleted after its readers' schemas were; records are there all the same.
                    call = partial(self._client.get_version, subject, version, deleted=True)
                    if inner := self._ask(what, NO_SUBJECT, call):
                        follow(inner.schema)
                        found[each.name] = self._text(inner.schema)
                    else:
                        lacking.append(what)

        follow(schema)
        return tuple(found.items()), " and ".join(lacking)

    def _keep(self, schema: WriterSchema) -> None:
        """For the time when the registry is away; that it can't be kept stops nobody."""
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile("w", dir=self._folder, delete=False, encoding="utf-8") as stream:
                json.dump(asdict(schema), stream)
            Path(stream.name).replace(self._folder / f"{schema.id}.json")
        except OSError as error:
            log.warning("schema %s can't be kept in %s: %s", schema.id, self._folder, error)

    def _kept(self, number: int) -> WriterSchema | None:
        try:
            kept = json.loads((self._folder / f"{number}.json").read_text(encoding="utf-8"))
            if not kept["text"]:  # of a release that took any answer for a schema
                return None
            references = tuple((str(name), str(text)) for name, text in kept["references"])
            return WriterSchema(number, kept["kind"], kept["text"], references)
        except (OSError, ValueError, KeyError, TypeError):
            return None


def _folder() -> Path:
    if named := os.environ.get("SLUICE_SCHEMAS"):
        return Path(named)
    if home := os.environ.get("SLUICE_HOME"):
        return Path(home) / "schemas"
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "sluice" / "schemas"
