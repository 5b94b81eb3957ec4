"""Who may use the server: names of the host, and API keys."""

import hashlib
import hmac

from minllm.server.errors import ApiError


def check_host(headers: dict[str, str], allowed: tuple[str, ...] | None) -> None:
    """Raise ApiError for a Host header with another name: a web page can let its own name lead to this machine."""
    if allowed is None:
        return
    host = headers.get("host", "")
    name = host.partition("]")[0].removeprefix("[") if host.startswith("[") else host.partition(":")[0]
    if name.lower() not in map(str.lower, allowed):
        raise ApiError(f"The host {host!r} is not served here: use one of {', '.join(allowed)}, or start with --allowed-host.", status=403)


def caller(headers: dict[str, str], keys: tuple[str, ...]) -> str:
    """A name for the request's API key, "" if none is needed. Raises ApiError without a valid key.

    All keys are compared, each in a time that does not depend on where they differ.
    """
    if not keys:
        return ""
    scheme, _, given = headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer":
        given = headers.get("x-api-key", "")
    digest = hashlib.sha256(given.strip().encode()).digest()
    if not any([hmac.compare_digest(digest, hashlib.sha256(key.encode()).digest()) for key in keys]):
        raise ApiError("The API key is missing or wrong: send Authorization: Bearer KEY.", None, 401, code="invalid_api_key")
    return digest.hex()[:32]


def salt(who: str, given: str | None) -> str | None:
    """The cache salt of a request: every API key has cached prefixes of its own, which `given` divides further."""
    return f"{who}:{given or ''}" if who else given
