"""Tests that the command line uses Queue and Request like any other program."""

from __future__ import annotations

from tests.test_house import SRC, imports_of, module_of, sources

PREFIX = "fairlane.operations."
# Operators' tools read or repair what programs need not, so the public API has no method for it.
ALLOWED = {
    "cli.commands.dead": "groups of failures, and whether a requeue is a repeat",
    "cli.commands.change": "changes of one request or of many, all checked before the first",
    "cli.commands.doctor": "diagnosis",
    "cli.commands.flow": "the shared state of a run that is only named",
    "cli.commands.lists": "the reasons why numbers begin again",
    "cli.commands.queues": "the queues of a whole Redis",
    "cli.commands.queue": "a queue's settings as they are stored",
    "cli.commands.schedule": "a definition that is checked before it connects",
    "cli.commands.scripts": "deployment",
    "cli.commands.stacks": "whether a name is that of a worker",
    "cli.commands.stats": "the reset of measurements",
    "cli.commands.status": "holders, retries and Redis's clock",
    "cli.commands.submit": "content_id of lines that are read in blocks",
    "cli.commands.results": "without the fields that a request hides",
    "cli.commands.top": "a look at a queue, for the poller",
    "cli.commands.webhook": "what fairlane serve posts, which no program needs",
    "cli.output": "names like a mistyped one",
    "cli.driver": "a wait for the node of a queue",
    "cli.exit_status": "how many dead sub-requests are kept, and a wait that looks for a worker",
    "cli.progress": "a watch that shows an outage, and the remedy for a queue without a worker",
    "cli.top": "the type of a look",
}


def test_only_named_modules_of_the_command_line_import_operations():
    """Submissions and results go through the public API."""
    users = {
        module_of(path)
        for path in sources(SRC / "cli")
        if any(name.startswith(PREFIX) for name in imports_of(path))
    }
    assert users == set(ALLOWED)
