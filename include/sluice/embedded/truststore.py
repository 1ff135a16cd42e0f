"""Builds a Java truststore from SSL_CERT_FILE or REQUESTS_CA_BUNDLE, which Java does not read.

Without it, Ivy fails behind a company's TLS gateway where pip works.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import warnings
from pathlib import Path

from sluice.embedded.failure import StackError

PASSWORD = "changeit"  # noqa: S105 - Java's own default; the file holds public certificates only


def certificate_bundle() -> Path | None:
    """Return the PEM file that the environment names, or None for the system's default."""
    for variable in ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):
        named = os.environ.get(variable)
        if named:
            path = Path(named)
            if not path.is_file():
                raise StackError(
                    f"{variable} points to {path}, which is not a file", next_step=f"correct or unset {variable}"
                )
            return path
    return None


def java_options(cache: Path) -> list[str]:
    """Return the JVM options that make Java trust the environment's certificates; empty without a bundle."""
    bundle = certificate_bundle()
    if bundle is None:
        return []
    pem = bundle.read_bytes()
    store = cache / f"truststore-{hashlib.sha256(pem).hexdigest()[:16]}.p12"
    if not store.is_file():
        _write(store, pem, bundle)
    return [
        f"-Djavax.net.ssl.trustStore={store}",
        f"-Djavax.net.ssl.trustStorePassword={PASSWORD}",
        "-Djavax.net.ssl.trustStoreType=PKCS12",
    ]


def _write(store: Path, pem: bytes, bundle: Path) -> None:
    with warnings.catch_warnings():
        # Old root certificates (negative serials, odd encodings) cause warnings; Java decides on them by itself.
        warnings.simplefilter("ignore")
        from cryptography import x509
        from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, pkcs12

        try:
            certificates = x509.load_pem_x509_certificates(pem)
        except ValueError as error:
            raise StackError(f"{bundle} contains no readable PEM certificates: {error}") from error
        entries = [pkcs12.PKCS12Certificate(each, str(n).encode()) for n, each in enumerate(certificates)]
        data = pkcs12.serialize_java_truststore(entries, BestAvailableEncryption(PASSWORD.encode()))
    with tempfile.NamedTemporaryFile(dir=store.parent, delete=False) as stream:
        stream.write(data)
    Path(stream.name).replace(store)
