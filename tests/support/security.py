"""Makes a test authority for TLS, and users: an admin for the tests, one for the product.

Both are what a server is started with and what a client needs; the default user is off.
"""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from fairlane.protocol import acl
from fairlane.protocol.lua import Dialect, library
from tests.support.servers import server_process

if TYPE_CHECKING:
    from pathlib import Path

ADMIN, ADMIN_PASSWORD = "admin", "for_the_tests"
USER, PASSWORD = "fairlane", "p@ss/w:rd?%"  # characters that a URL must quote
# What the product's user may do: submit, work, repair and read. Only a deployer may load scripts.
ROLES = "producer+worker+maintenance+server+lists+topics"
_ADMIN_USER = ["--user", ADMIN, "on", f">{ADMIN_PASSWORD}", "~*", "&*", "+@all"]
_ADMIN_USER += ["--user", "default", "off"]
NO_OPENSSL = "no openssl found: certificates can't be made"


@dataclass(frozen=True)
class Security:
    """The files of the certificates, and the rules of the product's user."""

    folder: Path
    rules: tuple[str, ...]

    @property
    def authority(self) -> Path:
        """The certificate of the authority, which a client needs."""
        return self.folder / "ca.crt"

    @property
    def credentials(self) -> str:
        """The name and password of the product's user, as in a URL."""
        return f"{USER}:{quote(PASSWORD, safe='')}@"

    @property
    def admin_credentials(self) -> str:
        """The name and password of the admin, as in a URL."""
        return f"{ADMIN}:{ADMIN_PASSWORD}@"

    @property
    def query(self) -> str:
        """The query of a URL that names the certificates."""
        return f"?ssl_ca_certs={quote(str(self.authority))}"

    @property
    def access(self) -> dict[str, Any]:
        """What a client of the tests needs besides host and port."""
        return {
            "ssl": True,
            "ssl_ca_certs": str(self.authority),
            "ssl_certfile": str(self.folder / "client.crt"),
            "ssl_keyfile": str(self.folder / "client.key"),
            "ssl_check_hostname": False,
            "username": ADMIN,
            "password": ADMIN_PASSWORD,
        }

    def tls_options(self, port: int, *, clients: str = "no") -> list[str]:
        """Returns options for a server that accepts only TLS; `clients`: they need certificates."""
        words = ["--port", "0", "--tls-port", str(port), "--tls-replication", "yes"]
        words += ["--tls-cert-file", str(self.folder / "server.crt")]
        words += ["--tls-key-file", str(self.folder / "server.key")]
        words += ["--tls-ca-cert-file", str(self.authority), "--tls-auth-clients", clients]
        return words

    def user_options(self) -> list[str]:
        """Returns the options that give a server its users."""
        words = [*_ADMIN_USER, "--user", USER, "on", f">{PASSWORD}", *self.rules]
        return [*words, "--masteruser", ADMIN, "--masterauth", ADMIN_PASSWORD]

    def options(self, port: int) -> list[str]:
        """Returns the options for TLS and for users, for a server at this port."""
        return [*self.tls_options(port), *self.user_options()]

    def sentinel_options(self, port: int) -> list[str]:
        """Returns the options for TLS and for users of a sentinel; its only user is the admin."""
        return [*self.tls_options(port), *_ADMIN_USER]


def make_security(
    folder: Path, version: tuple[int, ...] = acl.USUAL, names: str = "IP:127.0.0.1,DNS:localhost"
) -> Security:
    """Makes an authority, and certificates of a server and a client in its name.

    Raises LookupError without openssl, and without a server that speaks TLS.
    """
    if reason := why_not():
        raise LookupError(reason)
    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    (folder / "names").write_text(f"subjectAltName={names}\n")
    _openssl(folder, "req", "-x509", *key, "-days", "2", "-subj", "/CN=authority of the tests",
             "-keyout", "ca.key", "-out", "ca.crt")  # fmt: skip
    for name in ("server", "client"):
        _openssl(folder, "req", *key, "-subj", f"/CN={name} of the tests",
                 "-keyout", f"{name}.key", "-out", f"{name}.csr")  # fmt: skip
        _openssl(folder, "x509", "-req", "-in", f"{name}.csr", "-days", "2", "-CA", "ca.crt",
                 "-CAkey", "ca.key", "-CAcreateserial", "-extfile", "names",
                 "-out", f"{name}.crt")  # fmt: skip
    return Security(folder, tuple(acl.rules(ROLES, server=version, patterns=["{lists}:*"])))


def why_not() -> str | None:
    """Returns why TLS can't be tested here; None if it can."""
    if shutil.which("openssl") is None:
        return NO_OPENSSL
    try:
        server_process.find_secure()
    except LookupError as missing:
        return str(missing)
    return None


def _openssl(folder: Path, *words: str) -> None:
    said = subprocess.run(
        ["openssl", *words], cwd=folder, capture_output=True, text=True, check=False
    )
    assert said.returncode == 0, said.stderr


def load_scripts(client: Any) -> None:
    """Loads the scripts as a deployer: the product's user may only run them."""
    dialect = Dialect.of(client.info())
    scripts = list(library())
    there = client.script_exists(*(script.shas[dialect] for script in scripts))
    for script, is_there in zip(scripts, there, strict=True):
        if not is_there:
            client.script_load(script.source(dialect))
