"""Helpers for tests of your own tasks: run them in the test's process, or without any Redis."""

from __future__ import annotations

from fairlane.testing.eager import eager
from fairlane.testing.run import run_tasks

__all__ = ["eager", "run_tasks"]
