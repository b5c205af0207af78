"use strict";
// Keeps the list of runs, or the page of one run, up to date.

const EVERY = 2000; // milliseconds between two questions, at least
const OPTIONS = {responsive: true, displaylogo: false, modeBarButtonsToRemove: ["lasso2d", "select2d", "autoScale2d"]};
const byId = name => document.getElementById(name);

function element(tag, text, attributes = {}) {
  const made = Object.assign(document.createElement(tag), attributes);
  made.textContent = text;
  return made;
}

const inPath = name => name.split("/").map(encodeURIComponent).join("/");
const count = number => number.toLocaleString("en-US");

async function ask(address) {
  const answer = await fetch(address).catch(() => { throw new Error("no answer from coterie live; is it running?"); });
  const found = await answer.json().catch(() => ({error: answer.statusText}));
  if (found.error) throw new Error(found.error);
  return found;
}

function duration(seconds) {
  const whole = Math.round(seconds), hours = Math.floor(whole / 3600), minutes = Math.floor(whole / 60) % 60;
  if (hours) return `${hours} h ${minutes} min`;
  return minutes ? `${minutes} min ${whole % 60} s` : `${whole} s`;
}

// The list ---------------------------------------------------------------------------------------------

function row(run) {
  const made = document.createElement("tr"), name = document.createElement("td");
  name.append(element("a", run.name, {href: `/run/${inPath(run.name)}`}));
  const state = document.createElement("td");
  state.append(element("span", run.state, {className: `state ${run.state}`}));
  const score = run.score === null ? "–" : run.score.toFixed(2);
  const rest = [run.experiment, run.seed, count(run.steps), score, run.date.slice(0, 16).replace("T", " "), run.tags.join(", ")];
  made.append(name, state, ...rest.map(text => element("td", text)));
  return made;
}

function drawList(runs) {
  const words = byId("search").value.toLowerCase().split(/\s+/);
  const shown = runs.filter(run => {
    const text = [run.name, run.experiment, run.state, ...run.tags].join(" ").toLowerCase();
    return !run.archived && words.every(word => text.includes(word));
  });
  const table = document.createElement("table"), head = document.createElement("tr");
  table.className = "text-2 text-3 text-8";
  head.append(...["run", "state", "experiment", "seed", "steps", "score", "started", "tags"].map(name => element("th", name)));
  table.append(head, ...shown.map(row));
  const none = runs.length ? "No run matches." : "No runs yet: coterie train EXPERIMENT --out runs/NAME";
  byId("runs").replaceChildren(shown.length ? table : element("p", none));
}

let listed = [];

async function updateList() {
  listed = await ask("/api/runs");
  drawList(listed);
}

// One run ----------------------------------------------------------------------------------------------

let version = "";

function drawHead(name, run) {
  const head = byId("head"), rate = run.seconds > 0 ? run.steps / run.seconds : 0;
  const words = [`${count(run.steps)} of ${count(run.total_steps)} steps`];
  if (run.seconds) words.push(duration(run.seconds));
  if (run.state === "running" && rate && run.steps < run.total_steps) {
    words.push(`about ${duration((run.total_steps - run.steps) / rate)} left`);
  }
  head.replaceChildren(element("span", run.state, {className: `state ${run.state}`}), ` ${words.join(" · ")}`);
  document.querySelector(".bar > div").style.width = `${Math.min(100, 100 * run.steps / run.total_steps)}%`;
  document.title = `${run.state}: ${document.querySelector("h1").textContent}`;
  const links = Object.entries(run.files).map(
    ([what, file]) => element("a", what, {href: `/file/${inPath(name ? `${name}/${file}` : file)}`}));
  byId("links").replaceChildren(...links);
}

function drawCharts(charts) {
  const place = byId("charts");
  while (place.children.length > charts.length) place.lastChild.remove();
  while (place.children.length < charts.length) place.append(document.createElement("div")); // widths depend on all
  charts.forEach(({data, layout}, number) => {
    const chart = place.children[number];
    const names = layout.showlegend ? data.filter(one => one.showlegend !== false).map(one => one.name.length) : [];
    const perRow = Math.max(1, Math.floor((chart.clientWidth - 80) / (7 * Math.max(0, ...names) + 50)));
    layout.height = 310 + 20 * Math.ceil(names.length / perRow);
    layout.uirevision = "kept"; // a zoom stays while points arrive
    Plotly.react(chart, data, layout, {...OPTIONS, displayModeBar: chart.clientWidth > 480 ? "hover" : false});
  });
}

async function updateRun() {
  const name = byId("run").dataset.name;
  const run = await ask(`/api/run/${inPath(name)}?version=${encodeURIComponent(version)}`);
  if (run.version === version) return;
  drawHead(name, run);
  byId("scores").innerHTML = run.state === "finished" ? run.scores : "";
  if (typeof Plotly === "undefined") throw new Error("charts need plotly: pip install 'coterie[web]'");
  drawCharts(run.charts);
  version = run.version;
}

// ------------------------------------------------------------------------------------------------------

async function keepUpToDate(update) {
  const began = Date.now();
  try {
    await update();
    byId("error").textContent = "";
  } catch (error) {
    byId("error").textContent = error.message;
  }
  setTimeout(() => keepUpToDate(update), Math.max(EVERY, 5 * (Date.now() - began))); // long runs take long to read
}

if (byId("search")) byId("search").addEventListener("input", () => drawList(listed));
keepUpToDate(byId("run") ? updateRun : updateList);
