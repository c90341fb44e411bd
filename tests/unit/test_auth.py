"""Tokens: which are good, whose they are, and what the others are told."""

import time
from typing import Any

import pytest

from skep.config import Config
from skep.errors import ConfigError, Unauthenticated
from skep.server.http import auth
from skep.server.http.auth import Authenticator
from skep.server.http.grants import ANYONE, Role
from tests.unit.tokens import SECRET, authenticator, ed_key, encode, forged, nobody, pem, rsa_key, token

SOON = time.time() + 3600


async def refusal(checks: Authenticator, given: str | None) -> str:
    with pytest.raises(Unauthenticated) as caught:
        await checks.identify(given)
    assert caught.value.__cause__ is None
    return caught.value.message


async def test_without_auth_everyone_may_do_everything():
    checks = Authenticator(Config(), nobody)
    assert await checks.identify(None) is ANYONE
    assert await checks.identify("Bearer nonsense") is ANYONE


@pytest.mark.parametrize("form", ["Bearer {}", "bearer {}", "BEARER   {}", "{}", "  {}  "])
async def test_a_token_comes_with_its_scheme_or_alone(form: str):
    found = await authenticator(jwt_secret=SECRET).identify(form.format(token()))
    assert (found.subject, found.roles) == ("ann", {Role.READ_WRITE})


@pytest.mark.parametrize("given", [None, "", "   ", "Bearer", "Bearer   "])
async def test_without_a_token_one_is_asked_for(given: str | None):
    assert await refusal(authenticator(jwt_secret=SECRET), given) == "Authentication required"


@pytest.mark.parametrize(
    "given",
    [
        "Bearer nonsense",
        "Bearer ..",
        "Bearer .",
        "..",
        "Bearer a.b",
        "Bearer a.b.c.d",
        "Bearer é.é.é",
        "Bearer \ud800.x.y",
        "Bearer a.b.c\r\nX-Evil: 1",
        "Bearer a b",
        "Basic YW5uOnNlY3JldA==",
        "Bearer " + "x" * 8193,
        "Bearer " + "x" * 10_000_000,
        "Bearer " + encode(b"[" * 5000) + ".e30.x",
        "Bearer " + encode(b'{"alg":"HS256","alg":7}') + ".e30.x",
        "Bearer " + encode(b"\xff\xfe") + ".e30.x",
    ],
    ids=lambda given: given[:30].encode("ascii", "replace").decode(),
)
async def test_what_is_no_token_is_malformed(given: str):
    said = await refusal(authenticator(jwt_secret=SECRET), given)
    assert said.startswith("Malformed token: ")
    assert "Evil" not in said


async def test_a_token_that_is_good_but_giant_is_not_read():
    checks = authenticator(jwt_secret=SECRET)
    said = await refusal(checks, f"Bearer {token(padding='x' * 8192)}")
    assert said == "Malformed token: it has more than 8192 characters"
    assert (await checks.identify(f"Bearer {token(padding='x' * 5500)}")).subject == "ann"


@pytest.mark.parametrize(
    ("settings", "good"),
    [
        ({"jwt_secret": SECRET}, token()),
        ({"jwt_public_key": pem(rsa_key())}, token(rsa_key(), "RS256")),
        ({"jwt_public_key": pem(ed_key())}, token(ed_key(), "EdDSA")),
        ({"jwt_public_key": pem(rsa_key()).replace("\n", "\\n")}, token(rsa_key(), "RS256", kid="any")),
        ({"jwt_secret": SECRET, "jwt_public_key": pem(rsa_key())}, token(rsa_key(), "RS256")),
        ({"jwt_secret": SECRET, "jwt_public_key": pem(rsa_key())}, token()),
        ({"jwt_secret": SECRET, "jwt_algorithm": "HS256"}, token()),
    ],
)
async def test_every_algorithm(settings: dict[str, Any], good: str):
    checks = authenticator(**settings)
    assert (await checks.identify(good)).subject == "ann"
    head, body, signature = good.split(".")
    other = encode(b'{"sub":"eve","role":"admin"}')
    assert await refusal(checks, f"{head}.{other}.{signature}") == "Invalid token signature"
    assert await refusal(checks, f"{head}.{body}.") == "Invalid token signature"


@pytest.mark.parametrize(
    ("settings", "wrong"),
    [
        ({"jwt_secret": SECRET}, token("another secret of 32 bytes or more")),
        ({"jwt_public_key": pem(rsa_key())}, token(rsa_key("another"), "RS256")),
        ({"jwt_public_key": pem(ed_key())}, token(ed_key("another"), "EdDSA")),
    ],
)
async def test_another_key(settings: dict[str, Any], wrong: str):
    assert await refusal(authenticator(**settings), wrong) == "Invalid token signature"


@pytest.mark.parametrize("name", ["none", "None", "NONE", "", "HS384", "HS512", "RS384", "PS256", "ES256", "hs256"])
@pytest.mark.parametrize("secret", [None, SECRET.encode()])
async def test_other_algorithms_are_not_accepted(name: str, secret: bytes | None):
    claims = {"sub": "eve", "role": "admin", "exp": SOON}
    checks = authenticator(jwt_secret=SECRET, jwt_public_key=pem(rsa_key()))
    for bad in (forged({"alg": name, "typ": "JWT"}, claims, secret), forged({"alg": name}, claims)):
        assert await refusal(checks, bad) == "Malformed token: its algorithm is not accepted"


@pytest.mark.parametrize("key", [rsa_key(), ed_key()])
async def test_a_public_key_is_never_a_secret(key: Any):
    """The classic: sign with HS256 and the key that everybody may have, in every way it can be written."""
    text = pem(key)
    for secret in (text, text.strip(), text.replace("\n", ""), text.replace("\n", "\r\n")):
        bad = forged({"alg": "HS256"}, {"sub": "eve", "role": "admin", "exp": SOON}, secret.encode())
        assert (await refusal(authenticator(jwt_public_key=text), bad)).startswith("Malformed token: its algorithm")
        both = authenticator(jwt_public_key=text, jwt_secret=SECRET)
        assert await refusal(both, bad) == "Invalid token signature"


async def test_a_pinned_algorithm_is_the_only_one():
    checks = authenticator(jwt_secret=SECRET, jwt_public_key=pem(rsa_key()), jwt_algorithm="RS256")
    assert (await checks.identify(token(rsa_key(), "RS256"))).subject == "ann"
    assert await refusal(checks, token()) == "Malformed token: its algorithm is not accepted"


@pytest.mark.parametrize(
    "header", [[], "HS256", 7, None, {}, {"alg": 7}, {"alg": ["HS256"]}, {"alg": "HS256", "kid": 7}]
)
async def test_headers_of_no_sense(header: Any):
    bad = forged(header, {"sub": "eve", "role": "admin"}, SECRET.encode())
    assert (await refusal(authenticator(jwt_secret=SECRET), bad)).startswith("Malformed token: ")


async def test_an_extension_that_must_be_understood_is_refused():
    bad = forged({"alg": "HS256", "crit": ["x"], "x": 1}, {"sub": "eve", "exp": SOON}, SECRET.encode())
    assert (await refusal(authenticator(jwt_secret=SECRET), bad)).startswith("Malformed token: ")


async def test_without_any_key_of_tokens_there_are_api_keys_only():
    assert (await refusal(authenticator(), token())).startswith("Malformed token: its algorithm")


@pytest.mark.parametrize(
    ("claims", "says"),
    [
        ({"exp": time.time() - 31}, "Token has expired"),
        ({"exp": 0}, "Token has expired"),
        ({"nbf": time.time() + 3600}, "Token is not valid yet"),
        ({"iat": time.time() + 3600}, "Token is not valid yet"),
        ({"iss": "https://evil.example/"}, "Invalid token issuer"),
        ({"iss": None}, "Invalid token issuer"),
        ({"aud": "shop"}, "Invalid token audience"),
        ({"aud": ["shop", "mail"]}, "Invalid token audience"),
        ({"aud": None}, "Invalid token audience"),
    ],
)
async def test_claims_that_are_not_right(claims: dict[str, Any], says: str):
    checks = authenticator(jwt_secret=SECRET, jwt_issuer="https://id.example/", jwt_audience="skep")
    good = {"iss": "https://id.example/", "aud": ["shop", "skep"]}
    assert (await checks.identify(token(**good))).subject == "ann"
    assert await refusal(checks, token(**good | claims)) == says


async def test_an_issuer_is_no_list():
    bad = forged({"alg": "HS256"}, {"iss": ["https://id.example/"], "exp": SOON}, SECRET.encode())
    checks = authenticator(jwt_secret=SECRET, jwt_issuer="https://id.example/")
    assert await refusal(checks, bad) == "Invalid token issuer"


async def test_clocks_may_differ_a_little():
    checks = authenticator(jwt_secret=SECRET)
    late = token(exp=time.time() - 20, nbf=time.time() + 20, iat=time.time() + 20)
    assert (await checks.identify(late)).subject == "ann"
    strict = authenticator(jwt_secret=SECRET, jwt_clock_skew=0.0)
    assert await refusal(strict, token(exp=time.time() - 2)) == "Token has expired"


@pytest.mark.parametrize("end", [str(int(SOON)), SOON, 10**400, 1e300], ids=["text", "float", "long", "large"])
async def test_strange_ends(end: Any):
    good = forged({"alg": "HS256"}, {"sub": "ann", "exp": end}, SECRET.encode())
    checks = authenticator(jwt_secret=SECRET)
    assert await checks.identify(good) is await checks.identify(good)


async def test_what_is_not_configured_is_not_asked_for():
    """Queen honours exp if it is there, and takes any issuer and audience if none is set."""
    found = await authenticator(jwt_secret=SECRET).identify(token(exp=None, iss="x", aud=["y"]))
    assert found.subject == "ann"


@pytest.mark.parametrize("claims", [[], "text", 7, None, {"exp": "soon"}, {"exp": 1e400}, {"exp": None}, {"sub": 7}])
async def test_claims_of_no_sense(claims: Any):
    bad = forged({"alg": "HS256"}, claims, SECRET.encode())
    assert (await refusal(authenticator(jwt_secret=SECRET), bad)).startswith("Malformed token: ")


@pytest.mark.parametrize("subject", ["a\nb", "a\r\nX-Evil: 1", "a\0b", "\x1b[31mred", "\ud800", "x" * 256])
async def test_a_subject_that_cannot_be_stored_or_logged_is_refused(subject: str):
    bad = forged({"alg": "HS256"}, {"sub": subject, "exp": SOON}, SECRET.encode())
    said = await refusal(authenticator(jwt_secret=SECRET), bad)
    assert said.startswith("Malformed token: its sub")
    assert said.isprintable()


@pytest.mark.parametrize(
    ("subject", "becomes"), [("", None), (None, None), ("zoë of ☕", "zoë of ☕"), ("x" * 255,) * 2]
)
async def test_subjects(subject: str | None, becomes: str | None):
    assert (await authenticator(jwt_secret=SECRET).identify(token(sub=subject))).subject == becomes


@pytest.mark.parametrize(
    ("claims", "roles"),
    [
        ({"role": "admin"}, {Role.ADMIN}),
        ({"role": "write-only"}, {Role.WRITE_ONLY}),
        ({"role": None}, set()),
        ({"role": "Admin"}, set()),
        ({"role": "teacher"}, set()),
        ({"role": None, "roles": ["teacher", "read-only", "write-only"]}, {Role.READ_ONLY, Role.WRITE_ONLY}),
        ({"role": "read-only", "roles": ["admin"]}, {Role.READ_ONLY, Role.ADMIN}),
        ({"role": None, "roles": [["admin"], {"admin": 1}, 7, None]}, set()),
    ],
)
async def test_roles(claims: dict[str, Any], roles: set[Role]):
    assert (await authenticator(jwt_secret=SECRET).identify(token(**claims))).roles == roles


@pytest.mark.parametrize("claims", [{"role": 7}, {"role": ["admin"]}, {"roles": "admin"}, {"roles": {"admin": True}}])
async def test_roles_of_a_wrong_type_are_refused(claims: dict[str, Any]):
    assert (await refusal(authenticator(jwt_secret=SECRET), token(**claims))).startswith("Malformed token: its role")


async def test_claims_and_roles_can_have_other_names():
    checks = authenticator(
        jwt_secret=SECRET,
        jwt_roles_claim="x-role",
        jwt_roles_array_claim="x-roles",
        jwt_grants_claim="x-grants",
        jwt_role_admin="root",
        jwt_role_read_only="guest",
    )
    found = await checks.identify(token(**{"x-role": "guest", "x-roles": ["root", "admin"], "x-grants": {"q": []}}))
    assert found.roles == {Role.READ_ONLY, Role.ADMIN}
    assert not found.allows("read", "q")
    assert (await checks.identify(token(role="admin"))).roles == set()


async def test_grants():
    found = await authenticator(jwt_secret=SECRET).identify(token(role=None, grants={"orders.*": ["push", "pop"]}))
    assert found.allows("push", "orders.eu")
    assert not found.allows("ack", "orders.eu")
    assert not found.allows("push", "mail")


@pytest.mark.parametrize("grants", [None, [], "*", 7, {"q": "push"}, {"q": ["fly"]}, {"q": [7]}, {"": ["push"]}])
async def test_grants_of_a_wrong_type_are_refused_not_ignored(grants: Any):
    bad = forged({"alg": "HS256"}, {"role": "admin", "grants": grants, "exp": SOON}, SECRET.encode())
    assert (await refusal(authenticator(jwt_secret=SECRET), bad)).startswith("Malformed token: ")


async def test_a_token_is_checked_once_until_it_expires(monkeypatch: pytest.MonkeyPatch):
    now, checked, check = [time.time()], [], Authenticator._decode

    def count(self: Authenticator, *arguments: Any) -> Any:
        checked.append(1)
        return check(self, *arguments)

    monkeypatch.setattr(Authenticator, "_decode", count)
    checks = Authenticator(Config(auth=True, jwt_secret=SECRET), nobody, clock=lambda: now[0])
    good = token(exp=now[0] + 60)
    assert await checks.identify(f"Bearer {good}") is await checks.identify(good)
    now[0] += 89  # within the skew
    await checks.identify(good)
    assert len(checked) == 1
    now[0] += 2
    await checks.identify(good)
    assert len(checked) == 2


async def test_a_token_without_end_is_checked_again():
    now = [time.time()]
    checks = Authenticator(Config(auth=True, jwt_secret=SECRET), nobody, clock=lambda: now[0])
    endless = token(exp=None)
    first = await checks.identify(endless)
    now[0] += 301
    assert await checks.identify(endless) is not first


async def test_what_is_refused_is_not_remembered_and_memory_is_bounded(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(auth, "MOST_REMEMBERED", 3)
    checks = authenticator(jwt_secret=SECRET)
    for number in range(10):
        await checks.identify(token(sub=str(number)))
    await refusal(checks, token("another secret of 32 bytes or more"))
    assert len(checks._known) == 3
    assert all(len(digest) == 32 for digest in checks._known)  # not the tokens themselves


def test_a_key_comes_from_a_file(tmp_path: Any):
    path = tmp_path / "jwt.pem"
    path.write_text(pem(ed_key()))
    assert authenticator(jwt_public_key=str(path))._algorithms == {"EdDSA"}


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"jwt_public_key": "/nowhere/jwt.pem"}, "SKEP_JWT_PUBLIC_KEY cannot be read: No such file"),
        ({"jwt_public_key": "-----BEGIN PUBLIC KEY-----\nnonsense\n-----END PUBLIC KEY-----"}, "no public key"),
        ({"jwt_public_key": pem(rsa_key("short", 1024))}, "no public key for RS256"),
        ({"jwt_public_key": pem(rsa_key()), "jwt_algorithm": "EdDSA"}, "the key is for another algorithm"),
        ({"jwt_role_admin": "boss", "jwt_role_read_only": "boss"}, "the same name"),
    ],
)
def test_settings_that_cannot_be_used(settings: dict[str, Any], says: str):
    with pytest.raises(ConfigError, match=says) as caught:
        authenticator(**settings)
    assert caught.value.hint
