"""The parts of a run: the name of each, and the module that measures it."""

from __future__ import annotations

# A workload: its questions go to Fairlane and its peers in turn.
BESIDE_PEERS = ("submit", "drain", "latency", "overtaking", "fairness", "footprint", "handlers",
                "processes", "growth", "lanes")  # fmt: skip
ASKED = ("settings",)  # a workload that runs only when --only names it
# A script that writes a page of its own.
ALONE = ("throughput", "tasks", "executor", "flows", "urgent", "memory", "recovery", "primaries",
         "tenants", "fanout", "cancel", "limits", "keys", "ageing", "rates", "schedules",
         "http_api", "dashboard")  # fmt: skip

_FOLDERS = {
    "fairness": ("ageing", "fairness", "keys", "limits", "rates", "tenants"),
    "faults": ("cancel", "primaries", "recovery", "schedules"),
    "harness": ("settings",),
    "memory": ("footprint", "memory"),
    "patterns": ("fanout", "flows"),
    "speed": ("drain", "executor", "growth", "handlers", "processes", "submit", "tasks",
              "throughput"),
    "waits": ("lanes", "latency", "overtaking", "urgent"),
    "web": ("dashboard", "http_api"),
}  # fmt: skip
MODULES = {name: f"bench.{folder}.{name}" for folder, names in _FOLDERS.items() for name in names}
