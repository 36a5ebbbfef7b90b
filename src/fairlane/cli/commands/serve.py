"""`fairlane serve`: a queue over HTTP."""

from __future__ import annotations

from importlib.util import find_spec

import click

from fairlane.cli.options import FILE, open_queue, queue_option, redis_option, time_ms, url_of
from fairlane.cli.output import note, write_line
from fairlane.errors import InvalidArgument

NEEDS = ("httpx2", "prometheus_client", "python_multipart", "starlette", "uvicorn")
MISSING = "fairlane serve needs the extra web: pip install '.[web]' in a clone of the repository"
OPEN = "no tokens: every program of this machine may call it; fairlane token create makes one"


@click.command("serve", short_help="Serve a queue over HTTP.")
@click.option("--host", default="127.0.0.1", show_default=True, metavar="HOST",
              help="The address to listen at.")  # fmt: skip
@click.option("--port", type=click.IntRange(0, 65_535), default=8080, show_default=True,
              metavar="N", help="The port to listen at; 0: any free one.")  # fmt: skip
@click.option("--tokens", type=FILE, metavar="FILE",
              help="The bearer tokens that may call.  [default: fairlane token's file, if it is "
              "there]")  # fmt: skip
@click.option("--visible", default="30s", show_default=True, metavar="TIME",
              help="How long GET /messages holds a message that is not deleted.")  # fmt: skip
@click.option("--rate", metavar="RATE",
              help="Refuse more calls of one token than this, as 100/s; of an address without a "
              "token.  [default: no bound]")  # fmt: skip
@click.option("--burst", type=int, metavar="N",
              help="So many may come together.  [default: those of a second]")  # fmt: skip
@click.option("--trusted-proxy", "proxies", multiple=True, metavar="ADDRESS",
              help="A proxy, or a network of proxies, as 10.0.0.0/8: its X-Forwarded-For names the "
              "caller. May be given again.")  # fmt: skip
@click.option("--webhooks-to-private", is_flag=True,
              help="Let webhooks call addresses that are not of the Internet.")  # fmt: skip
@queue_option
@redis_option
def command(
    host: str, port: int, tokens: str | None, visible: str, rate: str | None, burst: int | None,
    proxies: tuple[str, ...], webhooks_to_private: bool, queue: str, redis: str | None,
) -> int:  # fmt: skip
    """Serve a queue over HTTP until SIGTERM or Ctrl-C, and print the address.

    Programs of any language submit, take and settle by it. /docs lists the calls, /openapi.json
    describes them. With a file of tokens each call needs one, also if the file comes later;
    without it only programs of this machine can call.
    """
    visible_s = time_ms("--visible", visible, "1s", "24h") / 1000
    if rate is None and burst is not None:
        raise InvalidArgument("--burst needs --rate, as 100/s")
    if any(find_spec(name) is None for name in NEEDS):
        raise InvalidArgument(MISSING)
    from fairlane.web.access import CallRates, Proxies, is_named, tokens_path
    from fairlane.web.server import Serving, serve

    rates = None if rate is None else CallRates(rate, burst)
    trusted = Proxies(proxies)
    path = tokens_path(tokens)
    if is_named(tokens) and not path.exists():
        raise InvalidArgument(f"{path} does not exist: fairlane token create --file {path}")
    has_tokens = path.exists()
    with open_queue(redis, queue):
        pass

    def on_start(address: str) -> None:
        write_line(address)
        if not has_tokens:
            note(OPEN)

    wanted = Serving(
        url=url_of(redis), queue=queue, host=host, port=port, tokens=path,
        needs_tokens=has_tokens, visible_s=visible_s, rates=rates,
        hooks_to_private=webhooks_to_private, proxies=trusted,
    )  # fmt: skip
    serve(wanted, on_start)
    return 0
