// Jobs on Spark, as far as the server can know them: the reports that they left in a topic, and commands to begin with.

import * as api from "../core/api.js";
import { clear, h } from "../core/dom.js";
import { textOf } from "../core/exact_json.js";
import * as format from "../core/format.js";
import { link } from "../core/router.js";
import { badge } from "../parts/badge.js";
import { command } from "../parts/command.js";
import { openDialog } from "../parts/dialog.js";
import { empty } from "../parts/empty.js";
import { payload } from "../parts/payload.js";
import { Table } from "../parts/table.js";

const TOPIC = "pipeline.reports";
const REPORTS_MAX = 200;
const REFRESH_MS = 5000;
const DONE = 0;
const RESULTS = { 0: ["done", "good"], 1: ["failed", "bad"], 2: ["findings", "warn"], 3: ["data loss", "bad"], 4: ["conflict", "warn"] };

const RECIPES = [
  ["Copy topics into a lake, a Delta table", "topics pipeline archive ./lake --topic orders --seal"],
  ["Ask the lake", `topics pipeline sql "SELECT tag, count(*) FROM orders GROUP BY tag" --input orders=lake:./lake`],
  ["Check every frame of the server's files", "topics pipeline verify"],
  ["Play a topic again, ten times as fast", "topics pipeline replay orders --to orders-again --speed 10x"],
];

export function open(view) {
  const topic = view.query.get("topic") || TOPIC;
  view.head("Pipeline", {
    about: ["Jobs run on Spark, outside of this server. It knows the reports that they leave in the topic ", h("a", { href: link("/topics/:topic", { topic }) }, topic), " and nothing else."],
  });
  const lakes = h("section.card");
  const table = reportTable(topic);
  const place = h("div.stack-wide");
  const recipes = h("section.card", [
    h("h2", "Run a job"),
    h("p.muted", ["Add ", h("code.name", `--report-to ${topic}`), " to any of them, and its result appears here. The server address is taken from TOPICS_URL."]),
    h("div.recipes", RECIPES.map(([text, line]) => h("div", [h("h3", text), command(line)]))),
  ]);
  view.root.append(place, recipes);
  view.list = table;

  view.every(REFRESH_MS, async () => {
    const reports = await readReports(topic, view.signal);
    clear(lakes, h("h2", "Lakes"), lakeList(reports));
    table.setRows(reports);
    if (reports.length === 0) clear(place, empty("No reports yet", `No job has left a report in ${topic}. Jobs that ran without --report-to are not known here.`));
    else if (table.element.parentNode === null) clear(place, lakes, h("section.card", [h("h2", "Last jobs"), table.element]));
  });
}

/** The newest reports first. A topic that does not exist has none. */
async function readReports(topic, signal) {
  let state;
  try {
    state = await api.get(api.path`/v0/topics/${topic}`, { query: { touch: false }, signal });
  } catch (error) {
    if (error.code === "topic_not_found") return [];
    throw error;
  }
  const page = await api.post(api.path`/v0/topics/${topic}/diff`, { from_seq: Math.max(state.head_seq - REPORTS_MAX, 0), limit: REPORTS_MAX }, { signal });
  return page.records.filter((record) => typeof record.data?.job === "string").reverse().map((record) => ({ ...record.data, seq: record.$seq, at: record.$ts }));
}

function result(report) {
  const [text, tone] = RESULTS[report.exit_code] ?? [`exit code ${report.exit_code}`, "bad"];
  return badge(text, tone, report.error ?? null);
}

function given(report) {
  return Object.entries(report.options ?? {}).map(([name, value]) => `${name}=${value}`).join("  ");
}

function reportTable(topic) {
  return new Table({
    label: "Last jobs",
    class: "fits",
    rowsMax: 10,
    rowKey: (row) => row.seq,
    onOpen: (row) => openReport(row, topic),
    columns: [
      { name: "job", label: "Job", width: "112px", narrowWidth: "minmax(80px, 1fr)", cell: (row) => h("button.link-button", { type: "button", onclick: () => openReport(row, topic) }, format.visible(row.job)) },
      { name: "result", label: "Result", width: "100px", cell: result },
      { name: "ended", label: "Ended", width: "104px", narrowWidth: "80px", cell: (row) => h("span", { title: format.time(row.at) }, format.age(row.at)) },
      { name: "took", label: "Took", width: "80px", align: "right", hideNarrow: true, cell: (row) => (typeof row.seconds === "number" ? format.span(row.seconds * 1000) : "–") },
      { name: "records", label: "Records", width: "104px", align: "right", hideNarrow: true, cell: (row) => format.count(row.records) },
      { name: "options", label: "Options", width: "minmax(140px, 3fr)", hideNarrow: true, cell: (row) => h("code.isolate", format.visible(given(row) || "–")) },
    ],
  });
}

/** The lakes that reports name, each with its last job. */
function lakeList(reports) {
  const lastByLake = new Map();
  for (const report of reports) {
    const lake = report.options?.lake;
    if (typeof lake === "string" && !lastByLake.has(lake)) lastByLake.set(lake, report);
  }
  if (lastByLake.size === 0) return h("p.muted", "No report names a lake. The archive job makes one.");
  const archived = (lake) => reports.filter((report) => report.options?.lake === lake && report.job === "archive" && report.exit_code === DONE).reduce((sum, report) => sum + (report.records ?? 0), 0);
  return h("dl.totals", [...lastByLake].map(([lake, last]) => h("div", [h("dt", h("code.isolate", format.visible(lake))), h("dd", [`${format.visible(last.job)} ${format.age(last.at)} `, result(last), ` · ${format.count(archived(lake))} records archived in these reports`])])));
}

function openReport(report, topic) {
  const { seq, at, ...members } = report;
  openDialog({
    title: `${report.job}, ${format.age(at)}`,
    isWide: true,
    body: h("div.stack", [
      h("p", [result(report), report.error ? ` ${format.visible(report.error)}` : ""]),
      payload(textOf(members), members),
      h("p.muted.small", ["Record ", h("a", { href: link("/topics/:topic", { topic }, { seq }) }, format.count(seq)), ` of ${topic}`]),
    ]),
    actions: [{ label: "Close" }],
  });
}
