"""Encodes steps as bytes, explains a server's errors, and checks whether the server is fit."""
