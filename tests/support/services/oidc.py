"""An OpenID Connect provider with the client credentials grant, as Keycloak, Entra or Okta have it."""

from __future__ import annotations

import base64
import json
import time
from pathlib import Path
from urllib.parse import parse_qs

from joserfc import jwt
from joserfc.jwk import ECKey, KeySet

from tests.support.services.servers import HOST, JsonHandler, TlsServer

ISSUER, AUDIENCE, LIFE_S = "https://issuer.test", "kafka.test", 60


class TokenProvider(TlsServer):
    """A token endpoint and its public keys, for a `with` block.

    Attributes:
        tokens: The token endpoint's URL.
        keys: The URL of the keys (JWKS).
        asked: The forms of requests with the right client id and secret.
        granted: The tokens that it issued.
    """

    def __init__(self, certificate: Path, client: str, secret: str, subject: str) -> None:
        expected = f"Basic {base64.b64encode(f'{client}:{secret}'.encode()).decode()}"
        key = ECKey.generate_key("P-256", auto_kid=True)
        published = json.dumps(KeySet([key]).as_dict(private=False)).encode()
        self.asked: list[dict[str, list[str]]] = []
        self.granted: list[str] = []

        class Handler(JsonHandler):
            def do_GET(handler) -> None:  # noqa: N802, N805 - the server asks for a method of this name
                handler.answer(200, published)

            def do_POST(handler) -> None:  # noqa: N802, N805
                body = handler.rfile.read(int(handler.headers["Content-Length"])).decode()
                if handler.headers.get("Authorization") != expected:
                    return handler.answer(401, b'{"error": "invalid_client", "error_description": "Unknown client"}')
                form = parse_qs(body)
                self.asked.append(form)
                if form.get("grant_type") != ["client_credentials"]:
                    return handler.answer(400, b'{"error": "unsupported_grant_type"}')
                now = int(time.time())
                claims = {"iss": ISSUER, "aud": AUDIENCE, "sub": subject, "iat": now, "exp": now + LIFE_S}
                claims["scope"] = " ".join(form.get("scope", []))
                token = jwt.encode({"alg": "ES256", "kid": key.kid}, claims, key)
                self.granted.append(token)
                answer = {"access_token": token, "token_type": "Bearer", "expires_in": LIFE_S}
                return handler.answer(200, json.dumps(answer).encode())

        super().__init__(Handler, certificate)
        at = f"https://{HOST}:{self.port}"
        self.tokens, self.keys = f"{at}/token", f"{at}/keys"
