"""Least-privilege users of Redis: what each role may do, as ACL rules.

The commands inside a script are read from its Lua. Other commands are listed in ROLES. A test reads
the source of the commands that a role is for, and reports what is missing here and what is unused.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from fairlane.errors import InvalidArgument
from fairlane.protocol import keys
from fairlane.protocol.lua import Dialect, library

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fairlane.protocol.lua import Script

Version = tuple[int, ...]
USUAL: Version = (7, 0)
_CALL = re.compile(r'redis\.p?call\("([A-Z]+)"(?:, *"([A-Z]+)")?')
_COMMENT = re.compile(r"--.*")
_CONTAINERS = {"xgroup"}  # commands whose second word says which one it is
# Rules that name a command are refused by a server that does not know it.
_SINCE: dict[str, Version] = {
    "client|setinfo": (7, 2),
    "waitaof": (7, 2),
}


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# What a driver sends for itself, besides its steps. redis-py adds `client` and `select`.
CONNECTION = _words("client|setinfo client|setname cluster|slots info ping select")
# What a driver sends instead of a step; `asking` precedes a step whose slot is being moved.
CALL = _words("asking evalsha")
CONFIRM = _words("wait waitaof")
POP = _words("blmpop brpop llen lmpop rpop")
SUBSCRIBE = _words("ssubscribe subscribe")
# What `fairlane` tries, and can work without: CONFIG GET also returns passwords, and a user
# that may load scripts may run any script.
WITHHELD = _words("config|get eval")


class Role(NamedTuple):
    """One kind of user: its commands of `fairlane`, its scripts, and the other Redis commands.

    A deployer has no keys. `any_keys`: a person names the lists, so a rule cannot derive them.
    `of_server`: it alone has what the server of the HTTP API keeps.
    """

    what: str
    runs: tuple[str, ...]
    scripts: frozenset[str]
    commands: frozenset[str]
    has_keys: bool = True
    any_keys: bool = False
    of_server: bool = False
    sees_deliveries: bool = False  # how far webhooks are, without their secrets
    patterns: tuple[str, ...] = ()  # of the only keys that it has, if there are any


ROLES = {
    "producer": Role(
        "submits, waits, reads results, cancels",
        (
            *("submit", "wait", "results", "cancel", "status", "why", "list", "completions"),
            *("archive", "flow", "schedule add", "schedule list"),
            *("spark submit", "spark collect", "spark stop"),
        ),
        _words(
            "add_turns admit append append_partition append_staged append_unique cancel"
            " change_shared confirm discard drop_active due_schedules enqueue hand_over"
            " insert_tokens intend measure_stream pin_manifest place place_tokens put_schedule"
            " read_heads report_backlog reschedule_active retire seal stage submit unstage"
        ),
        _words(
            "exists get hexists hget hgetall hincrby hlen hmget hscan hset llen lrange lrem pexpire"
            " sadd scan set sismember srem sscan time unlink xinfo|stream xlen xrange xread"
            " xrevrange zadd zcard zcount zrange zrangebylex zrangebyscore zremrangebyscore zscan"
            " zscore"
        )
        | CALL
        | CONFIRM
        | SUBSCRIBE,
    ),
    "worker": Role(
        "works, and keeps the queue whole",
        ("worker",),
        _words(
            "abandon acquire add_stats add_turns admit answer cancel change_shards change_shared"
            " charge_turns check claim_ticks complete confirm"
            " drop_active due_schedules enqueue exchange expire_leftovers"
            " expire_workers extend glance hand_chosen hand_over hasten heartbeat hold hold_rate"
            " insert_tokens intend join join_chosen list_chosen list_dead move_tick open_gate"
            " place_tokens check_keys look_at_keys promote push put_schedule reap refund"
            " register_worker report_backlog reschedule_active restore_active retire seal"
            " set_key_limit set_shards stand_in submit take take_keys take_turns unregister_worker"
        ),
        _words(
            "exists get getbit getrange hdel hexists hget hgetall hincrby hlen hmget hscan hset"
            " llen lpos lrange pexpire pttl scan set time unlink xinfo|groups xlen xrange xrevrange"
            " xtrim zcard zcount zrange zrangebylex zrangebyscore zrem zscan zscore"
        )
        | CALL
        | CONFIRM
        | POP,
    ),
    "maintenance": Role(
        "submits, and does to requests and queues what a person does",
        (
            *("submit", "wait", "results", "cancel", "status", "pause", "resume", "set"),
            *("delete", "dead", "errors", "list", "workers", "queues", "completions", "stats"),
            *("why", "demand", "queue", "key", "doctor", "schedule", "flow"),
            *("stacks", "kill"),
        ),
        _words(
            "abandon add_turns admit append cancel change_shards change_shared check"
            " confirm delete discard drop_active drop_dead drop_schedule due_schedules enqueue"
            " expire_leftovers expire_workers glance hand_chosen hand_over insert_tokens intend"
            " join join_chosen list_chosen list_dead move_tick order pause pause_queue place"
            " place_tokens"
            " put_schedule rate_queue reap refit report_backlog requeue_dead reschedule_active"
            " restore_active resume resume_key retire seal set_deadline set_limit"
            " set_max_waiting"
            " set_key_limit set_priority set_rate set_shards set_share"
            " set_time_limit submit"
        ),
        _words(
            "cluster|info del exists get getbit getrange hexists hget hgetall hincrby hlen"
            " hmget hscan hset llen lpos lrange lrem memory|usage pexpire pttl scan script|exists"
            " time unlink xinfo|groups xlen xpending xrange xread xrevrange zcard zcount zrange"
            " zrangebylex zrangebyscore zrem zscan zscore"
        )
        | CALL
        | CONFIRM
        | SUBSCRIBE,
        sees_deliveries=True,
    ),
    "monitor": Role(
        "looks, and changes nothing",
        (
            *("status", "errors", "tasks", "list", "workers", "queues", "completions"),
            *("stats", "why", "demand", "dead list", "doctor", "queue show", "schedule list"),
            *("flow list", "flow show", "key list", "key show", "top"),
        ),
        _words("check due_schedules glance list_chosen list_dead"),
        _words(
            "cluster|info exists get getbit getrange hexists hget hgetall hlen hmget hscan llen"
            " lpos lrange memory|usage pttl scan script|exists time xinfo|groups xlen xpending"
            " xrange xread xrevrange zcard zcount zrange zrangebylex zrangebyscore zscan zscore"
        )
        | CALL,
        sees_deliveries=True,
    ),
    "lists": Role(
        "hands over the messages of a person's lists",
        ("fanout", "forward", "balance"),
        _words(
            "claim_messages fan_out keep_service land next_forward push_shortest restart_forward"
            " settle_messages"
        ),
        _words("blmove del exists hget hmget incr incrby llen lrange lrem time") | CALL,
        any_keys=True,
    ),
    "topics": Role(
        "publishes to topics, and reads as any subscriber",
        ("topic",),
        _words("publish subscribe take_messages unsubscribe"),
        _words("hgetall hset scan unlink xack xinfo|groups xlen xpending xrange xread") | CALL,
        patterns=(keys.EVERY_TOPIC_KEY,),
    ),
    "server": Role(
        "keeps the audit trail and the webhooks of the HTTP API",
        ("webhook",),
        frozenset(),
        _words(
            "del get hdel hexists hget hgetall hlen hset hsetnx pexpire set time unlink xadd xdel"
            " xlen xrange xread xrevrange zadd zcard zpopmin zrange"
        ),
        of_server=True,
    ),
    "deployer": Role(
        "loads the scripts onto every node",
        ("scripts load", "scripts verify"),
        frozenset(),
        _words("cluster|nodes script|exists script|load"),
        has_keys=False,
    ),
}


def rules(
    role: str,
    queue: str | None = None,
    *,
    server: Version = USUAL,
    patterns: Iterable[str] = (),
) -> list[str]:
    """Returns the rules of ACL SETUSER for a role, without `on` and the password.

    `role` is one of ROLES, or several joined by a +. The user may dispatch only in `queue`; None =
    in every queue. (The key of a request does not name its queue.) `server` is the version of the
    Redis: an older one refuses rules with commands that it lacks. `patterns`: the keys of the role
    lists, such as orders:*; without one it has no key. A pattern that reaches keys of queues or
    topics is refused. Raises InvalidArgument.
    """
    roles = [_role(name) for name in role.split("+")]
    if queue is not None:
        keys.check_name("queue", queue)
    patterns = [*patterns]
    for pattern in patterns:
        if (key := keys.reached_by(pattern, queue)) is not None:
            raise InvalidArgument(
                f"key pattern {pattern!r} is not valid: it also reaches {key}, which is no list of "
                "yours: name your lists, as in 'orders:*'"
            )
    allowed = set(CONNECTION)
    for one in roles:
        allowed |= one.commands
        allowed.update(*(commands_of(library()[name]) for name in one.scripts))
    found = ["resetkeys", "resetchannels", "-@all"]
    plain = (one for one in roles if not one.any_keys and not one.patterns and not one.of_server)
    if any(one.has_keys for one in plain):
        found += [f"~{pattern}" for pattern in keys.every_key(queue)]
    found += [f"~{pattern}" for one in roles for pattern in one.patterns]
    if any(one.of_server for one in roles):
        found += keys.every_server_key(queue)
    if any(one.sees_deliveries for one in roles):
        found += keys.every_delivery_key(queue)
    if any(one.any_keys for one in roles):
        found += [f"~{pattern}" for pattern in patterns]
    if allowed & {"publish", "subscribe"}:
        found.append(f"&{keys.EVERY_DONE_CHANNEL}")
    return [*found, *(f"+{name}" for name in sorted(allowed) if has_command(server, name))]


def commands_of(script: Script) -> set[str]:
    """Returns the commands that a script calls, on a single server or in a cluster.

    Each is named as in an ACL: `hget`, `xgroup|create`.
    """
    return set[str]().union(*(commands_in(script, dialect) for dialect in Dialect))


def commands_in(script: Script, dialect: Dialect) -> set[str]:
    """Returns the commands in a script's text for one dialect, named as in `commands_of`."""
    found = set()
    for name, second in _CALL.findall(_COMMENT.sub("", script.source(dialect).decode())):
        command = name.lower()
        found.add(f"{command}|{second.lower()}" if command in _CONTAINERS else command)
    return found


def has_command(server: Version, command: str) -> bool:
    """Returns True if a server of that version has this command."""
    return server >= _SINCE.get(command, ())


def version(text: str) -> Version:
    """Returns the numbers of `7.0` or `7.0.15`. Raises InvalidArgument."""
    parts = text.split(".")
    if not 2 <= len(parts) <= 3 or not all(part.isdigit() for part in parts):  # noqa: PLR2004
        raise InvalidArgument(f"{text!r} is no version of Redis: name one such as 7.0 or 7.2")
    found = tuple(map(int, parts))
    if found < USUAL:
        raise InvalidArgument(f"Redis {text} is too old for Fairlane: name 7.0 or newer")
    return found


def _role(name: str) -> Role:
    found = ROLES.get(name)
    if found is None:
        raise InvalidArgument(f"there is no role {name!r}: {_listed(ROLES)} are known")
    return found


def _listed(names: Iterable[str]) -> str:
    *first, last = names
    return f"{', '.join(first)} and {last}"
