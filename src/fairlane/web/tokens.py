"""The file of bearer tokens: a hash, a name and scopes for each; never the token itself."""

from __future__ import annotations

import contextlib
import datetime as dt
import fcntl
import hashlib
import hmac
import os
import re
import secrets
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec

from fairlane.embedded.home import find_place
from fairlane.errors import AccessTokenNotFound, InvalidArgument
from fairlane.protocol.keys import check_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


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


SCOPES = ("view", "submit", "consume", "operate", "admin")
_INCLUDES = {"operate": ("view",), "admin": SCOPES}  # other scopes that a scope includes
_FORM = re.compile(r"fl_([0-9a-f]{8})_([A-Za-z0-9_-]{43})")
_PRIVATE = 0o600
_Scope = Annotated[str, msgspec.Meta(pattern=f"^({'|'.join(SCOPES)})$")]
_Time = Annotated[dt.datetime, msgspec.Meta(tz=True)]
_VERSION = 1


class AccessToken(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A token as the file has it: `sha256` is of the whole token, times are ISO 8601 in UTC."""

    id: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{8}$")]
    name: str
    scopes: tuple[_Scope, ...]
    sha256: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]
    created: _Time
    expires: _Time | None = None

    def allows(self, scope: str) -> bool:
        """Returns True if the token has this scope."""
        return scope in all_scopes(self.scopes)

    def is_over(self, now: dt.datetime) -> bool:
        """Returns True if the token has expired."""
        return self.expires is not None and self.expires <= now


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
        self, name: str, scopes: Iterable[str], expires_s: float | None = None
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
        now = dt.datetime.now(dt.UTC).replace(microsecond=0)
        ends = None if expires_s is None else now + dt.timedelta(seconds=expires_s)
        with self._changing() as tokens:
            taken = {one.id for one in tokens}
            new = next(i for i in iter(lambda: secrets.token_hex(4), "") if i not in taken)
            text = f"fl_{new}_{secrets.token_urlsafe(32)}"
            made = AccessToken(new, name, wanted, _digest(text), now, ends)
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

    If the path is a link, they may neither replace the link nor the file.
    """
    if stat.S_IMODE(file.st_mode) & (stat.S_IWGRP | stat.S_IWOTH):
        raise InvalidArgument(
            f"{path} can be written by other users: check its tokens with care, then run "
            f"chmod 600 {path}"
        )
    for folder in (path.parent, path.resolve().parent):
        mode = stat.S_IMODE(folder.stat().st_mode)
        if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
            raise InvalidArgument(
                f"{path} can be replaced by other users, who may write its folder: run "
                f"chmod o-w {folder}"
            )


def _digest(text: str) -> str:
    """Returns the hash of a token. Its 256 random bits need no salt and no slow hash."""
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()
