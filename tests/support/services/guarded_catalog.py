"""A REST catalog that demands OAuth2 tokens, which live for seconds, and an S3 store that demands vended keys.

The guards are proxies: Iceberg's own REST server has no authentication, and S3Mock takes every key.
"""

from __future__ import annotations

import json
import re
import time
import uuid
from urllib.parse import parse_qs

from tests.support.services.http_proxy import Answer, HttpProxy, Request

CLIENT, CLIENT_SECRET, SCOPE = "sluice", "s3cret-of-the-client", "lake"
JSON = [("Content-Type", "application/json")]


def refusal(status: int, text: str) -> Answer:
    """An answer as a REST catalog refuses."""
    error = {"error": {"message": text, "type": "NotAuthorizedException", "code": status}}
    return Answer(status, JSON, json.dumps(error).encode())


def _without_credentials(answer: Answer) -> Answer:
    """As Polaris answers a client that does not ask for a table's storage credentials."""
    try:
        told = json.loads(answer.body)
    except ValueError:
        return answer
    if not isinstance(told, dict) or "storage-credentials" not in told:
        return answer
    told["storage-credentials"] = []
    told["config"] = {name: value for name, value in told["config"].items() if not name.startswith("s3.")}
    return answer._replace(body=json.dumps(told).encode())


class TokenGuard(HttpProxy):
    """Passes requests on that bear a token which it issued and which has not expired, for a `with` block.

    Like Keycloak's and Entra's, its token endpoint knows the grant `client_credentials` alone.

    Attributes:
        granted: Each token, and when it expires.
        expired: How many requests had an expired token.
        refused_grants: Grants that clients asked for in vain.
        agents: The names of the clients whose tokens were right.
    """

    def __init__(self, target: int, life_s: float) -> None:
        super().__init__(target)
        self.life_s = life_s
        self.granted: dict[str, float] = {}
        self.expired = 0
        self.refused_grants: list[str] = []
        self.agents: set[str] = set()

    @property
    def token_url(self) -> str:
        return f"{self.url}/token"

    def reply(self, request: Request) -> Answer:
        if request.path == "/token":
            return self._grant(request)
        token = request.headers.get("authorization", "").removeprefix("Bearer ")
        expires = self.granted.get(token)
        if expires is None or expires < time.monotonic():
            self.expired += expires is not None
            return refusal(401, "the token has expired" if expires else "a token is needed")
        self.agents.add(request.headers.get("user-agent", "").split("/")[0])
        answer = super().reply(request)
        asks = "vended-credentials" in request.headers.get("x-iceberg-access-delegation", "")
        return answer if asks else _without_credentials(answer)

    def _grant(self, request: Request) -> Answer:
        form = {name: values[0] for name, values in parse_qs(request.body.decode()).items()}
        if form.get("grant_type") != "client_credentials":
            self.refused_grants.append(form.get("grant_type", ""))
            return Answer(400, JSON, b'{"error": "unsupported_grant_type"}')
        if (form.get("client_id"), form.get("client_secret")) != (CLIENT, CLIENT_SECRET):
            return Answer(401, JSON, b'{"error": "invalid_client"}')
        if form.get("scope") != SCOPE:
            return Answer(400, JSON, b'{"error": "invalid_scope"}')
        token = uuid.uuid4().hex
        self.granted[token] = time.monotonic() + self.life_s
        answer = {"access_token": token, "token_type": "bearer", "expires_in": int(self.life_s)}
        return Answer(200, JSON, json.dumps(answer).encode())


class KeyGuard(HttpProxy):
    """Passes requests on that are signed with one of these S3 keys, for a `with` block.

    Attributes:
        used: How many requests were signed with each key.
        refused: The keys of other requests.
    """

    def __init__(self, target: int, *keys: str) -> None:
        super().__init__(target)
        self.used = dict.fromkeys(keys, 0)
        self.refused: list[str] = []

    def reply(self, request: Request) -> Answer:
        signed = re.search(r"Credential=([^/]+)/", request.headers.get("authorization", ""))
        key = signed.group(1) if signed else ""
        if key not in self.used:
            self.refused.append(key)
            error = b"<Error><Code>InvalidAccessKeyId</Code><Message>unknown key</Message></Error>"
            return Answer(403, [("Content-Type", "application/xml")], error)
        self.used[key] += 1
        return super().reply(request)
