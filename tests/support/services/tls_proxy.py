"""An HTTPS proxy with basic authentication in front of a local service, and its own certificate authority."""

from __future__ import annotations

import base64
import datetime as dt
import http.client
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tests.support.services.servers import HOST, JsonHandler, TlsServer


def make_ca(folder: Path, name: str) -> tuple[Path, Path]:
    """Create a CA; return its certificate, and a file with a certificate and key for 127.0.0.1 that it signed."""
    now = dt.datetime.now(dt.UTC)

    def signed(subject: str, key: ec.EllipticCurvePrivateKey, issuer: str, by: ec.EllipticCurvePrivateKey) -> bytes:
        names = [x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, each)]) for each in (subject, issuer)]
        made = x509.CertificateBuilder(*reversed(names), key.public_key(), x509.random_serial_number())
        made = made.not_valid_before(now - dt.timedelta(hours=1)).not_valid_after(now + dt.timedelta(days=1))
        made = made.add_extension(x509.BasicConstraints(ca=key is by, path_length=None), critical=True)
        place = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(HOST))])
        made = made.add_extension(place, critical=False)
        return made.sign(by, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)

    root, own = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    ca, server = folder / f"{name}-ca.pem", folder / f"{name}.pem"
    ca.write_bytes(signed(f"{name} CA", root, f"{name} CA", root))
    key = own.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    server.write_bytes(signed(name, own, f"{name} CA", root) + key)
    return ca, server


class TlsProxy(TlsServer):
    """Forwards requests with the right password to a local port, for a `with` block.

    Attributes:
        port: The port that it listens on, with TLS.
        asked: The requested paths, of requests with the right password.
    """

    def __init__(self, target: int, certificate: Path, user: str, password: str) -> None:
        expected = f"Basic {base64.b64encode(f'{user}:{password}'.encode()).decode()}"
        self.asked: list[str] = []

        class Handler(JsonHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(handler) -> None:  # noqa: N802, N805 - the server asks for a method of this name
                if handler.headers.get("Authorization") != expected:
                    return handler.answer(401, b'{"error_code": 401, "message": "no"}')
                self.asked.append(handler.path)
                behind = http.client.HTTPConnection(HOST, target, timeout=20)
                behind.request("GET", handler.path, headers={"Accept": handler.headers.get("Accept", "*/*")})
                answer = behind.getresponse()
                handler.answer(answer.status, answer.read())
                return behind.close()

        super().__init__(Handler, certificate)
