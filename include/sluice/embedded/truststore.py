"""A Java truststore from the certificate bundle that the user's environment names.

Java reads neither SSL_CERT_FILE nor REQUESTS_CA_BUNDLE. Behind a company's TLS gateway pip works and Ivy would not,
unless the same certificates reach it as a truststore.
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
    """The PEM file that the environment names, or None where the system's default is meant."""
    for variable in ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):
        named = os.environ.get(variable)
        if named:
            path = Path(named)
            if not path.is_file():
                raise StackError(
                    f"{variable} names {path}, which is not a file", way_out=f"correct or unset {variable}"
                )
            return path
    return None


def java_options(cache: Path) -> list[str]:
    """The JVM options that make Java trust what the environment's bundle trusts; none where no bundle is named."""
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
        # Old roots in a bundle (negative serials, odd encodings) each warn; Java judges them by itself.
        warnings.simplefilter("ignore")
        from cryptography import x509
        from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, pkcs12

        try:
            certificates = x509.load_pem_x509_certificates(pem)
        except ValueError as error:
            raise StackError(f"{bundle} holds no readable PEM certificates: {error}") from error
        entries = [pkcs12.PKCS12Certificate(each, str(n).encode()) for n, each in enumerate(certificates)]
        data = pkcs12.serialize_java_truststore(entries, BestAvailableEncryption(PASSWORD.encode()))
    with tempfile.NamedTemporaryFile(dir=store.parent, delete=False) as stream:
        stream.write(data)
    Path(stream.name).replace(store)
