"""Tests submission."""
