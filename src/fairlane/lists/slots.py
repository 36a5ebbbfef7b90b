"""Refuses lists that no single script can change."""

from __future__ import annotations

from typing import TYPE_CHECKING

from redis.crc import key_slot

from fairlane.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fairlane.drivers.sync import SyncDriver


def is_one_slot(keys: Sequence[bytes]) -> bool:
    """Returns True if all keys are in one hash slot of a cluster."""
    return len({key_slot(key) for key in keys}) == 1


def check_one_slot(driver: SyncDriver, keys: Sequence[bytes]) -> None:
    """Raises InvalidArgument if the server is a cluster and the keys are in several slots."""
    if not driver.is_cluster or is_one_slot(keys):
        return
    first = keys[0]
    other = next(key for key in keys if key_slot(key) != key_slot(first))
    names = " and ".join(one.decode("utf-8", "replace") for one in (first, other))
    raise InvalidArgument(
        f"lists {names} are in different slots of the cluster: "
        "give all names the same hash tag, such as {orders}:in and {orders}:out"
    )
