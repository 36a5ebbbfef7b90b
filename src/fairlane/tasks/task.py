"""A task: a function that can be called in this process, or submitted to workers."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, Unpack

from fairlane.errors import ArgumentsRefused, type_of
from fairlane.tasks.async_batch import AsyncBatch, AsyncSubmitted
from fairlane.tasks.batch import Batch, Submitted
from fairlane.tasks.chain import Link
from fairlane.tasks.options import call_options, default_limit, hiding
from fairlane.tasks.result_reader import ResultReader
from fairlane.worker.handlers import Context

if TYPE_CHECKING:
    from fairlane import aio
    from fairlane.option_types import CallOptions
    from fairlane.options import Limits
    from fairlane.request import Request
    from fairlane.tasks.app import App
    from fairlane.tasks.keys import TaskKeys
    from fairlane.tasks.signature import TaskSignature

P = ParamSpec("P")
R = TypeVar("R")
C = TypeVar("C")  # what a plain call returns: R, or a coroutine of it


class Task(Generic[P, R, C]):
    """A function that an app has registered; App.task makes it.

    Calling it calls the function here. `submit` and `map` make requests, and so do `asubmit` and
    `amap` for asyncio. Arguments are checked against the signature and encoded before anything is
    written: each of these raises ArgumentsRefused, and what Queue.submit_request raises. `keys` are
    those that its calls name.
    """

    fairlane_remedy = "name its app, with rq-worker --app MODULE:APP"

    def __init__(
        self,
        app: App,
        function: Callable[P, C],
        signature: TaskSignature,
        options: dict[str, Any],
        keys: TaskKeys,
    ) -> None:
        self.app, self.function, self.signature = app, function, signature
        self.name = signature.task
        self._options, self.keys = options, keys
        self._sent = {**options, "task": self.name}  # of each of its requests
        self.__doc__, self.__wrapped__ = function.__doc__, function

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> C:
        """Calls the function in this process; its Context is one of no request, unless given."""
        signature = self.signature
        if signature.context is None or any(isinstance(one, Context) for one in args):
            return self.function(*args, **kwargs)
        if signature.context in kwargs:
            return self.function(*args, **kwargs)
        placed, named = signature.place(signature.bind(args, kwargs), Context.local())
        return self.function(*placed, **named)

    def with_options(self, **options: Unpack[CallOptions]) -> Task[P, R, C]:
        """Returns the same task with other options for its requests; also their `id`.

        `limits` adds keys to those of the task. The task's own `limit` is the same for all calls.
        Raises ArgumentsRefused and InvalidArgument.
        """
        found, keys = call_options(self.keys, self._options, dict(options))
        chosen = {**self._options, **found}
        chosen = hiding(chosen, self._options.get("redact", ()))  # what is hidden stays so
        return Task(self.app, self.function, self.signature, chosen, keys)

    @property
    def options(self) -> dict[str, Any]:
        """Returns the options of its requests, as Queue.submit_request takes them; without keys."""
        return dict(self._options)

    def options_with(self, keys: Limits) -> dict[str, Any]:
        """Returns the options of a request that names these keys.

        A request may use as many workers as its task allows, unless it has a limit of its own.
        """
        if not keys:
            return self._sent
        return {**default_limit(self.keys.limit, self._sent), **self._sent, "limits": keys}

    def encode_call(self, *args: P.args, **kwargs: P.kwargs) -> bytes:
        """Returns the body of one call. Raises ArgumentsRefused."""
        return self._body(args, kwargs)

    def encode_with_options(self, *args: Any, **kwargs: Any) -> tuple[bytes, dict[str, Any]]:
        """Returns the body of one call, and the options of its request. Raises ArgumentsRefused."""
        bound = self.signature.bind(args, kwargs)
        body = self.signature.encode(self.app.codec, bound)
        return body, self.options_with(self.keys.of_call(bound))

    def s(self, *args: Any, **kwargs: Any) -> Link:
        """Returns a call for `chain` or `group`; in a chain the result before it comes first."""
        return Link(self, args, kwargs)

    # A request of one call.

    def submit(self, *args: P.args, **kwargs: P.kwargs) -> Submitted[R]:
        """Submits one call and returns it; its `result` waits."""
        body, options = self.encode_with_options(*args, **kwargs)
        request = self.app.queue.submit_request([body], **options)
        return Submitted(request, self._reader(request))

    async def asubmit(self, *args: P.args, **kwargs: P.kwargs) -> AsyncSubmitted[R]:
        """Submits one call for asyncio; see submit."""
        body, options = self.encode_with_options(*args, **kwargs)
        request = await self.app.aio_queue.submit_request([body], **options)
        return AsyncSubmitted(request, self._reader(request))

    # A request of many calls.

    def map(self, inputs: Iterable[Any], /, **common: Any) -> Batch[R]:
        """Submits one request with a call for each element, which is the first argument.

        `inputs` may be lazy and very long: its first calls run while later elements are read.
        `common` are the other arguments, the same for all calls. An error of `inputs`, or of an
        element that cannot be encoded, cancels the request.
        """
        return self._submit_all(self._bodies(_elements(inputs), common), self._keys_of_map(common))

    def starmap(self, inputs: Iterable[Iterable[Any]], /, **common: Any) -> Batch[R]:
        """Submits one request with a call for each element, which has the positional arguments."""
        keys = self.keys.of_many(common, None)
        return self._submit_all(map(self._encoder(common), _elements(inputs)), keys)

    async def amap(
        self, inputs: Iterable[Any] | AsyncIterable[Any], /, **common: Any
    ) -> AsyncBatch[R]:
        """Submits one request for asyncio, also from an async iterable; see map."""
        keys = self._keys_of_map(common)
        if isinstance(inputs, AsyncIterable):
            return await self._asubmit_all(_mapped(self._first_encoder(common), inputs), keys)
        return await self._asubmit_all(self._bodies(_elements(inputs), common), keys)

    async def astarmap(
        self, inputs: Iterable[Iterable[Any]] | AsyncIterable[Iterable[Any]], /, **common: Any
    ) -> AsyncBatch[R]:
        """Submits one request for asyncio, also from an async iterable; see starmap."""
        encode, keys = self._encoder(common), self.keys.of_many(common, None)
        if isinstance(inputs, AsyncIterable):
            return await self._asubmit_all(_mapped(encode, inputs), keys)
        return await self._asubmit_all(map(encode, _elements(inputs)), keys)

    # A request of earlier.

    def batch(self, id: str) -> Batch[R]:  # noqa: A002  the word of the API
        """Returns a request of this task that was submitted before, without a call to Redis."""
        request = self.app.queue.request(id)
        return Batch(request, self._reader(request))

    def abatch(self, id: str) -> AsyncBatch[R]:  # noqa: A002  the word of the API
        """Returns the same for asyncio."""
        request = self.app.aio_queue.request(id)
        return AsyncBatch(request, self._reader(request))

    # ---------------------------------------------------------------------------

    def _body(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
        return self.signature.encode(self.app.codec, self.signature.bind(args, kwargs))

    def _keys_of_map(self, common: dict[str, Any]) -> Limits:
        first = self.signature.first
        return self.keys.of_many(common, None if first is None else {first})

    def _first_encoder(self, common: dict[str, Any]) -> Callable[[Any], bytes]:
        """Returns what encodes the call of one element of `map`; checks `common` now."""
        signature, codec, first = self.signature, self.app.codec, self.signature.first
        if first is None:  # it may take any number of arguments
            star = self._encoder(common)
            return lambda element: star((element,))
        bound = signature.bind((None,), common)
        del bound[first]
        shared, count = signature.encode_shared(codec, bound), iter(range(1 << 62))

        def encode(element: Any) -> bytes:
            where = f" of sub-request {next(count)}"
            return signature.encode(codec, {first: element}, where, encoded=shared)

        return encode

    def _encoder(self, common: dict[str, Any]) -> Callable[[Iterable[Any]], bytes]:
        """Returns what encodes the call of one element of `starmap`."""
        signature, codec, count = self.signature, self.app.codec, iter(range(1 << 62))

        def encode(element: Iterable[Any]) -> bytes:
            where = f" of sub-request {next(count)}"
            if isinstance(element, (str, bytes)) or not isinstance(element, Iterable):
                raise ArgumentsRefused(
                    f"task {self.name}: element{where} is {type_of(element)}: starmap needs "
                    "a tuple of arguments"
                )
            return signature.encode(codec, signature.bind((*element,), common, where), where)

        return encode

    def _bodies(self, inputs: Iterable[Any], common: dict[str, Any]) -> Iterator[bytes]:
        return map(self._first_encoder(common), inputs)

    def _submit_all(self, bodies: Iterator[bytes], keys: Limits) -> Batch[R]:
        request = self.app.queue.submit_request(bodies, **self.options_with(keys))
        return Batch(request, self._reader(request))

    async def _asubmit_all(
        self, bodies: Iterable[bytes] | AsyncIterable[bytes], keys: Limits
    ) -> AsyncBatch[R]:
        options = self.options_with(keys)
        request = await self.app.aio_queue.submit_request(bodies, **options)
        return AsyncBatch(request, self._reader(request))

    def _reader(self, request: Request | aio.Request) -> ResultReader[R]:
        return ResultReader(self.signature, self.app.codec, request.id)

    def __repr__(self) -> str:
        return f"<Task {self.name} of app {self.app.name}>"


def _elements(inputs: Iterable[Any]) -> Iterable[Any]:
    """Returns the inputs of a request. Raises ArgumentsRefused for what is no collection."""
    if isinstance(inputs, (str, bytes)) or not isinstance(inputs, Iterable):
        raise ArgumentsRefused(
            f"inputs are {type_of(inputs)}: an iterable is expected, with one element for each call"
        )
    return inputs


async def _mapped(
    encode: Callable[[Any], bytes], inputs: AsyncIterable[Any]
) -> AsyncIterator[bytes]:
    async for element in inputs:
        yield encode(element)
