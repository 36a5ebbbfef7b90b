"""Checks topics and forwarded lists, which belong to no queue: what is not read, what is lost.

It only reads. The walk finds their keys on its way.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairlane.common.text import format_duration, plural
from fairlane.errors import FairlaneError, RedisUnreachable, TopicNotFound
from fairlane.operations.diagnosis.finding import NOTE, WARN, Finding
from fairlane.operations.lists import forwarding
from fairlane.operations.topics.subscribers import read_topic
from fairlane.protocol import keys, list_keys

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fairlane.operations.lists.forwarding import ForwardState
    from fairlane.operations.topics.subscribers import Subscriber, TopicState
    from fairlane.protocol.steps import Operation

_IDLE_MS = 3_600_000  # a subscriber, or a list, that waits for so long has no consumer
_NEAR = 0.8  # of the retention: what is older may be deleted soon


def check_messages(found: Iterable[bytes], now_ms: int) -> Operation[list[Finding]]:
    """Finds what is wrong with the topics and forwarded lists whose keys are among these."""
    findings: list[Finding] = []
    for key in found:
        if (topic := keys.topic_of(key)) is not None:
            findings += yield from _topic(topic, now_ms)
        elif (source := list_keys.forwarded_list(key)) is not None:
            findings += yield from _forwarded(source, now_ms)
    return findings


def _topic(topic: str, now_ms: int) -> Operation[list[Finding]]:
    try:
        state = yield from read_topic(topic)
    except RedisUnreachable:
        raise
    except TopicNotFound:  # it was deleted meanwhile
        return []
    except FairlaneError as error:
        return [_unread("topics", f"topic {topic}", "topics", error)]
    found = []
    if state.messages and not state.subscribers:
        what = f"{plural(state.messages, 'message')} and no subscriber"
        found.append(Finding("topics", NOTE, what, subject=f"topic {topic}"))
    for one in state.subscribers:
        problem = _problem(state, one, now_ms)
        if problem is not None:
            what, remedy = problem
            subject = f"topic {topic}, subscriber {one.name}"
            found.append(Finding("topics", WARN, what, remedy, subject))
    return found


def _problem(state: TopicState, one: Subscriber, now_ms: int) -> tuple[str, str] | None:
    """Returns what is wrong with a subscriber, and the remedy; the worst only."""
    if not one.lag:
        return None
    age_ms = now_ms - one.oldest_ms if one.oldest_ms else 0
    idle_ms = now_ms - one.seen_ms
    start = f"start its consumer, or fairlane topic unsubscribe {state.name} {one.name}"
    read = f"has not read for {format_duration(idle_ms)}" if one.seen_ms else "has never read"
    waits = f"{plural(one.lag, 'message')} not acknowledged"
    if one.missed and one.waiting == state.messages:
        what = f"has missed {plural(one.missed, 'message')}: the retention deleted them unread"
        longer = f"keep more: fairlane topic retain {state.name} --age or --count; or {start}"
        return f"{what}; it {read}, {waits}", longer
    if one.waiting > _NEAR * state.retain_count or age_ms > _NEAR * state.retain_ms:
        oldest = format_duration(age_ms)
        what = f"is close to the end of the retention: {waits}, the oldest for {oldest}"
        return what, f"keep more: fairlane topic retain {state.name} --age or --count; or {start}"
    if idle_ms > _IDLE_MS and age_ms > _IDLE_MS:
        return f"{read}: {waits}, the oldest for {format_duration(age_ms)}", start
    return None


def _forwarded(source: str, now_ms: int) -> Operation[list[Finding]]:
    try:
        state = yield from forwarding.read_state(source)
    except RedisUnreachable:
        raise
    except FairlaneError as error:
        return [_unread("forward", f"list {source}", "lists", error)]
    subject, found = f"list {source}", []
    if state.lag and state.until_ms < now_ms:
        what = f"{plural(state.lag, 'message')} not forwarded, and no forwarder is active"
        remedy = f"start one: fairlane forward --from URL/{source} --to URL/LIST"
        found.append(Finding("forward", WARN, what, remedy, subject))
    if state.restarts:
        found.append(Finding("forward", NOTE, _restarted(state, now_ms), subject=subject))
    return found


def _restarted(state: ForwardState, now_ms: int) -> str:
    ago = format_duration(max(0, now_ms - state.restarted_ms))
    times = plural(state.restarts, "time")
    return f"its numbers began again {times}, last {ago} ago: {forwarding.REASONS[state.reason]}"


def _unread(check: str, subject: str, role: str, error: FairlaneError) -> Finding:
    what = f"can't be read: {error}"
    return Finding(check, NOTE, what, f"a user with the role {role} may read it", subject)
