"""Tests the input of rq-submit."""
