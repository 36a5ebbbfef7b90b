"""What can go wrong, as one tree.

FairlaneError
 ├── InvalidArgument      bad input, refused before anything was written   exit 2
 │    ├── ArgumentsRefused  a task cannot be called like this              exit 2
 │    ├── RequestExists   the id is taken by other content                 exit 2
 │    ├── HandlerNotFound the handler cannot be imported                   exit 2
 │    ├── WorkerRefused   the worker's id or port is in use                exit 2
 │    └── SparkMissing    no Spark that fits, or no Java for it            exit 2
 ├── RequestNotFound      no such request                                  exit 3
 │    └── RequestLost     the request, or some of its results, are gone    exit 3
 ├── DataLost             endings or results are gone and were not read    exit 1
 ├── DeadNotFound         no dead sub-request has that index or fingerprint exit 3
 ├── CallNotFound         the sub-request does not run now                  exit 3
 ├── CallShared           other calls would be ended, too: confirm it       exit 2
 ├── WorkerNotFound       the queue has no such worker that answers         exit 3
 ├── ScheduleNotFound     the queue has no schedule of this name            exit 3
 ├── SubscriberNotFound   the topic has no subscriber of this name         exit 3
 ├── TopicNotFound        there is no topic of this name                    exit 3
 ├── WebhookNotFound      the queue has no webhook of this name             exit 3
 ├── AccessTokenNotFound  the file has no token of this id                  exit 3
 ├── RequestClosed        the request is sealed: too late to add         exit 1
 ├── RequestEnded         the request ended: too late to add or change     exit 1
 ├── RequestNotEnded      the request has not ended: too early to delete   exit 1
 ├── ReceiptExpired       the lease of the receipt is over                 exit 1
 ├── TaskError            a call of a task is dead                         exit 1
 │    └── TaskCancelled   its request was cancelled before                 exit 1
 ├── WaitTimeout          the caller's timeout is over                     exit 4
 └── RedisError           exit 5
       ├── RedisUnreachable  no answer, wrong address, wrong password
       │    ├── ScriptsNotLoaded  a server lacks the scripts, and this user may not load them
       │    └── NodeAway          one node of a cluster does not answer; the others may
       ├── RedisUnfit        answers, but must not be used (version, policy, data)
       ├── RedisFull         at maxmemory: nothing was written
       ├── QueueFull         the queue's own bound is reached: nothing was written
       └── NotDurable        written, but confirmed by fewer replicas than requested

`exit_code` on each class is what the command line ends with.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine


class FairlaneError(Exception):
    """The base class of every error that this package raises deliberately.

    `submitted`: the ids that were in Redis when submit_many raised this.
    """

    exit_code = 1
    submitted: tuple[str, ...] = ()


class InvalidArgument(FairlaneError, ValueError):
    """Bad input; nothing was written."""

    exit_code = 2


class RequestExists(InvalidArgument):
    """The id belongs to a request with other content, options or queue."""


class HandlerNotFound(InvalidArgument):
    """`module:function` cannot be imported or is not callable."""


class WorkerRefused(InvalidArgument):
    """Another process beats under the worker's id, or the worker's port is in use."""


class SparkMissing(InvalidArgument):
    """Spark, its version or Java does not fit; the message names what to install."""


class ArgumentsRefused(InvalidArgument, TypeError):
    """A task cannot be called with these arguments or options; the message names which."""


class RequestNotFound(FairlaneError, LookupError):
    """There is no request with this id (or its retention is over)."""

    exit_code = 3


class RequestLost(RequestNotFound):
    """The request, or some of its results, existed and is gone: expired, rolled back, flushed."""


class DataLost(FairlaneError):
    """Entries of the completion log, or of a stream of results, are gone and were not read."""


class DeadNotFound(FairlaneError, LookupError):
    """The request has no dead sub-request with this index or fingerprint."""

    exit_code = 3


class CallNotFound(FairlaneError, LookupError):
    """The sub-request does not run now: it waits, has ended, or its worker cannot be asked."""

    exit_code = 3


class CallShared(FairlaneError):
    """Other calls may be ended with this one, because they run in its process."""

    exit_code = 2


class WorkerNotFound(FairlaneError, LookupError):
    """The queue has no worker of this id that answers."""

    exit_code = 3


class ScheduleNotFound(FairlaneError, LookupError):
    """The queue has no schedule of this name."""

    exit_code = 3


class SubscriberNotFound(FairlaneError, LookupError):
    """The topic has no subscriber of this name."""

    exit_code = 3


class TopicNotFound(FairlaneError, LookupError):
    """There is no topic of this name: nothing was published to it, and it has no subscriber."""

    exit_code = 3


class WebhookNotFound(FairlaneError, LookupError):
    """The queue has no webhook of this name."""

    exit_code = 3


class AccessTokenNotFound(FairlaneError, LookupError):
    """The file of bearer tokens has no token of this id."""

    exit_code = 3


class RequestEnded(FairlaneError):
    """The request has ended, or was cancelled: it cannot be submitted or changed any more."""


class RequestNotEnded(FairlaneError):
    """The request has not ended, or its dead sub-requests are being requeued: it stays."""


class RequestClosed(FairlaneError):
    """The submission of the request is sealed or was withdrawn: nothing can be added to it."""


class ReceiptExpired(FairlaneError):
    """The receipt is too old: its lease is over, and it settles nothing any more.

    The sub-request was taken back, and another program may hold it, or it is settled by now.
    """


class TaskError(FairlaneError):
    """A call of a task has no result, because its sub-request is dead.

    `task` is the task's name, `request_id` and `index` name the sub-request, and `attempts` is how
    many attempts it had. `error_type` and `message` are of the remote error, "" if it has none.
    `traceback` is the remote error's text, at most 4,000 bytes. Python prints it as a note.
    """

    def __init__(
        self,
        summary: str,
        *,
        task: str = "",
        request_id: str = "",
        index: int = 0,
        attempts: int = 0,
        error_type: str = "",
        message: str = "",
        traceback: str = "",
    ) -> None:
        super().__init__(summary)
        self.task, self.request_id, self.index = task, request_id, index
        self.attempts, self.error_type, self.message = attempts, error_type, message
        self.traceback = traceback
        if traceback and traceback.strip() != message:
            self.add_note(f"The error in the worker:\n{traceback.rstrip()}")


class TaskCancelled(TaskError):
    """A call of a task has no result, because its request was cancelled before the call ended."""


class WaitTimeout(FairlaneError, TimeoutError):
    """The request had not ended when the caller's timeout was over; the request goes on."""

    exit_code = 4


class RedisError(FairlaneError):
    """Redis can't be used now."""

    exit_code = 5


class RedisUnreachable(RedisError):
    """No connection, or no answer within the time allowed.

    `take_back` makes the operation that withdraws what a submission left open; None = nothing.
    """

    take_back: Callable[[], Coroutine[Any, Any, None]] | None = None


class ScriptsNotLoaded(RedisUnreachable):
    """A server lacks scripts of this release, and the user may not load them."""


class NodeAway(RedisUnreachable):
    """One node of a cluster does not answer. The call was given up, or not even sent.

    `away_s`: how long the node has not answered. `was_sent`: the node may perform the call later.
    """

    def __init__(self, text: str, away_s: float = 0.0) -> None:
        super().__init__(text)
        self.away_s = away_s
        self.was_sent = False


class RedisUnfit(RedisError):
    """Redis answers but must not be used: too old, evicting, or not ours to read."""


class LayoutTooNew(RedisUnfit):
    """A newer release has laid out this queue's keys in a way that this release cannot read."""


class RedisFull(RedisError):
    """Redis is at maxmemory and refused the write before it began."""


class QueueFull(RedisError):
    """As many sub-requests wait as the queue's bound allows; nothing was written.

    After `retry_after_s` seconds what waits is counted anew, so a repeat may find room.
    """

    retry_after_s = 1.0  # settings.RECOUNT_MS


class NotDurable(RedisError):
    """The request is written and goes on, but too few replicas confirmed the write in time."""


# Coded errors of the scripts (their first word) are bugs or bad input of the caller.
SCRIPT_ERRORS: dict[str, type[FairlaneError]] = {
    "BADARGUMENT": InvalidArgument,
    "BADBATCH": InvalidArgument,
    "BADCHUNK": InvalidArgument,
    "BADCOUNT": InvalidArgument,
    "BADLAYOUT": LayoutTooNew,
    "BADLIMIT": InvalidArgument,
    "BADPRIORITY": InvalidArgument,
    "BADSHARDS": InvalidArgument,
    "BADTOKENS": InvalidArgument,
    "BADVERDICT": InvalidArgument,
    "REFUSED": InvalidArgument,  # the rest is a sentence for the caller
}


def type_of(value: object) -> str:
    """Returns the type of a value with its article, as an error names it: `an int`, `a list`."""
    name = type(value).__name__
    return f"an {name}" if name[0] in "aeiouAEIOU" else f"a {name}"


def not_found(request_id: str) -> RequestNotFound:
    """Returns the error for an id whose request does not exist, or is no longer kept."""
    return RequestNotFound(
        f"there is no request {request_id} (an ended one is kept only for its retention)"
    )
