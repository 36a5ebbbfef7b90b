"""Explains errors of Redis in words, without I/O: refusals, hints."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from fairlane.drivers import slot_map
from fairlane.protocol.steps import Call

if TYPE_CHECKING:
    from fairlane.protocol.steps import Command


# The text of our own error for a server that answers a plain PING although the URL requires TLS.
NO_TLS = "answers without TLS"
# A right is missing: the texts of Redis 7.0 for a command inside a script, of Redis 7.2 and Valkey.
_RIGHTS = ("NOPERM", "The user executing the script", "ACL failure in script")
_LOGIN = ("NOAUTH", "WRONGPASS", "invalid username-password", "AUTH failed", "AuthenticationError")
_FINAL = (*_RIGHTS, *_LOGIN, NO_TLS)
# The texts of OpenSSL about certificates, keys and a server without TLS.
_INSECURE = re.compile(
    r"CERTIFICATE_VERIFY_FAILED|WRONG_VERSION_NUMBER|record layer failure|RECORD_LAYER_FAILURE"
    r"|_ALERT_|PEM lib|\[X509|doesn't match|KEY_VALUES_MISMATCH"
)
# redis-py's error for a master that no Sentinel has; its text ends with objects of the clients.
_NO_MASTER = re.compile(r"(No master found for '[^']*') : .*", re.DOTALL)
# The sockets of embedded servers (embedded/home.py), but not a system's own /run/redis.sock.
_EMBEDDED = re.compile(
    r"^unix://(?!(?:/var)?/run/redis\.sock).*(?:/run|/fairlane-\d+-[0-9a-f]{12})/redis\.sock(?:$|\?)"
)
_CUT = ("closed by server", "reset by peer", "Connection lost")  # a connection that was made
_CONNECTING = re.compile(r"Error -?\d+ connecting to (\S+)\. (?=\D)")  # redis-py's words
_TAG = re.compile(r"\{[^}]+\}")


def is_refusal(text: str) -> bool:
    """Returns True if no patience helps: the login, a right, the certificate or TLS is wrong."""
    return any(word in text for word in _FINAL) or _INSECURE.search(text) is not None


def why_refused(text: str) -> str:
    """Returns the reason of a refusal and its remedy, to follow `Redis at ...`."""
    if NO_TLS in text:
        return f"{NO_TLS}: begin the URL with redis instead of rediss"
    if _NO_MASTER.match(text) and _INSECURE.search(text):
        return (
            "is not known, because a Sentinel offers no secure connection: "
            "ssl_ca_certs=FILE in the URL names who signed its certificate"
        )
    if _NO_MASTER.match(text):
        return (
            "is not known, because a Sentinel refused the login: check sentinel_username and "
            "sentinel_password in the URL"
        )
    if _INSECURE.search(text):
        return (
            f"offers no secure connection: {text.rstrip('.')}; "
            "ssl_ca_certs=FILE in the URL names who signed its certificate"
        )
    if any(word in text for word in _RIGHTS):
        return f"refused a command: {text.rstrip('.')}; `fairlane acl` lists what a role needs"
    return f"refused the login or a command: {text.rstrip('.')}; check user and password in the URL"


def why_unanswered(text: str, place: str) -> str:
    """Returns why a server does not answer, and what may be wrong."""
    if found := _NO_MASTER.match(text):
        return f"{found[1]}, and a Sentinel did not answer; is it running?"
    made = _CONNECTING.match(text)
    why = text[made.end() :] if made and made[1] in place else text  # the place comes before it
    return why.rstrip(".") + _hint(text, place)


def _hint(text: str, place: str) -> str:
    """Returns a likely cause, to follow the error's own words; empty if none is likely."""
    is_embedded = _EMBEDDED.search(place) is not None
    is_cut = any(word in text for word in _CUT)
    is_off = any(word in text for word in ("refused", "No such file", "not known"))
    if is_embedded and (is_off or is_cut or "Broken pipe" in text):
        return (
            "; is it your embedded server? `fairlane server start` starts it; --redis or "
            "FAIRLANE_REDIS names another"
        )
    if is_off:
        return "; is it running, and is the URL right?"
    if place.startswith("rediss"):
        if "EOF occurred" in text or "reset by peer" in text:
            return "; does it want a certificate? ssl_certfile and ssl_keyfile in the URL name one"
        return "; does it speak TLS? it should, for a rediss URL" if "Timeout" in text else ""
    if is_cut and not place.startswith("unix"):
        return "; does it speak TLS? then the URL begins with rediss"
    return ""


def other_type(step: Command | Call[Any] | None) -> str:
    """Returns the reason for WRONGTYPE. A script does not report which of its keys caused it."""
    tags = " or ".join(_tags(step)) or "this call"
    return (
        f"holds data of another type than Fairlane's under a key of {tags} (WRONGTYPE), perhaps "
        "another program's: choose another id or queue name, or delete that key"
    )


def _tags(step: Command | Call[Any] | None) -> list[str]:
    """Returns the hash tags of a step's keys: a request, a queue, or both."""
    names = step.keys if isinstance(step, Call) else [step and slot_map.key_of(step)]
    texts = [name.decode("utf-8", "replace") for name in names if name]
    return list(dict.fromkeys(found[0] for text in texts if (found := _TAG.search(text))))
