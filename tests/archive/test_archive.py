"""Tests that an archive holds each end and each result once, and what it refuses."""

from __future__ import annotations

import errno
import fcntl
import json
import math
import os
import resource
import struct
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyarrow")

from fairlane import archive, settings
from fairlane.archive import Archived, archiver, manifest
from fairlane.archive.rows import PageReader
from fairlane.arrow import stream_ranges
from fairlane.errors import DataLost, InvalidArgument
from fairlane.operations.completion import trim
from tests.archive.kept import check, check_files, ended, read
from tests.spark.worlds import World

if TYPE_CHECKING:
    import redis

    from fairlane.drivers.sync import SyncDriver


@pytest.fixture
def world(driver: SyncDriver) -> World:
    return World(driver)


def counts(done: Archived) -> dict[str, int]:
    """Returns the counts that are not 0."""
    return {name: count for name, count in asdict(done).items() if count}


# ------------------------------------------------------------------ rows


def test_what_ended_is_archived_once(world: World, tmp_path: Path):
    ended(world, 0, 5)
    done = archive.write(tmp_path, redis=world.driver, most=2)
    assert counts(done) == {"batches": 3, "requests": 5, "results": 100, "dead": 10}
    check(tmp_path, 5)
    assert archive.write(tmp_path, redis=world.driver) == Archived()
    ended(world, 5, 7)
    seen: list[int] = []
    archive.write(tmp_path, redis=world.driver, on_round=lambda one: seen.append(one.requests))
    assert seen == [2]
    check(tmp_path, 7)
    position = manifest.read(tmp_path).queues["req"]
    assert (position.requests, position.results, position.missing) == (7, 140, 0)


def test_rows_are_what_the_queue_reports(world: World, tmp_path: Path):
    ended(world, 0, 1)
    archive.write(tmp_path, redis=world.driver)
    results = {one.index: one for one in world.queue.request("r0").results()}
    (ending,) = world.queue.completions("0", follow=False)
    found = read(tmp_path, "results")
    assert len(found) == 20
    for row in found:
        one = results[row["index"]]
        assert (row["request"], row["status"], row["result"]) == ("r0", one.status, one.body)
        assert (row["error"], row["key"], row["attempt"]) == (one.error, None, one.attempt)
        assert (row["worker"], row["ran_ms"], row["priority"]) == (one.worker, one.ran_ms, 0)
        assert row["submitted"].timestamp() == ending.submitted_ms / 1000
        assert (row["queue"], row["date"]) == ("req", f"{row['settled']:%Y-%m-%d}")
    (row,) = read(tmp_path, "requests")
    assert (row["id"], row["limit"], row["total"], row["results"]) == ("r0", 2, 20, 20)
    assert sorted(row["body"] for row in read(tmp_path, "dead")) == [b"11", b"3"]


def test_several_queues_share_an_archive(
    world: World, driver: SyncDriver, tmp_path: Path, redis_client: redis.Redis
):
    others = [World(driver, name) for name in ("shop-a", "shop-b", "other")]
    for at, one in enumerate(others):
        one.submit(f"of-{at}", at + 1)
        one.work_off()
    for name in ("{shop-a b}:completed", b"{shop-\xff}:completed", "{shop-c}:completed"):
        redis_client.set(name, "of another program")
    done = archive.write(tmp_path, ["shop-*", "req", "shop-a"], redis=driver)
    for name in ("{shop-a b}:completed", b"{shop-\xff}:completed", "{shop-c}:completed"):
        redis_client.delete(name)
    assert (done.batches, done.requests, done.results) == (2, 2, 3)
    pairs = {(row["queue"], row["id"]) for row in read(tmp_path, "requests")}
    assert pairs == {("shop-a", "of-0"), ("shop-b", "of-1")}
    assert archive.write(tmp_path, ["other"], redis=driver).requests == 1
    assert set(manifest.read(tmp_path).queues) == {"shop-a", "shop-b", "req", "other"}


def test_a_queue_whose_name_is_a_number_keeps_its_zeros(driver: SyncDriver, tmp_path: Path):
    ended(World(driver, "001"), 0, 1)
    archive.write(tmp_path, ["001"], redis=driver)
    assert {row["queue"] for row in read(tmp_path, "requests")} == {"001"}


def test_without_results_only_the_endings_are_archived(world: World, tmp_path: Path):
    ended(world, 0, 2)
    done = archive.write(tmp_path, redis=world.driver, results=False)
    assert counts(done) == {"batches": 1, "requests": 2}
    assert [row["limit"] for row in read(tmp_path, "requests")] == [2, 2]
    assert read(tmp_path, "results") == []


def test_results_that_have_left_redis_are_counted_as_missing(
    world: World, tmp_path: Path, redis_client: redis.Redis
):
    ended(world, 0, 2)
    redis_client.delete(*redis_client.keys("*:{r0}"))
    done = archive.write(tmp_path, redis=world.driver)
    assert counts(done) == {
        "batches": 1,
        "requests": 2,
        "results": 20,
        "dead": 2,
        "missing": 20,
    }
    found = {row["id"]: (row["limit"], row["results"]) for row in read(tmp_path, "requests")}
    assert found == {"r0": (None, 0), "r1": (2, 20)}


def test_a_later_request_of_an_id_is_not_archived_as_the_earlier_one(
    world: World, tmp_path: Path, redis_client: redis.Redis
):
    """Its results are those of another ending; those of the earlier one are missing."""
    for name, count in (("r0", 70), ("r1", 3)):
        world.submit(name, count)
        world.work_off(dead=range(66))
    for name in ("r0", "r1"):
        redis_client.delete(*redis_client.keys(f"*:{{{name}}}"))
        world.submit(name, 5)
    done = archive.write(tmp_path, redis=world.driver)
    assert (done.requests, done.results, done.dead, done.missing) == (2, 0, 0, 73)


@pytest.mark.parametrize("count", [3, 70])
def test_keys_of_a_later_request_of_an_id_are_not_archived(
    world: World,
    tmp_path: Path,
    redis_client: redis.Redis,
    monkeypatch: pytest.MonkeyPatch,
    count: int,
):
    """Also if the request is replaced between its results and their keys."""
    world.submit("r0", count)
    redis_client.hset("req:{r0}", "keyed", 1)
    world.work_off()
    real = stream_ranges.RowKeys.read

    def read_keys(*given: Any) -> Any:
        for key in redis_client.keys("*:{r0}"):
            redis_client.delete(key)
        world.submit("r0", 3)
        return real(*given)

    monkeypatch.setattr(stream_ranges.RowKeys, "read", read_keys)
    done = archive.write(tmp_path, redis=world.driver)
    assert (done.results, done.missing) == (0, count)


def test_two_lives_of_an_id_in_one_batch_have_counts_of_their_own(
    world: World, tmp_path: Path, redis_client: redis.Redis
):
    for count, limit in ((5, 1), (3, 2)):
        for key in redis_client.keys("*:{r0}"):
            redis_client.delete(key)
        world.submit("r0", count, limit=limit)
        world.work_off()
    done = archive.write(tmp_path, redis=world.driver)
    assert (done.requests, done.results, done.missing) == (2, 3, 5)
    found = [(row["total"], row["limit"], row["results"]) for row in read(tmp_path, "requests")]
    assert sorted(found) == [(3, 2, 3), (5, None, 0)]


def test_each_ending_costs_one_read_of_its_results_and_one_of_its_record(
    world: World, tmp_path: Path, redis_client: redis.Redis
):
    count = 40
    for n in range(count):
        world.submit(f"r{n}", 1)
    world.work_off(dead=[0])
    redis_client.config_resetstat()
    done = archive.write(tmp_path, redis=world.driver)
    assert (done.results, done.dead) == (count, count)
    calls = {name: row["calls"] for name, row in redis_client.info("commandstats").items()}
    # Each request also has a dead letter, with a record; they all have one text of an error.
    assert calls["cmdstat_hmget"] <= 2 * count + 5
    assert calls["cmdstat_xrange"] <= 2 * count + 10
    found = [*read(tmp_path, "dead"), *read(tmp_path, "results")]
    assert {row["error"] for row in found} == {"it is rejected"}


def test_a_large_request_and_one_without_results_are_archived_beside_small_ones(
    world: World, tmp_path: Path
):
    world.submit("large", 150, limit=3)
    world.work_off(dead=range(70))
    world.submit("small", 2, limit=4)
    world.work_off(dead=[1])
    world.submit("none", 2, limit=5)
    world.queue.request("none").cancel()
    done = archive.write(tmp_path, redis=world.driver)
    assert counts(done) == {"batches": 1, "requests": 3, "results": 152, "dead": 71}
    found = {
        row["id"]: (row["limit"], row["results"], row["dead"], row["cancelled"])
        for row in read(tmp_path, "requests")
    }
    assert found == {"large": (3, 150, 70, 0), "small": (4, 2, 1, 0), "none": (5, 0, 0, 2)}


def test_keys_of_rows_are_archived_and_only_keyed_requests_are_asked(
    world: World, tmp_path: Path, redis_client: redis.Redis
):
    count = 70  # of a request that is read in pages, and of one that is not
    for name in ("keyed", "plain", "small"):
        world.submit(name, 3 if name == "small" else count)
        if name != "plain":  # as lib/append.lua keeps them
            packed = b"".join(struct.pack("<HH", at, 2) + b"%02d" % at for at in range(count))
            redis_client.hset(f"error:{{{name}}}", "k0", packed)
            redis_client.hset(f"req:{{{name}}}", "keyed", 1)
        world.work_off()
    redis_client.config_resetstat()
    archive.write(tmp_path, redis=world.driver)
    asked = redis_client.info("commandstats")["cmdstat_hmget"]["calls"]
    found = {(row["request"], row["index"]): row["key"] for row in read(tmp_path, "results")}
    plain = {("plain", at): None for at in range(count)}
    keyed = {("keyed", at): f"{at:02}" for at in range(count)}
    assert found == plain | keyed | {("small", at): f"{at:02}" for at in range(3)}
    # A record of each request, the keys of two, and a record after each page of the large ones
    # and after the keys of the small one.
    assert asked == 3 + 2 + 5


def test_a_log_of_many_dates_needs_few_open_files(
    world: World, tmp_path: Path, redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch
):
    """A page of a log may have more dates than a program may have open files."""
    ended(world, 0, 1)
    log = "{req}:completed"
    entries: Any = redis_client.xrange(log)
    fields: dict[Any, Any] = entries[0][1]
    redis_client.delete(log)
    days, day_ms = 2 * archiver.WRITERS + 10, 86_400_000
    for day in range(days):
        redis_client.xadd(log, fields | {b"id": b"x%d" % day}, id=f"{1 + day * day_ms}-0")
    monkeypatch.setattr(archiver, "_ROWS", 5)
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    open_now = len([*Path("/proc/self/fd").iterdir()])
    resource.setrlimit(resource.RLIMIT_NOFILE, (open_now + archiver.WRITERS + 50, before[1]))
    try:
        assert archive.write(tmp_path, redis=world.driver).requests == days
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert len(manifest.read(tmp_path).files) == days
    check_files(tmp_path)
    monkeypatch.setattr(stream_ranges, "PAGE", 30)
    done = archive.write(tmp_path / "pages", redis=world.driver)
    assert (done.requests, done.batches) == (days, 2)


# ------------------------------------------------------------------ what is refused


def test_lost_endings_are_an_error_of_their_queue_only(
    world: World, driver: SyncDriver, tmp_path: Path, redis_client: redis.Redis
):
    other = World(driver, "other")
    ended(world, 0, 1)
    archive.write(tmp_path, redis=driver)
    ended(world, 1, 3)
    for name in ("o", "p"):
        other.submit(name, 2)
        other.work_off()
    redis_client.xtrim("{req}:completed", maxlen=1, approximate=False)
    with pytest.raises(DataLost, match="has lost entries of queue req that were not read yet"):
        archive.write(tmp_path, ["req", "other"], redis=driver, most=1)
    assert manifest.read(tmp_path).queues["other"].requests == 2
    check_files(tmp_path)
    assert archive.write(tmp_path, redis=driver, skip_lost=True).requests == 1


@pytest.mark.parametrize("was_used", [False, True])
def test_what_was_lost_before_the_first_batch_is_an_error(
    world: World, tmp_path: Path, redis_client: redis.Redis, was_used: bool,
    monkeypatch: pytest.MonkeyPatch,
):  # fmt: skip
    """Also if the first batch was not committed. What was lost before the archive began is not."""
    if was_used:
        ended(world, 0, 3)
        redis_client.xtrim("{req}:completed", maxlen=1, approximate=False)

    def stops(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(archiver, "PageReader", stops)
        with suppress(KeyboardInterrupt):
            assert archive.write(tmp_path, redis=world.driver) == Archived()
    for n in (3, 4, 5):
        ended(world, n, n + 1)
    redis_client.xtrim("{req}:completed", maxlen=2, approximate=False)
    with pytest.raises(DataLost, match="the log was trimmed before anything of it was archived"):
        archive.write(tmp_path, redis=world.driver)
    assert archive.write(tmp_path, redis=world.driver, skip_lost=True).requests == 2
    assert archive.write(tmp_path / "new", redis=world.driver).requests == 2


def test_what_leaves_the_log_while_an_archive_begins_is_no_loss(
    world: World, tmp_path: Path, redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch
):
    """The first position is noted before the first read, and the log may be trimmed between."""
    for n in range(3):
        ended(world, n, n + 1)
    real = manifest.Archive.commit
    trimmed: list[Any] = []

    def commits(*given: Any, **named: Any) -> None:
        real(*given, **named)
        if not trimmed:
            trimmed.append(redis_client.xtrim("{req}:completed", maxlen=2, approximate=False))

    monkeypatch.setattr(manifest.Archive, "commit", commits)
    assert archive.write(tmp_path, redis=world.driver).requests == 2
    assert trimmed == [1]
    assert archive.write(tmp_path, redis=world.driver) == Archived()


def test_a_queue_with_a_loss_does_not_end_others_that_follow(
    world: World, driver: SyncDriver, tmp_path: Path, redis_client: redis.Redis,
    caplog: pytest.LogCaptureFixture,
):  # fmt: skip
    """Its error is logged once, and raised at the end."""
    other = World(driver, "other")
    ended(world, 0, 1)
    archive.write(tmp_path, redis=driver)
    ended(world, 1, 3)
    redis_client.xtrim("{req}:completed", maxlen=1, approximate=False)
    rounds: list[float] = []

    def wait(given_s: float) -> None:
        rounds.append(given_s)
        if len(rounds) == 3:
            raise KeyboardInterrupt
        other.submit(f"o{len(rounds)}", 2)
        other.work_off()

    with pytest.raises(DataLost, match="has lost entries of queue req") as lost:
        archive.write(tmp_path, ["req", "other"], redis=driver, follow=True, wait=wait)
    assert [record.getMessage() for record in caplog.records] == [str(lost.value)]
    assert manifest.read(tmp_path).queues["other"].requests == 2


@pytest.mark.parametrize("is_first", [False, True])
def test_a_skipped_loss_that_left_nothing_is_no_loss_later(
    world: World, tmp_path: Path, redis_client: redis.Redis, is_first: bool
):
    if is_first:
        archive.write(tmp_path, redis=world.driver)
    ended(world, 0, 2)
    if not is_first:
        archive.write(tmp_path, redis=world.driver, most=1)
        ended(world, 2, 3)
    redis_client.xtrim("{req}:completed", maxlen=0, approximate=False)
    with pytest.raises(DataLost):
        archive.write(tmp_path, redis=world.driver)
    assert archive.write(tmp_path, redis=world.driver, skip_lost=True) == Archived()
    ended(world, 3, 4)
    assert archive.write(tmp_path, redis=world.driver).requests == 1


def test_what_was_read_before_a_loss_is_archived(
    world: World, tmp_path: Path, redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch
):
    ended(world, 0, 6)
    monkeypatch.setattr(stream_ranges, "PAGE", 2)

    def cuts(driver: SyncDriver, entries: Any, **reveals: Any) -> Any:
        redis_client.xtrim("{req}:completed", maxlen=1, approximate=False)
        return PageReader(driver, entries, **reveals)

    monkeypatch.setattr(archiver, "PageReader", cuts)
    with pytest.raises(DataLost, match="set skip_lost"):
        archive.write(tmp_path, redis=world.driver)
    check(tmp_path, 2)
    assert archive.write(tmp_path, redis=world.driver, skip_lost=True).requests == 1


def test_an_archive_holds_the_log_back(
    world: World, tmp_path: Path, redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch
):
    """The leader trims no ending that the archive has not read; after a read it may."""
    monkeypatch.setattr(settings, "LOG_ENTRIES", 1)
    redis_client.config_set("stream-node-max-entries", 1)
    try:
        archive.write(tmp_path, redis=world.driver)
        ended(world, 0, 3)
        assert world.driver.run(trim("req")) == 0
        assert archive.write(tmp_path, redis=world.driver).requests == 3
        assert world.driver.run(trim("req")) == 2
    finally:
        redis_client.config_set("stream-node-max-entries", 100)
    ended(world, 3, 4)
    assert archive.write(tmp_path, redis=world.driver).requests == 1


def test_a_second_archiver_is_refused(world: World, tmp_path: Path):
    refused: list[str] = []

    def second(_: Archived) -> None:
        with pytest.raises(InvalidArgument) as error:
            archive.write(tmp_path, redis=world.driver)
        refused.append(str(error.value))

    ended(world, 0, 1)
    archive.write(tmp_path, redis=world.driver, on_round=second)
    assert refused == [
        f"{tmp_path} is written by another archiver: stop that one, or name another folder"
    ]
    assert archive.write(tmp_path, redis=world.driver) == Archived()


def test_a_file_system_without_locks_is_not_blamed_on_another_archiver(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def fails(*_: Any) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", fails)
    with pytest.raises(InvalidArgument, match=r"lock cannot be locked: No locks available\. Name"):
        archive.write(tmp_path, redis=world.driver)


def test_what_is_not_valid_is_refused_before_anything_is_written(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    out = tmp_path / "new"
    for given, sentence in (
        ({"queues": ["a b"]}, "queue 'a b' is not valid"),
        ({"queues": ["a*", "{b}*"]}, "is not valid: use 1 to 128 letters"),
        ({"queues": "req"}, "queues 'req' is a str"),
        ({"queues": ["a", "a"]}, "queue a is named twice"),
        ({"most": 0}, "most 0 is not valid"),
        ({"keep_days": 0.5}, "keep_days 0.5 is not valid"),
        ({"keep_days": math.inf}, "keep_days inf is not valid"),
        ({"every_s": 0}, "every_s 0 is not valid"),
        ({"every_s": math.nan}, "every_s nan is not valid"),
        ({"every_s": 1e12}, "is not valid: an archive is written at least once a day"),
    ):
        with pytest.raises(InvalidArgument, match=sentence):
            archive.write(out, redis=world.driver, **given)
    assert not out.exists()
    with pytest.raises(InvalidArgument, match="table 'result' is not valid"):
        archive.files(out, "result")
    with pytest.raises(InvalidArgument, match="is no archive of a queue"):
        archive.files(out, "results")
    out.write_bytes(b"")
    with pytest.raises(InvalidArgument, match="new cannot be written: File exists"):
        archive.write(out, redis=world.driver)
    monkeypatch.setattr(archive, "find_spec", lambda _: None)
    with pytest.raises(InvalidArgument, match="needs the extra archive"):
        archive.write(tmp_path, redis=world.driver)


def _doubled(text: bytes) -> bytes:
    found: dict[str, Any] = json.loads(text)
    return json.dumps(found | {"files": found["files"] * 2}).encode()


def _retired(text: bytes) -> bytes:
    found: dict[str, Any] = json.loads(text)
    return json.dumps(found | {"retired": {found["files"][0]["path"]: 1}}).encode()


@pytest.mark.parametrize(
    ("how", "sentence"),
    [
        (lambda text: text[:-20], "manifest.json is torn or no manifest"),
        (lambda _: b"", "manifest.json is torn or no manifest"),
        (lambda text: text.replace(b"dead/", b"../d/"), r"is wrong about \.\./d/queue=req/.*"),
        (lambda text: text.replace(b'"date": "2', b'"date": "3'), "is wrong about .*parquet: "),
        (lambda text: text.replace(b'"generation": ', b'"generation": -'), "about generation -3"),
        (lambda text: text.replace(b'"generation": 3', b'"generation": 2'), "/00000003.parquet: "),
        (lambda text: text.replace(b'"req": {', b'"raq": {'), "is wrong about queue req: "),
        (
            lambda text: text.replace(b'"first": "', b'"first": "9999999'),
            "is wrong about .*parquet",
        ),
        (_doubled, "is wrong about .*parquet: restore it from a copy"),
        (_retired, "is wrong about .*parquet: restore it from a copy"),
        (lambda text: text.replace(b'"place": "', b'"place": "x'), "is torn or no manifest"),
        (lambda _: b"[" * 100_000, "manifest.json is torn or no manifest"),
        (lambda text: text.replace(b"archive 1", b"archive 2"), "is of another version"),
        (lambda _: b'{"format": "fairlane archive 9"}', "is of another version"),
        (None, "manifest.json is missing: restore it from a copy"),
    ],
)
def test_a_manifest_that_cannot_be_right_is_refused(
    world: World, tmp_path: Path, how: Any, sentence: str
):
    """No file is removed then, because all of them would be unlisted."""
    ended(world, 0, 2)
    archive.write(tmp_path, redis=world.driver, most=1)
    files = sorted(tmp_path.rglob("*.parquet"))
    place = tmp_path / manifest.NAME
    good = place.read_bytes()
    if how is None:
        place.unlink()
    else:
        place.write_bytes(how(good))
    with pytest.raises(InvalidArgument, match=sentence):
        archive.write(tmp_path, redis=world.driver)
    assert sorted(tmp_path.rglob("*.parquet")) == files
    place.write_bytes(good)
    check(tmp_path, 2)


def test_a_manifest_that_is_too_old_is_refused(world: World, tmp_path: Path):
    ended(world, 0, 3)
    place = tmp_path / manifest.NAME
    archive.write(tmp_path, redis=world.driver, most=3)
    old = place.read_bytes()
    ended(world, 3, 5)
    archive.write(tmp_path, redis=world.driver, most=1)
    good = place.read_bytes()
    place.write_bytes(old)
    with pytest.raises(InvalidArgument, match=r"is older than .*0000004\.parquet: restore"):
        archive.write(tmp_path, redis=world.driver)
    place.write_bytes(good)
    check(tmp_path, 5)


def test_a_manifest_of_one_commit_ago_costs_no_file(
    world: World, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    """Its files look as if a commit had not been finished."""
    place = tmp_path / manifest.NAME
    ended(world, 0, 2)
    archive.write(tmp_path, redis=world.driver)
    old, count = place.read_bytes(), len(manifest.read(tmp_path).files)
    ended(world, 2, 3)
    archive.write(tmp_path, redis=world.driver)
    good = place.read_bytes()
    for _ in range(2):
        place.write_bytes(old)
        assert archive.write(tmp_path, redis=world.driver).requests == 1
        check(tmp_path, 3)
    assert "delete them, unless the manifest is an old one" in caplog.records[0].getMessage()
    folders = [*(tmp_path / manifest.ASIDE).iterdir()]
    assert [len([*one.rglob("*.parquet")]) for one in folders] == [3, 3]
    first = next(one for one in folders if str(one) in caplog.records[0].getMessage())
    place.write_bytes(good)
    for file in manifest.read(tmp_path).files[count:]:
        (first / file.path).replace(tmp_path / file.path)
    check(tmp_path, 3)
