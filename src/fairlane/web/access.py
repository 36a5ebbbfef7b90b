"""Decides who may call, at which rate: tokens, scopes, addresses."""

from __future__ import annotations

import contextlib
import datetime as dt
import fcntl
import hashlib
import hmac
import ipaddress
import logging
import math
import os
import re
import secrets
import stat
from collections import OrderedDict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import msgspec

from fairlane.common import clock
from fairlane.common.rate import rate_of
from fairlane.embedded.home import find_place
from fairlane.errors import AccessTokenNotFound, InvalidArgument
from fairlane.protocol.keys import check_name
from fairlane.web.answers import Refusal

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from starlette.requests import Request as Call
    from starlette.responses import Response

    from fairlane.web.app import Site


# ------------------------------------------------------------------ place
# Where the file of bearer tokens is.


VARIABLE = "FAIRLANE_TOKENS"


def is_named(given: str | None) -> bool:
    """Returns True if the caller or FAIRLANE_TOKENS names a file."""
    return bool(given or os.environ.get(VARIABLE))


def tokens_path(given: str | None) -> Path:
    """Returns the file that the caller or FAIRLANE_TOKENS names, else the one of this user."""
    named = given or os.environ.get(VARIABLE)
    return Path(named) if named else find_place(None).home / "tokens.json"


SCOPES = ("counts", "view", "submit", "consume", "operate", "admin")
_INCLUDES = {"operate": ("view",), "admin": SCOPES}  # other scopes that a scope includes
_FORM = re.compile(r"fl_([0-9a-f]{8})_([A-Za-z0-9_-]{43})")
_PRIVATE = 0o600
_Scope = Annotated[str, msgspec.Meta(pattern=f"^({'|'.join(SCOPES)})$")]
_Time = Annotated[dt.datetime, msgspec.Meta(tz=True)]
_VERSION = 1
_PATTERN = re.compile(r"(?:task/)?[A-Za-z0-9_.:-]{0,128}\*?")
MAX_PATTERNS = 20  # of a token


class AccessToken(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A token as the file has it: `sha256` is of the whole token, times are ISO 8601 in UTC.

    `keys` are the keys of limits that it may name: names, and beginnings with a * behind them.
    """

    id: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{8}$")]
    name: str
    scopes: tuple[_Scope, ...]
    sha256: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]
    created: _Time
    expires: _Time | None = None
    keys: tuple[str, ...] = ()

    def allows(self, scope: str) -> bool:
        """Returns True if the token has this scope."""
        return scope in all_scopes(self.scopes)

    def is_over(self, now: dt.datetime) -> bool:
        """Returns True if the token has expired."""
        return self.expires is not None and self.expires <= now


def check_patterns(given: Iterable[str]) -> tuple[str, ...]:
    """Returns the patterns of keys of a token. Raises InvalidArgument."""
    found = tuple(dict.fromkeys(given))
    if len(found) > MAX_PATTERNS:
        raise InvalidArgument(
            f"{len(found)} keys of a token are too many: name at most {MAX_PATTERNS}"
        )
    for one in found:
        if not one or not _PATTERN.fullmatch(one):
            raise InvalidArgument(
                f"key {one!r:.60} of a token is not valid: write a name, or its beginning and a * "
                "behind it, as customer-42 or acme-*"
            )
    return found


def all_scopes(named: Iterable[str]) -> tuple[str, ...]:
    """Returns these scopes and those that they include, in the order of SCOPES."""
    found = {scope for name in named for scope in (name, *_INCLUDES.get(name, ()))}
    return tuple(scope for scope in SCOPES if scope in found)


class _Content(msgspec.Struct, forbid_unknown_fields=True):
    version: int
    tokens: list[AccessToken]


class TokenFile:
    """The tokens of one file. A change by another process is seen at the next look.

    With `is_needed` = False no call needs a token before the file is there.
    """

    def __init__(self, path: Path, *, is_needed: bool = True) -> None:
        self.path = path
        self._is_needed = is_needed
        self._seen: tuple[int, ...] | None = None
        self._tokens: list[AccessToken] = []

    @property
    def is_needed(self) -> bool:
        """Returns True if calls need a token: also if the file was there and is gone."""
        if not self._is_needed:
            try:
                self.path.lstat()
            except (FileNotFoundError, NotADirectoryError):
                return False
            except OSError:  # it may be there
                pass
            self._is_needed = True
        return True

    def create(
        self,
        name: str,
        scopes: Iterable[str],
        expires_s: float | None = None,
        keys: Iterable[str] = (),
    ) -> tuple[AccessToken, str]:
        """Adds a token; returns what is kept of it, and its text, which is kept nowhere.

        Raises InvalidArgument, OSError.
        """
        check_name("token's name", name)
        wanted = tuple(scope for scope in SCOPES if scope in set(scopes))
        if not wanted or not set(scopes) <= set(SCOPES):
            raise InvalidArgument(
                f"scopes {', '.join(scopes) or 'none'}: name one or more of {', '.join(SCOPES)}"
            )
        patterns = check_patterns(keys)
        now = dt.datetime.now(dt.UTC).replace(microsecond=0)
        ends = None if expires_s is None else now + dt.timedelta(seconds=expires_s)
        with self._changing() as tokens:
            taken = {one.id for one in tokens}
            new = next(i for i in iter(lambda: secrets.token_hex(4), "") if i not in taken)
            text = f"fl_{new}_{secrets.token_urlsafe(32)}"
            made = AccessToken(new, name, wanted, _digest(text), now, ends, patterns)
            tokens.append(made)
        return made, text

    def all(self) -> list[AccessToken]:
        """Returns the tokens, oldest first; [] if there is no file. Raises InvalidArgument."""
        with contextlib.suppress(FileNotFoundError):
            facts = self.path.stat()
            seen = (facts.st_ino, facts.st_mtime_ns, facts.st_ctime_ns, facts.st_size)
            if seen != self._seen:
                self._tokens, self._seen = self._read(), seen
            return self._tokens
        return []

    def revoke(self, token_id: str) -> None:
        """Deletes a token. Raises AccessTokenNotFound, InvalidArgument, OSError."""
        with self._changing() as tokens:
            left = [one for one in tokens if one.id != token_id]
            if len(left) == len(tokens):
                raise AccessTokenNotFound(
                    f"there is no token {token_id} in {self.path}: fairlane token list shows them"
                )
            tokens[:] = left

    def find(self, text: str) -> AccessToken | None:
        """Returns the token with this text; None if there is none, or it has expired.

        The hashes are compared in constant time. Raises InvalidArgument if the file is damaged.
        """
        match = _FORM.fullmatch(text)
        given = _digest(text)
        for one in self.all():
            is_same = hmac.compare_digest(one.sha256, given)
            if is_same and match and match[1] == one.id:
                return None if one.is_over(dt.datetime.now(dt.UTC)) else one
        return None

    def same(self, token: AccessToken) -> AccessToken | None:
        """Returns what the file has of this token now; None if it was revoked, or has expired.

        Raises InvalidArgument if the file is damaged.
        """
        for one in self.all():
            if one.id == token.id and one.sha256 == token.sha256:
                return None if one.is_over(dt.datetime.now(dt.UTC)) else one
        return None

    def _read(self) -> list[AccessToken]:
        try:
            with self.path.open("rb") as file:
                _check_private(self.path, os.fstat(file.fileno()))
                content = msgspec.json.decode(file.read(), type=_Content)
            for one in content.tokens:
                check_name("token's name", one.name)
                check_patterns(one.keys)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise InvalidArgument(
                f"{self.path} cannot be read ({error.strerror}): tokens are in a file of this user"
            ) from None
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise InvalidArgument(
                f"{self.path} is no file of tokens ({error}): restore it, or delete it and create "
                "its tokens anew"
            ) from None
        if content.version != _VERSION:
            raise InvalidArgument(
                f"{self.path} has version {content.version}: this release reads {_VERSION}"
            )
        return content.tokens

    @contextlib.contextmanager
    def _changing(self) -> Iterator[list[AccessToken]]:
        """Lets one process at a time change the list, and then replaces the file."""
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = self.path.with_name(f"{self.path.name}.lock")
        with os.fdopen(os.open(lock, os.O_CREAT | os.O_RDWR, _PRIVATE), "w") as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            tokens = self._read()
            yield tokens
            fresh = self.path.with_name(f"{self.path.name}.new")
            with os.fdopen(
                os.open(fresh, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, _PRIVATE), "wb"
            ) as file:
                file.write(msgspec.json.format(msgspec.json.encode(_Content(_VERSION, tokens))))
                file.flush()
                os.fsync(file.fileno())
            fresh.replace(self.path)


def _check_private(path: Path, file: os.stat_result) -> None:
    """Raises InvalidArgument if others may write the file, or put another one in its place.

    If the path is a link, they may neither replace the link nor the file. Root may do both.
    """
    own = {0, os.geteuid()}
    if file.st_uid not in own:
        raise InvalidArgument(
            f"{path} belongs to another user, who may write it: create the tokens in a file of "
            "this user"
        )
    if stat.S_IMODE(file.st_mode) & (stat.S_IWGRP | stat.S_IWOTH):
        raise InvalidArgument(
            f"{path} can be written by other users: check its tokens with care, then run "
            f"chmod 600 {path}"
        )
    for folder in (path.parent, path.resolve().parent):
        facts = folder.stat()
        if facts.st_uid not in own:
            raise InvalidArgument(
                f"{path} can be replaced by another user, who owns its folder {folder}: move it "
                "into a folder of this user"
            )
        mode = stat.S_IMODE(facts.st_mode)
        if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
            raise InvalidArgument(
                f"{path} can be replaced by other users, who may write its folder: run "
                f"chmod o-w {folder}"
            )


def _digest(text: str) -> str:
    """Returns the hash of a token or a session, whose 256 random bits need no salt."""
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()


# ------------------------------------------------------------------ caller
# The caller of an endpoint: the name and the scopes of its token, and its address.


class Caller(NamedTuple):
    """The name and the id of a token, and its scopes, also those that others include.

    The id is "" if the caller has no token. `keys` are patterns of the keys that it may name.
    """

    name: str
    scopes: tuple[str, ...]
    id: str = ""
    keys: tuple[str, ...] = ()

    @classmethod
    def of(cls, token: AccessToken) -> Caller:
        """Returns the caller that has this token."""
        return cls(token.name, all_scopes(token.scopes), token.id, token.keys)

    def check_keys(self, names: Iterable[str]) -> None:
        """Raises Refusal unless the caller may name and set these keys.

        A token with keys may those, another one all keys if it has the scope operate, else none.
        """
        for name in names:
            if not self._may_name(name):
                own = f"its keys are {', '.join(self.keys)}" if self.keys else "it has none"
                raise Refusal(
                    403,
                    f"{UNAUTHORIZED}: key {name} is none of this token's keys ({own}): "
                    "fairlane token create --key NAME makes a token with keys",
                )

    def _may_name(self, key: str) -> bool:
        if not self.keys:
            return "operate" in self.scopes
        return any(key == one or (one[-1] == "*" and key.startswith(one[:-1])) for one in self.keys)


LOCAL = Caller("local", SCOPES)  # a program of this machine, where there are no tokens
ANYONE = Caller("", ())  # a call that needs no token

_ONE_SITE = 64  # bits of an IPv6 address that a network gets: the rest is the caller's choice
_MAX_HOPS = 32  # addresses that a proxy's header may name


class Proxies:
    """The proxies whose X-Forwarded-For names the caller; a caller may write that of any other.

    Raises InvalidArgument.
    """

    def __init__(self, networks: Iterable[str] = ()) -> None:
        self._networks = [_network(text) for text in networks]

    def has(self, address: str) -> bool:
        """Returns True if this is the address of a proxy."""
        found = _parse(address)
        return found is not None and any(found in network for network in self._networks)

    def address_of(self, request: Call) -> str:
        """Returns the address of the caller: behind proxies the last one that is no proxy."""
        peer = request.client.host if request.client else ""
        if not self._networks or not self.has(peer):
            return peer
        named = ",".join(request.headers.getlist("x-forwarded-for"))
        for hop in reversed(named.rsplit(",", _MAX_HOPS)[-_MAX_HOPS:]):
            address = hop.strip()
            if _parse(address) is None:
                break
            if not self.has(address):
                return address
        return peer

    def group_of(self, address: str) -> str | None:
        """Returns what counts as one address; None for a proxy, which has many callers."""
        return None if self.has(address) else group_of(address)


def group_of(address: str) -> str:
    """Returns what counts as one address: all of one network of IPv6 have one owner."""
    found = _parse(address)
    if isinstance(found, ipaddress.IPv6Address):
        return str(ipaddress.IPv6Network((found, _ONE_SITE), strict=False))
    return address if found is None else str(found)


def _parse(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        found = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None
    return getattr(found, "ipv4_mapped", None) or found


def _network(text: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network:
    try:
        return ipaddress.ip_network(text.strip(), strict=False)
    except ValueError:
        raise InvalidArgument(
            f"trusted proxy {text!r} is not valid: give an address or a network, as 10.0.0.0/8"
        ) from None


# ------------------------------------------------------------------ rates
# How often a caller may call: at most so many calls in a time, with a burst (GCRA).
#
# The times are in the memory of one server: several servers allow several times as much.


_EXACT_S = 1e-6  # sums of fractions are not exact
MOST_CALLERS = 10_000  # with a count of their own
_LOOKS = 4  # at each call: so many callers whose count may be over
_OTHERS = ""  # the count of all callers for whom there is no place


class CallRates:
    """The calls of each caller, at most `rate`, as 100/s, and `burst` of them together.

    The burst is by default what the rate allows in a second. A count is forgotten when it is over,
    never earlier, whatever number of addresses a caller has. If there are too many counts, further
    callers share one. Raises InvalidArgument.
    """

    def __init__(self, rate: str, burst: int | None = None) -> None:
        self._interval_s = rate_of(rate, burst).interval_us / 1e6
        most = max(1, int(1 / self._interval_s)) if burst is None else burst
        self._tolerance_s = self._interval_s * (most - 1)
        # When the last call would have come at the exact rate; a time that is over says nothing.
        self._due: OrderedDict[str, float] = OrderedDict()

    def wait_s(
        self, caller: str, now_s: float, cost: float = 1.0, *, is_known: bool = False
    ) -> float:
        """Counts a call and returns 0.0; or returns after how many seconds it may be repeated.

        `cost`: as how many calls it counts. A caller that `is_known`, as by a token, always has a
        count of its own.
        """
        self._forget(now_s)
        if not is_known and caller not in self._due and len(self._due) >= MOST_CALLERS:
            caller = _OTHERS
        due = max(now_s, self._due.get(caller, now_s))
        early_s = due - now_s - self._tolerance_s
        if early_s > _EXACT_S:
            return early_s
        self._due[caller] = due + cost * self._interval_s
        return 0.0

    def _forget(self, now_s: float) -> None:
        """Looks at a few counts, each in its turn, and forgets those that are over."""
        for _ in range(min(_LOOKS, len(self._due))):
            caller, due = self._due.popitem(last=False)
            if due > now_s:
                self._due[caller] = due

    def __len__(self) -> int:
        return len(self._due)


# ------------------------------------------------------------------ cookie
# The dashboard's sessions: the server keeps them, and the browser has a cookie for its own.


SIGNED_IN_S = 12 * 3600  # a session ends then: one shift
MAX_SESSIONS = 10_000  # of a server: the oldest one ends first
MAX_SESSIONS_OF_TOKEN = 100
_SAME = "same-origin"


class _Session(NamedTuple):
    token: AccessToken
    ends_s: float


class Sessions:
    """The sessions of one server, in its memory: after a restart people sign in again.

    Only hashes of what the cookies have are kept.
    """

    def __init__(self) -> None:
        self._sessions: dict[str, _Session] = {}  # the oldest first

    def __len__(self) -> int:
        return len(self._sessions)

    def begin(self, token: AccessToken, now_s: float) -> str:
        """Returns the text of a new session, which is kept nowhere."""
        over = [name for name, one in self._sessions.items() if one.ends_s <= now_s]
        own = [name for name, one in self._sessions.items() if one.token.id == token.id]
        over += own[: max(0, len(own) + 1 - MAX_SESSIONS_OF_TOKEN)]
        over += [*self._sessions][: max(0, len(self._sessions) + 1 - MAX_SESSIONS)]
        for name in over:
            self._sessions.pop(name, None)
        text = secrets.token_hex(32)
        self._sessions[_digest(text)] = _Session(token, now_s + SIGNED_IN_S)
        return text

    def find(self, text: str, now_s: float) -> AccessToken | None:
        """Returns the token with which a session began; None if there is none, or it is over.

        The token may have been revoked meanwhile.
        """
        found = self._sessions.get(_digest(text))
        return found.token if found is not None and now_s < found.ends_s else None

    def end(self, text: str) -> None:
        """Ends a session."""
        self._sessions.pop(_digest(text), None)


def is_own_page(request: Call) -> bool:
    """Returns True if the browser says that a page of this server makes the call.

    Browsers say so only over https, and to the address of their own machine.
    """
    return bool(request.headers.get("sec-fetch-site") == _SAME)


def bearer_of(request: Call) -> str | None:
    """Returns the token of the header; "" = it has no token; None = there is no such header."""
    kind, _, text = request.headers.get("authorization", "").partition(" ")
    if not kind:
        return None
    return text.strip() if kind.lower() == "bearer" else ""


def session_of(request: Call, queue: str) -> str:
    """Returns the session that the call's cookie names; "" = none.

    A cookie counts only in calls of the server's own page, because browsers add it to others too.
    """
    return request.cookies.get(_name(queue), "") if is_own_page(request) else ""


def keep(response: Response, request: Call, queue: str, session: str) -> None:
    """Lets the browser keep a session: no script reads it, and no other site's page sends it."""
    response.set_cookie(
        _name(queue), session, SIGNED_IN_S, path=_path(request), secure=_is_encrypted(request),
        httponly=True, samesite="strict",
    )  # fmt: skip


def forget(response: Response, request: Call, queue: str) -> None:
    """Lets the browser forget its session."""
    response.delete_cookie(
        _name(queue), _path(request), secure=_is_encrypted(request), httponly=True,
        samesite="strict",
    )  # fmt: skip


def _name(queue: str) -> str:
    """Returns a name for each queue: servers at other ports of one host share their cookies."""
    return f"fairlane-{hashlib.sha256(queue.encode()).hexdigest()[:8]}"


def _path(request: Call) -> str:
    return f"{request.scope.get('root_path', '')}/"


def _is_encrypted(request: Call) -> bool:
    """Returns True if the page came by https, also through a proxy that ends it."""
    is_page_secure = request.headers.get("origin", "").startswith("https://")
    return request.url.scheme == "https" or is_page_secure


# ------------------------------------------------------------------ admission
# Admits a call by its token; without tokens only calls of this machine's programs.


LOCAL_HOSTS = frozenset({"localhost", "127.0.0.1", "::1"})  # names of this machine
UNAUTHORIZED = "You are unauthorized to perform this action"
_BEARER = {"WWW-Authenticate": "Bearer"}
_REVOKED = f"{UNAUTHORIZED}: the token was revoked, or has expired"
_log = logging.getLogger(__name__)
# Headers that proxies and load balancers add. A program that calls directly sends none of them.
_FORWARDED = re.compile(
    r"via|forwarded.*|x-forward.*|x-real-.*|x-original-.*|x-client-ip|x-cluster-client-ip"
    r"|true-client-ip|client-ip|(wl-)?proxy-client-ip|x-remote-.*|remote-addr|x-proxy.*|x-nginx-.*"
    r"|x-host|x-scheme|x-url-scheme|x-script-name|front-end-https|cdn-loop|cf-.*|fastly-.*|fly-.*"
    r"|akamai-.*|x-akamai-.*|x-envoy-.*|x-amzn?-.*|x-azure-.*|x-appengine-.*|x-cloud-.*|x-arr-.*"
    r"|x-vercel-.*|x-ssl-.*|ssl-client-.*|x-originating-.*|x-varnish.*|x-haproxy-.*|incap-.*"
    r"|x-sucuri-.*|surrogate-.*"
)


def admit(
    site: Site, request: Call, scopes: tuple[str, ...], *, is_page: bool = False,
    cost: float = 1.0,
) -> Caller:  # fmt: skip
    """Returns the caller; () = every caller is admitted. `cost`: as how many calls it counts.

    Raises Refusal unless it has one of these scopes, and if it calls too often.
    """
    request.state.address = site.proxies.address_of(request)
    address = f"at {group_of(request.state.address)}"
    request.state.counted_as = address
    if not site.has_tokens:
        _refuse_strangers(site, request, is_page=is_page)
    if not scopes:
        _bound(site, address, cost)
        return ANYONE if site.has_tokens else LOCAL
    if not site.has_tokens:
        _bound(site, address, cost)
        return LOCAL
    token = token_of(site, request)
    if token is None:
        _bound(site, address, cost)
        raise Refusal(401, UNAUTHORIZED, _BEARER)
    request.state.caller = Caller.of(token)
    request.state.counted_as = token.id
    _bound(site, token.id, cost, is_known=True)
    if not any(map(token.allows, scopes)):
        raise Refusal(403, f"this call needs a token with the scope {' or '.join(scopes)}")
    return Caller.of(token)


def check_still(site: Site, request: Call, scopes: tuple[str, ...]) -> None:
    """Raises Refusal if a call that goes on would not be admitted any more."""
    if not scopes or not site.has_tokens:
        return
    token = token_of(site, request)
    if token is None or not any(map(token.allows, scopes)):
        raise Refusal(401, _REVOKED, _BEARER)


def token_of(site: Site, request: Call) -> AccessToken | None:
    """Returns the token that a call shows, or that its session began with. Raises Refusal."""
    bearer = bearer_of(request)
    if bearer is not None:
        return find_token(site, bearer)
    session = session_of(request, site.queue.name)
    began = site.sessions.find(session, clock.mono_s()) if session else None
    try:
        return site.tokens.same(began) if site.tokens and began else None
    except (InvalidArgument, OSError) as error:
        raise _unreadable(error) from None


def find_token(site: Site, text: str) -> AccessToken | None:
    """Returns the token with this text, None if there is none. Raises Refusal."""
    try:
        return site.tokens.find(text) if site.tokens and text else None
    except (InvalidArgument, OSError) as error:
        raise _unreadable(error) from None


def _unreadable(error: Exception) -> Refusal:
    _log.error("no token can be checked: %s", error)
    return Refusal(503, "tokens cannot be checked now: the server's log has the details")


def _bound(site: Site, caller: str, cost: float, *, is_known: bool = False) -> None:
    """Counts a call. Raises Refusal if its caller calls too often."""
    if site.rates is None or not cost:
        return
    wait_s = site.rates.wait_s(caller, clock.mono_s(), cost, is_known=is_known)
    if wait_s:
        after = str(math.ceil(wait_s))
        raise Refusal(429, f"too many calls: repeat it after {after} s", {"Retry-After": after})


def _refuse_strangers(site: Site, request: Call, *, is_page: bool) -> None:
    """Refuses calls that a browser makes for a page of another site, or that a proxy passes on.

    A page of any site may call the address of this machine, also by a name of its own. A link may
    lead to the dashboard, whose files have no data. Over plain http browsers send Sec-Fetch-Site
    only to their own machine; Origin says it otherwise.
    """
    if site.hosts is not None:
        if (request.url.hostname or "") not in site.hosts:
            raise Refusal(403, "this server has no tokens: call it as localhost")
        if proxy := _sign_of_a_proxy(request):
            raise Refusal(
                403,
                f"this server has no tokens, and {proxy} says that a proxy passes this call on: "
                "fairlane token create makes a token",
            )
    if not is_page and _is_of_another_site(request):
        raise Refusal(403, "this server has no tokens: pages of other sites may not call it")


def _sign_of_a_proxy(request: Call) -> str:
    """Returns what shows that a proxy passes the call on, "" if nothing does."""
    for name in request.headers:
        if _FORWARDED.fullmatch(name):
            return str(name)
    # This is what nginx sends unless it is configured otherwise.
    is_closing = request.headers.get("connection", "").lower() == "close"
    return "HTTP/1.0" if request.scope.get("http_version") == "1.0" and is_closing else ""


def _is_of_another_site(request: Call) -> bool:
    site = request.headers.get("sec-fetch-site")
    if site is not None:
        return site not in {"none", "same-origin"}
    origin = request.headers.get("origin")
    host = request.headers.get("host", "").lower()
    return origin is not None and origin.partition("://")[2].lower() != host
