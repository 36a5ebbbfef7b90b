"""OpenTelemetry: spans around submissions, calls of handlers, and what programs take."""
