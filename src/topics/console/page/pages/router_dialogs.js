// One router in a dialog: what it copies and how far it is; to make one, and to remove one.

import * as api from "../core/api.js";
import { clear, h } from "../core/dom.js";
import * as format from "../core/format.js";
import { whyNot } from "../core/session.js";
import { labelled } from "../parts/button.js";
import { confirmTyped, openDialog } from "../parts/dialog.js";
import { loading } from "../parts/empty.js";
import { endLink } from "../parts/end_link.js";
import { toast } from "../parts/toast.js";

export function openRouter(view, name) {
  const body = h("div", loading());
  const dialog = openDialog({
    title: name,
    body,
    actions: [{ label: "Remove this router…", kind: "danger", run: () => removeRouter(name) }, { label: "Close" }],
  });
  const remove = dialog.querySelector("button.danger");
  const reason = whyNot("delete");
  const allow = () => {
    remove.disabled = reason !== null;
    remove.title = reason ?? "";
  };
  allow();
  dialog.addEventListener("settled", allow);
  body.addEventListener("click", (event) => event.target.closest("a") && dialog.close());
  view.load(body, async () => {
    const router = await api.get(api.path`/v0/routers/${name}`, { signal: view.signal });
    clear(body, h("dl.totals", rowsOf(router).map(([label, value]) => h("div", [h("dt", label), h("dd", value)]))));
  });
}

function rowsOf(router) {
  const rows = [
    ["From", endLink(router.source)],
    ["To", endLink(router.dest)],
    ["Copies", filterText(router.filter)],
    ["Guarantee", router.guarantee === "exactly_once" ? "exactly once" : "at least once"],
    ["Copies keep", [router.preserve_node ? "the node" : null, router.preserve_tag ? "the tag" : null].filter(Boolean).join(" and ") || "neither node nor tag"],
    ["Copied, trimmed or skipped", format.count(router.forwarded_total)],
    ["Lag", router.lag === null ? "not known" : format.count(router.lag)],
  ];
  if (router.lost_total !== undefined) rows.push(["Lost before they were copied", format.count(router.lost_total)]);
  if (router.allow_cycle) rows.push(["Cycle", "may close one"]);
  if (router.retry) rows.push(["Trouble", `It failed ${format.plural(router.retry.failures, "time")} in a row; the next try is in ${format.span(router.retry.retry_in_ms)}`]);
  return rows;
}

function filterText(filter) {
  if (filter === null) return "every record";
  const [, operator, text] = filter;
  return h("span", [operator === "Glob" ? "records with a tag like " : "records with the tag ", h("code.name", format.visible(text))]);
}

function removeRouter(name) {
  confirmTyped({
    title: "Remove the router",
    text: "It copies nothing more. Records that it has copied stay where they are. A router that is made again begins with new records.",
    name,
    action: "Remove the router",
    run: async () => {
      await api.remove(api.path`/v0/routers/${name}`);
      toast(`The router ${name} is removed.`);
    },
  });
}

export function openCreateRouter() {
  const field = (placeholder) => h("input.field", { type: "text", autocomplete: "off", spellcheck: "false", placeholder });
  const [name, source, dest, filter] = [field("orders-acme"), field("orders"), field("orders.acme"), field("acme:*")];
  const guarantee = h("select.field", [h("option", { value: "at_least_once" }, "at least once"), h("option", { value: "exactly_once" }, "exactly once: each copy has a key")]);
  const body = h("div.stack", [
    labelled("Name", name, "Letters, digits and . _ : > -"),
    h("div.pair", [labelled("Source", source, "A topic, or stream:STREAM/TOPIC"), labelled("Dest", dest, "It is made if it is missing")]),
    labelled("Only records with this tag", filter, "A whole tag, or the beginning of one with * after it. Empty: every record."),
    labelled("Guarantee", guarantee),
  ]);
  async function create() {
    const wanted = name.value.trim();
    const taken = await api.get(api.path`/v0/routers/${wanted}`).catch((error) => {
      if (error.code === "router_not_found") return null;
      throw error;
    });
    if (taken !== null) throw new api.ApiError(409, "exists", `The router ${wanted} is there already. Choose another name.`);
    const asked = { source: source.value.trim(), dest: dest.value.trim(), guarantee: guarantee.value };
    if (filter.value.trim()) asked.filter = filter.value.trim();
    if (guarantee.value === "at_least_once") delete asked.guarantee;
    await api.put(api.path`/v0/routers/${wanted}`, asked);
    toast(`The router ${wanted} copies new records of ${asked.source} from now on.`);
  }
  openDialog({ title: "New router", body, actions: [{ label: "Cancel" }, { label: "Create", kind: "primary", run: create }] });
  name.focus();
}
