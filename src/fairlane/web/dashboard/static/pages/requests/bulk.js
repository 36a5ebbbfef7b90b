// Changes of many requests: of those that were chosen, or of all that fit the filter. They are counted first.
import { post } from "../../parts/api.js";
import { menu } from "../../parts/bits.js";
import { button, el, show } from "../../parts/dom.js";
import { counted, number } from "../../parts/format.js";
import { ask, toast } from "../../parts/messages.js";
import { CHANGES } from "../request/actions.js";

const ACTIONS = {
  pause: { title: "Pause", verb: "will be paused: nothing more of them starts until they are resumed" },
  resume: { title: "Resume", verb: "will go on" },
  cancel: { title: "Cancel", verb: "will be cancelled: what has not ended will not run. This cannot be undone", danger: true },
  requeue_dead: { title: "Requeue dead", verb: "have dead sub-requests, which will run again with all attempts" },
  drop_dead: { title: "Drop dead", verb: "have dead sub-requests, which will be deleted with their bodies. Counts and results stay. This cannot be undone", danger: true },
  delete: { title: "Delete", verb: "have ended, and will be deleted with their results. This cannot be undone", danger: true },
};

/** Returns {node, show(ids)}: a bar that is there while rows are chosen. */
export function bulkBar({ context, chosen, filter, after }) {
  const node = el("div", { class: "bulk", role: "region", "aria-label": "Changes of the chosen requests", hidden: true });
  let ids = [];
  let all = false;

  const choice = () => {
    if (!all) return { ids };
    const { query } = filter();
    return Object.keys(query).length ? { filter: query } : { everything: true };
  };
  async function run(action, { title, verb, danger = false, fields = [], body = () => ({}) }) {
    const wanted = choice();
    let counted_ = 0;
    const effect = post("v1/bulk", { action, ...wanted, ...(fields.length ? await probe(fields, body) : {}), dry_run: true }).then((report) => {
      counted_ = report.matched;
      if (!report.matched) return { node: "None of them can be changed so.", empty: true };
      return { node: [el("b", {}, counted(report.matched, "request")), report.dead > 0 && ` (${counted(report.dead, "dead sub-request")})`, ` ${verb}.`, list(report)] };
    });
    const report = await ask({
      title, effect, fields, danger, action: title,
      act: (values) => post("v1/bulk", { action, ...wanted, ...body(values), expected: counted_ }),
    });
    if (!report) return;
    toast(said(report), { bad: report.failed > 0 });
    chosen.unpick();
    after();
  }
  const simple = (name) => () => run(name, { ...ACTIONS[name], title: `${ACTIONS[name].title} ${all ? "all that fit" : `the ${number(ids.length)} chosen`}` });
  const set = (name) => () => run("set", { title: CHANGES[name].title, verb: `will be changed. ${CHANGES[name].effect.replace(/\.$/, "")}`, fields: [CHANGES[name].field()], body: CHANGES[name].body });

  function draw() {
    node.hidden = ids.length === 0;
    if (node.hidden) return;
    const { only } = filter();
    show(node,
      el("span", { class: "bulk-count" }, all ? el("b", {}, "All that fit the filter") : [el("b", {}, counted(ids.length, "request")), " chosen"]),
      !only && button(all ? "Only the chosen" : "Choose all that fit", () => { all = !all; draw(); }, { kind: "plain small" }),
      el("span", { class: "bulk-tools" },
        button("Pause", simple("pause"), { kind: "small", icon: "pause" }), button("Resume", simple("resume"), { kind: "small", icon: "play" }),
        menu("Change", [["Limit …", set("limit")], ["Priority …", set("priority")], ["Rate …", set("rate")], ["Deadline …", set("deadline")]], "small"),
        menu("Dead", [["Requeue …", simple("requeue_dead")], ["Drop …", simple("drop_dead")]], "small"),
        button("Cancel", simple("cancel"), { kind: "small danger", icon: "cross" }),
        button("Delete", simple("delete"), { kind: "small danger", icon: "trash" }),
        button("", () => chosen.unpick(), { kind: "plain small", icon: "close", label: "Choose none" })));
  }
  return {
    node,
    show(chosenIds) {
      if (!chosenIds.length) all = false;
      ids = chosenIds;
      draw();
    },
  };
}

/** Returns values with which a change can be counted before the person has entered one: any that is valid. */
async function probe(fields, body) {
  const example = { limit: 1, priority: 50, rate: "1/s", deadline: "1d" };
  return body(Object.fromEntries(fields.map(({ name }) => [name, example[name]])));
}

function list(report) {
  const some = report.ids.slice(0, 5);
  return el("ul", { class: "small mono effect-list" }, some.map((id) => el("li", {}, id)), report.matched > some.length && el("li", { class: "muted" }, `and ${number(report.matched - some.length)} more`));
}

function said(report) {
  const [first] = Object.values(report.errors ?? {});
  const parts = [(report.changed > 0 || !(report.ended || report.failed)) && `${counted(report.changed, "request")} changed`, report.dead > 0 && `with ${counted(report.dead, "dead sub-request")}`, report.ended && `${number(report.ended)} had ended`, report.failed && `${counted(report.failed, "request")} could not be changed: ${first}`];
  return `${parts.filter(Boolean).join(", ")}.`;
}
