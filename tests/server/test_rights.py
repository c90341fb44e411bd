"""Who may do what over HTTP: tokens and API keys, roles and grants, from the header to the database."""

import http.client
import ssl
from collections.abc import Generator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID
from psycopg.conninfo import conninfo_to_dict

from skep import Skep
from skep.server.routes import ENDPOINTS
from tests.server.killable import killable
from tests.server.serving import Client, serving
from tests.unit.tokens import SECRET, token

PUSH = "/api/v1/push"
POP = "/api/v1/pop/queue"
NOWHERE = "00000000-0000-8000-8000-000000000000"
DENIED = {"error": "Insufficient permissions", "code": "forbidden"}
CAN = {
    "read-only": {"read"},
    "write-only": {"push"},
    "read-write": {"push", "pop", "ack", "seek", "configure", "read", "redrive"},
    "admin": {"push", "pop", "ack", "seek", "configure", "read", "redrive", "admin"},
}


@pytest.fixture(scope="module")
def server(module_database_url: str) -> Generator[Client]:
    with serving(module_database_url, auth=True, jwt_secret=SECRET) as running:
        yield running


@pytest.fixture
def db(module_database_url: str) -> Generator[psycopg.Connection]:
    with psycopg.connect(module_database_url, autocommit=True) as connection:
        yield connection


@pytest.fixture
def queue() -> str:
    return f"q-{uuid4().hex[:8]}"


def with_header(server: Client, value: str) -> Client:
    return replace(server, headers=(("Authorization", value),))


def caller(server: Client, **claims: Any) -> Client:
    return with_header(server, f"Bearer {token(**claims)}")


def granted(server: Client, **grants: list[str]) -> Client:
    return caller(server, role=None, grants=grants)


def stored(db: psycopg.Connection, queue: str) -> list[Any]:
    rows = db.execute(
        """SELECT m.payload FROM skep.messages m JOIN skep.partitions p ON p.id = m.partition_id
           JOIN skep.queues q ON q.id = p.queue_id WHERE q.name = %s ORDER BY m."offset" """,
        [queue],
    )
    return [payload for (payload,) in rows]


@pytest.mark.parametrize(
    ("header", "error"),
    [
        ("", "Authentication required"),
        ("Bearer ", "Authentication required"),
        (f"Bearer {token('x' * 32)}", "Invalid token signature"),
        (f"Bearer {token(exp=1)}", "Token has expired"),
        (f"Bearer {token(nbf=9999999999)}", "Token is not valid yet"),
        (f"Bearer {token(algorithm='HS512', key='x' * 64)}", "Malformed token: its algorithm is not accepted"),
        (f"Bearer {token(grants='all')}", "Malformed token: "),
        ("Bearer nonsense", "Malformed token: it cannot be read"),
        ("Basic YTpi", "Malformed token: "),
        ("Bearer skep_0123456789ab_" + "0" * 64, "Invalid API key"),
        ("Bearer skep_nonsense", "Malformed API key"),
    ],
)
def test_who_is_not_known(server: Client, header: str, error: str):
    answer = with_header(server, header).get(f"{POP}/q")
    assert answer.status == 401
    assert answer.json["error"].startswith(error)
    assert answer.json["code"] == "unauthenticated"


def test_tokens_are_taken_bare_and_in_any_case(server: Client):
    for header in (token(), f"bearer {token()}", f"BEARER  {token()}"):
        assert with_header(server, header).get(f"{POP}/q").status == 200


def test_what_is_open(server: Client):
    for path in ("/health", "/ready"):
        assert server.get(path).status == 200
    for endpoint in ENDPOINTS:
        assert server.call("OPTIONS", endpoint.path).status == 204


@pytest.mark.parametrize(
    "endpoint", [each for each in ENDPOINTS if each.action], ids=lambda it: f"{it.method} {it.path}"
)
def test_every_route_asks_for_its_right(server: Client, endpoint: Any):
    """Before it reads anything: a body is refused only from those who may send one."""
    path = "/".join(NOWHERE if part.startswith("{") else part for part in endpoint.path.split("/"))
    assert server.call(endpoint.method, path, b"{").status == 401
    for role, actions in CAN.items():
        answer = caller(server, role=role).call(endpoint.method, path, b"{")
        assert (answer.status == 403) == (endpoint.action not in actions), (role, answer.body)
        assert answer.status != 403 or answer.json == DENIED


def test_levels_of_queen(server: Client, queue: str):
    """Section 5.5: messages need read-write, deleting a queue needs admin."""
    writer, admin = caller(server), caller(server, role="admin")
    delete = f"/api/v1/resources/queues/{queue}"
    writer.push(queue, 1)
    assert caller(server, role="write-only").post(PUSH, {"items": [{"queue": queue}]}).status == 201
    assert caller(server, role="read-only").get(f"{POP}/{queue}").json == DENIED
    assert caller(server, role="stranger").get(f"{POP}/{queue}").json == DENIED
    assert caller(server, role=None, roles=["stranger", "read-write"]).get(f"{POP}/{queue}").status == 200
    assert writer.call("DELETE", delete).json == DENIED
    assert admin.call("DELETE", delete).json["existed"] is True


def test_an_api_key(server: Client, module_database_url: str, queue: str):
    with Skep(module_database_url) as mq:
        key, _ = mq.create_api_key("shop", "write-only", grants={"mine": ["pop"]})
    shop = with_header(server, f"Bearer {key}")
    shop.push(queue, 1)
    assert shop.get(f"{POP}/mine").status == 200
    assert shop.get(f"{POP}/{queue}").json == DENIED
    (message,) = caller(server).pop(queue)
    assert message["producerSub"] == "shop"


def test_a_push_to_several_queues(server: Client, db: psycopg.Connection, queue: str):
    """One of them is forbidden: nothing is stored."""
    some = granted(server, **{f"{queue}*": ["push"]})
    assert some.post(PUSH, {"items": [{"queue": queue}, {"queue": f"{queue}.eu"}]}).status == 201
    answer = some.post(PUSH, {"items": [{"queue": queue}, {"queue": "other"}]})
    assert (answer.status, answer.json) == (403, DENIED)
    assert len(stored(db, queue)) == 1
    narrowed = caller(server, grants={queue: []})
    assert narrowed.post(PUSH, {"items": [{"queue": queue}]}).json == DENIED


def test_pops(server: Client, queue: str):
    some = granted(server, **{queue: ["pop"]})
    assert some.get(f"{POP}/{queue}").status == 200
    assert some.get(f"{POP}/{queue}/partition/p").status == 200
    for path in (f"{POP}/other", f"{POP}/other/partition/p", f"/api/v1/pop?namespace={queue}"):
        assert some.get(path).json == DENIED


def held(server: Client, queue: str) -> dict[str, Any]:
    """Push a message and pop it."""
    writer = caller(server)
    writer.push(queue, 1)
    (message,) = writer.pop(queue)
    return {name: message[name] for name in ("transactionId", "partitionId", "leaseId")}


def test_answers(server: Client, queue: str):
    """They name a partition, and it is its queue that counts."""
    answer = held(server, queue)
    other = granted(server, other=["ack"])
    assert other.post("/api/v1/ack", answer).json == DENIED
    assert other.post("/api/v1/ack/batch", {"acknowledgments": [answer]}).json == DENIED
    assert other.post("/api/v1/transaction", {"operations": [answer | {"type": "ack"}]}).json == DENIED
    assert other.post("/api/v1/ack", answer | {"partitionId": NOWHERE}).json[0]["error"] == "Message not found"
    (verdict,) = granted(server, **{queue: ["ack"]}).post("/api/v1/ack", answer).json
    assert verdict["success"] is True


def test_extensions(server: Client, queue: str):
    """A lease id is a secret, but not a right: whoever extends a lease may answer for its queue."""
    path = f"/api/v1/lease/{held(server, queue)['leaseId']}/extend"
    assert granted(server, other=["ack"]).post(path).json == DENIED
    assert granted(server, **{queue: ["pop"]}).post(path).json == DENIED
    assert granted(server, **{queue: ["ack"]}).post(path).json["success"] is True
    assert granted(server, other=["ack"]).post(f"/api/v1/lease/{NOWHERE}/extend").json["error"] == "Lease not found"


def test_extensions_of_several_partitions(server: Client, queue: str):
    """One lease id stands for all of them, and for nobody else, also when the leases are over."""
    everyone = caller(server)
    for partition in ("a", "b"):
        everyone.push(queue, 1, partition=partition)
    messages = everyone.pop(queue, partitions=2)
    path = f"/api/v1/lease/{messages[0]['leaseId']}/extend"
    assert granted(server, other=["ack"]).post(path).json == DENIED
    assert granted(server, **{queue: ["ack"]}).post(path).json["renewed"] == 2
    keys = ("transactionId", "partitionId", "leaseId")
    acks = [{key: message[key] for key in keys} for message in messages]
    everyone.post("/api/v1/ack/batch", {"acknowledgments": acks})
    assert granted(server, other=["ack"]).post(path).json == DENIED
    assert granted(server, **{queue: ["ack"]}).post(path).json["error"] == "Lease not found"


def test_a_lease_of_another_queue_is_no_right(server: Client, queue: str):
    """Who names a message of his own queue cannot end the lease of another by it."""
    mine, theirs = held(server, queue), held(server, f"{queue}-theirs")
    me = granted(server, **{queue: ["ack"]})
    for status in ("completed", "failed", "retry"):
        (verdict,) = me.post("/api/v1/ack", mine | {"leaseId": theirs["leaseId"], "status": status}).json
        assert (verdict["success"], verdict["error"]) == (False, "Invalid or expired lease")
    assert caller(server).post("/api/v1/ack", theirs).json[0]["success"] is True


def test_transactions(server: Client, db: psycopg.Connection, queue: str):
    """Each part needs its right, and without one nothing happens."""
    answer = held(server, queue) | {"type": "ack"}
    push = {"type": "push", "items": [{"queue": f"{queue}-out", "payload": 2, "producerSub": "eve"}]}
    body = {"operations": [answer, push]}
    for grants in ({queue: ["ack"]}, {f"{queue}-out": ["push", "ack"]}, {queue: ["push"], f"{queue}-out": ["push"]}):
        assert granted(server, **grants).post("/api/v1/transaction", body).json == DENIED
    assert stored(db, f"{queue}-out") == []
    done = granted(server, **{queue: ["ack"], f"{queue}-out": ["push"]}).post("/api/v1/transaction", body).json
    assert done["success"] is True
    (message,) = caller(server).pop(f"{queue}-out")
    assert message["producerSub"] == "ann"


def test_configure_and_delete(server: Client, queue: str):
    some = granted(server, **{queue: ["configure"]})
    assert some.post("/api/v1/configure", {"queue": queue}).status == 201
    assert some.post("/api/v1/configure", {"queue": "other"}).json == DENIED
    delete = f"/api/v1/resources/queues/{queue}"
    assert some.call("DELETE", delete).json == DENIED
    assert granted(server, **{queue: ["admin"]}).call("DELETE", delete).json["existed"] is True


def test_producers_are_stamped(server: Client, queue: str):
    """With the subject of the token, whatever the body says; without one it is nobody."""
    item = {"queue": queue, "producerSub": "eve", "producer": "eve", "producer_sub": "eve"}
    for subject in ("ann", "bob", None, ""):
        assert caller(server, sub=subject).post(PUSH, {"items": [item]}).status == 201
    assert [message["producerSub"] for message in caller(server).pop(queue)] == ["ann", "bob", None, None]


def test_no_secret_is_logged(database_url: str, tmp_path: Path):
    """Neither those of the server nor those of its callers, not even when everything goes wrong."""
    settings = {
        "SKEP_AUTH": "true",
        "SKEP_JWT_SECRET": SECRET,
        "SKEP_ENCRYPTION_KEYS": f"k1:{'ab' * 32}",
        "SKEP_LOG_LEVEL": "debug",
    }
    good, bad, key = token(), token("x" * 32), "skep_0123456789ab_" + "7" * 64
    with killable(database_url, tmp_path / "log", environ=settings) as server:
        with psycopg.connect(database_url) as db:
            db.execute("DROP TABLE skep.messages CASCADE")
        body = {"items": [{"queue": "q", "payload": "card 4111"}]}
        answers = [server.call("POST", PUSH, body, {"Authorization": f"Bearer {each}"}) for each in (good, bad, key)]
        assert [status for status, _ in answers] == [500, 401, 401]
    log = (tmp_path / "log").read_text()
    assert "Traceback" in log
    secrets = (good, bad, key, SECRET, "ab" * 32, "card 4111", conninfo_to_dict(database_url)["password"])
    assert not any(str(secret) in log for secret in secrets)


def test_pages_of_other_origins(module_database_url: str):
    with serving(module_database_url, cors_origins=("https://shop.example", "https://admin.example")) as server:
        for origin in ("https://shop.example", "https://admin.example"):
            answer = server.call("OPTIONS", PUSH, headers={"Origin": origin})
            assert answer.headers["access-control-allow-origin"] == origin
            assert "POST" in answer.headers["access-control-allow-methods"]
            assert answer.headers["vary"] == "Origin"
        for origin in ("https://evil.example", "https://shop.example.evil", "null", "https://SHOP.example", "*"):
            answer = server.call("GET", "/health", headers={"Origin": origin})
            assert "access-control-allow-origin" not in answer.headers
    with serving(module_database_url) as server:
        assert server.get("/nowhere").headers["access-control-allow-origin"] == "*"


def test_tls(module_database_url: str, tmp_path: Path):
    cert, key = make_certificate(tmp_path)
    with serving(module_database_url, tls_cert=cert, tls_key=key) as server:
        trusting = ssl.create_default_context(cafile=cert)
        connection = http.client.HTTPSConnection("localhost", server.port, context=trusting, timeout=10)
        connection.request("POST", PUSH, '{"items": []}')
        assert connection.getresponse().status == 201
        connection.close()
        with pytest.raises((ConnectionError, http.client.HTTPException)):
            server.get("/health")


def make_certificate(directory: Path) -> tuple[Path, Path]:
    """Make a certificate for localhost that vouches for itself."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number(), now, now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    (directory / "tls.crt").write_bytes(certificate.public_bytes(Encoding.PEM))
    (directory / "tls.key").write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return directory / "tls.crt", directory / "tls.key"
