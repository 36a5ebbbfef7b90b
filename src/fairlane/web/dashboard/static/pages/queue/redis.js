// Redis: what its servers report, and what the doctor found.
import { get } from "../../parts/api.js";
import { badge, figure, notice, panel } from "../../parts/bits.js";
import { STEPS } from "../../parts/charts/frame.js";
import { lineChart } from "../../parts/charts/lines.js";
import { button, el, icon, show } from "../../parts/dom.js";
import { ago, bytes, number, percent, span } from "../../parts/format.js";
import { every } from "../../parts/live.js";
import { watch } from "../../parts/watch.js";

const WORDS = { ok: ["good", "check", "fine"], note: ["", "dash", "note"], warn: ["warn", "clock", "can wait"], bad: ["bad", "cross", "act now"] };
const ORDER = ["bad", "warn", "note", "ok"];

export function mount(root, context) {
  const servers = el("div", { class: "grid" });
  const memory = lineChart({ title: "Memory", format: bytes, filled: true, steps: STEPS.bytes });
  const found = el("div");
  const when = el("span", { class: "muted small" });
  context.body.append(servers, panel("Memory", memory.node), panel("What the doctor found", when, found));

  const again = every(60_000, async (signal) => {
    const { at_ms, findings } = await get("v1/doctor", { signal });
    show(when, `Examined ${ago(at_ms)}; it is repeated after a minute. fairlane doctor also examines each request.`);
    show(found, el("ul", { class: "findings" }, [...findings].sort((a, b) => ORDER.indexOf(a.severity) - ORDER.indexOf(b.severity)).map(row)));
  }, { signal: context.signal, onProblem: (problem) => show(found, notice(problem.message)) });
  context.head("Redis", null, button("Examine", again, { icon: "again", kind: "small" }));

  watch(context, (frames, now) => {
    show(servers, [...now.servers.nodes.map((node) => server(node)), now.servers.cluster && cluster(now)]);
    memory.update({ names: ["used"], points: frames.map((one) => [one.at_ms, one.used]) });
  });
}

function row({ check, severity, what, remedy, subject, see }) {
  const [kind, shape, word] = WORDS[severity];
  return el("li", {}, el("span", { class: `badge ${kind}`.trim() }, icon(shape), word),
    el("div", {}, el("b", {}, check), " ", subject && el("code", {}, subject), " ", what, remedy && el("div", { class: "muted" }, "Remedy: ", remedy), see && el("div", { class: "muted small" }, "See ", el("code", {}, see))));
}

function server(node) {
  const title = `${node.program || "Server"} ${node.version}${node.node ? ` at ${node.node}` : ""}`;
  if (node.error) return panel(title, notice(`Nothing is known: ${node.error}`));
  return panel(title, el("dl", { class: "figures" },
    figure("Role", node.role, node.replicas ? `${number(node.replicas)} replicas` : "no replica"),
    figure("Memory", bytes(node.used), node.most ? `${percent(node.used / node.most)} of ${bytes(node.most)}` : `peak ${bytes(node.peak)}, no maxmemory`),
    figure("Keys", number(node.keys)),
    figure("Commands", `${number(node.commands_per_s)}/s`),
    figure("Clients", number(node.clients), `${number(node.blocked)} wait for work`),
    figure("Runs for", span(node.uptime_s * 1000))),
  el("p", { class: "row" }, badge(node.is_persisted ? "done" : "paused", node.is_persisted ? "on disk" : "not safe on disk"), node.persistence));
}

function cluster(now) {
  return panel("Cluster", el("dl", { class: "figures" }, figure("State", now.servers.cluster), figure("Slots served", `${number(now.servers.slots)} of 16,384`),
    figure("Shards of this queue", now.shards.length ? now.shards.join(", ") : "none", now.shards.length ? null : "its lanes are in one slot")));
}
