"""Bytes and errors: how steps are encoded, what a server's error means, whether it is fit."""
