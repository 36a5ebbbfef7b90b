"""What the streams of a session report, as the metrics of the project: lag, rows, micro-batch."""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.streaming.listener import StreamingQueryListener

from fairlane.metrics import STREAM_BATCH, STREAM_LAG, STREAM_ROWS

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import QueryProgressEvent


@dataclass(frozen=True, slots=True)
class StreamState:
    """The progress of one query. `lag` is None for a query that reads no stream of Fairlane."""

    rows: int  # that it has read since this listener was added
    batch: int
    txn: str  # of that micro-batch, if the query writes to a request
    lag: int | None


class StreamMetrics(StreamingQueryListener):
    """Listens to the streams of a session: `spark.streams.addListener(StreamMetrics())`.

    `states` has the state of each running query by its name, or by its id if it has no name.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._states: dict[str, tuple[str, StreamState]] = {}

    @property
    def states(self) -> dict[str, StreamState]:
        """Returns the states now."""
        with self._lock:
            return dict(self._states.values())

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802  Spark's name
        """Does nothing: the first progress follows."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802  Spark's name
        """Takes over the counts of a micro-batch."""
        progress = event.progress
        query = str(progress.id)
        lags = [lag for one in progress.sources if (lag := _lag(one.latestOffset)) is not None]
        with self._lock:
            before = self._states.get(query)
            rows = progress.numInputRows + (before[1].rows if before else 0)
            txn = f"{query}:{progress.batchId}"
            state = StreamState(rows, progress.batchId, txn, sum(lags) if lags else None)
            self._states[query] = (progress.name or query, state)

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802  Spark's name
        """Forgets the query."""
        with self._lock:
            self._states.pop(str(event.id), None)

    def text(self) -> str:
        """Returns the metrics as Prometheus reads them."""
        lines = []
        for metric, name in ((STREAM_LAG, "lag"), (STREAM_ROWS, "rows"), (STREAM_BATCH, "batch")):
            lines += [f"# HELP {metric.name} {metric.help}", f"# TYPE {metric.name} {metric.kind}"]
            for query, state in sorted(self.states.items()):
                if (value := getattr(state, name)) is not None:
                    lines.append(
                        f"{metric.name}{{query={json.dumps(query, ensure_ascii=False)}}} {value}"
                    )
        return "\n".join(lines) + "\n"


def _lag(offset: Any) -> int | None:
    """Returns the lag in the offset that a stream of Fairlane reports; None for another stream."""
    try:
        found = json.loads(offset)["lag"]
    except (TypeError, ValueError, LookupError):
        return None
    return found if isinstance(found, int) else None
