"use strict";
// The page of `polyadic label`. Names come from files and people: they are set as text, never as HTML.

const LIGHT = ["#2f6db3", "#c73e52", "#1b7f3b", "#8f6400", "#8e3a86", "#0a7f92", "#5f656e", "#b04e14", "#4b4bc4"];
const DARK = ["#7fb2ee", "#ff8a96", "#6fd08c", "#e8c15a", "#e08be0", "#5fd3e6", "#b3b8c1", "#ff9f68", "#a9a6ff"];
const WHY = {
  cover: "Unlike the windows so far", unsure: "The predictions are unsure here", random: "Drawn at random, for the accuracy",
  picked: "Picked by you; not part of the accuracy",
};
const CONTEXTS = [0, 0.5, 1, 2, 4, 8];
const FARTHEST = 30; // windows
const LEFT = 104; // room for names of channels
const $ = (id) => document.getElementById(id);
const dark = matchMedia("(prefers-color-scheme: dark)");
const tab = sessionStorage.tab ||= crypto.getRandomValues(new Uint32Array(2)).join("-");

let start, question, view, state, busy = true, waiting = null;
let context = 2, offset = 0, gain = 1;

const answered = () => JSON.parse(sessionStorage.answers || "[]");
const remember = (list) => { sessionStorage.answers = JSON.stringify(list.slice(-500)); };
const classNames = () => (state ? state.classes.map(([name]) => name) : []);
const colour = (name) => (dark.matches ? DARK : LIGHT)[Math.max(0, classNames().indexOf(name)) % LIGHT.length];
const say = (text) => { $("status").textContent = text; };
const numbers = (text, Kind) => new Kind(Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0)).buffer);

/** A colour of the theme, as canvases take it. */
function ink(name) {
  if (!inks.has(name)) {
    $("ink").style.color = `var(--${name})`;
    inks.set(name, getComputedStyle($("ink")).color);
  }
  return inks.get(name);
}
const inks = new Map();

// ------------------------------------------------------------------------------------------------- requests

async function ask(path, query, body) {
  const post = { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) };
  let answer;
  try {
    answer = await fetch(`api/${path}?${new URLSearchParams(query)}`, body ? post : {});
  } catch {
    throw new Error("The server does not answer: nothing was saved. Start polyadic label again and open the address that it prints.");
  }
  const content = await answer.json();
  if (!answer.ok) throw Object.assign(new Error(content.error), { status: answer.status });
  return content;
}

/** Do something for which keys must wait; problems are shown, and hide when the next thing succeeds. */
async function alone(action) {
  if (busy) return;
  busy = true;
  document.documentElement.removeAttribute("data-ready");
  try {
    await action();
    $("alarm").hidden = true;
  } catch (error) {
    $("alarm").textContent = error.message;
    $("alarm").hidden = false;
    if (error.status === 409) await showQuestion().catch(() => {});
  }
  busy = false;
  document.documentElement.dataset.ready = "";
}

async function showQuestion() {
  question = await ask("question", { tab, suggest: $("suggest").checked ? 1 : 0 });
  offset = 0;
  await Promise.all([loadWindow(), refresh()]);
}

async function loadWindow() {
  const around = Math.round(CONTEXTS[context] * start.length);
  view = await ask("window", { row: question.row, first: offset - around, last: offset + start.length + around });
  view.numbers = numbers(view.values, Float32Array);
  drawWindow();
}

async function refresh() {
  clearTimeout(waiting);
  try {
    state = await ask("state", { row: question.row });
    state.codes = numbers(state.predicted, Int16Array);
    state.marked = numbers(state.points, Float32Array);
    const { rows, starts, codes } = state.timeline;
    state.along = { rows: numbers(rows, Int32Array), starts: numbers(starts, Float32Array), codes: numbers(codes, Int16Array) };
    drawState();
  } finally {
    waiting = setTimeout(() => refresh().catch(() => {}), state?.follows === state?.version ? 4000 : 600);
  }
}

// -------------------------------------------------------------------------------------------------- actions

const label = (name) => alone(async () => {
  const { row, stamp, asked } = question;
  const saved = await ask("answer", {}, { tab, row, label: name, stamp });
  if (name || asked !== "picked") remember([...answered(), { row, stamp: saved, label: name }]);
  say(name ? `Saved: ${name}` : asked === "picked" ? "Back to the question" : "Skipped");
  await showQuestion();
});

const undo = () => alone(async () => {
  const answers = answered(), last = answers.pop();
  if (!last) throw new Error("Nothing to undo in this tab. Click a window on the map or the timeline to change its label.");
  remember(answers);
  await ask("undo", {}, { tab, row: last.row, stamp: last.stamp });
  say(`Taken back: ${last.label || "skip"}`);
  await showQuestion();
});

const rename = () => alone(async () => {
  await ask("rename", {}, { old: $("edit-old").value, new: $("edit-new").value });
  await showQuestion();
});

const pick = (row) => alone(async () => { await ask("pick", {}, { tab, row }); await showQuestion(); });

function neighbour(step) {
  const row = state.along.rows[state.along.rows.indexOf(question.row) + step];
  if (row !== undefined) pick(row);
}

function look(moved, widened) {
  offset = Math.max(-FARTHEST * start.length, Math.min(FARTHEST * start.length, offset + Math.round(moved * start.length)));
  context = Math.max(0, Math.min(CONTEXTS.length - 1, context + widened));
  alone(loadWindow);
}

function scale(factor) {
  gain *= factor;
  drawWindow();
}

function openDialog(id) {
  if (busy) return;
  $("new-name").value = "";
  $("edit-old").replaceChildren(...classNames().map((name) => new Option(name, name)));
  $("edit-new").value = classNames()[0] || "";
  noteEdit();
  $(id).showModal();
}

function noteEdit() {
  const [old, name] = [$("edit-old").value, $("edit-new").value.trim()];
  const merges = name !== old && classNames().includes(name);
  $("edit-note").textContent = merges ? `All labels of ${old} become ${name}. This cannot be undone.` : "";
}

// --------------------------------------------------------------------------------------------------- drawing

/** Prepare a canvas for the screen's pixels; returns its pen, width and height. */
function prepare(id, height = $(id).clientHeight) {
  const canvas = $(id), width = canvas.clientWidth, ratio = devicePixelRatio || 1;
  canvas.style.height = `${height}px`;
  [canvas.width, canvas.height] = [Math.round(width * ratio), Math.round(height * ratio)];
  const pen = canvas.getContext("2d");
  pen.scale(ratio, ratio);
  pen.font = "12px system-ui, sans-serif";
  return [pen, width, height];
}

function line(pen, ...points) {
  pen.beginPath();
  points.forEach(([x, y]) => pen.lineTo(x, y));
  pen.stroke();
}

function clock(seconds, total) {
  if (total < 120) return `${+seconds.toFixed(2)} s`;
  const whole = Math.max(0, Math.round(seconds)), parts = [whole / 3600, whole / 60 % 60, whole % 60].map(Math.floor);
  return parts.map((part, place) => String(part).padStart(place ? 2 : 1, "0")).join(":");
}

function ticks(low, high, most) {
  const span = (high - low) / most, power = 10 ** Math.floor(Math.log10(span)), found = [];
  const step = power * [1, 2, 5, 10].find((one) => one * power >= span);
  for (let at = Math.ceil(low / step) * step; at <= high + 1e-9; at += step) found.push(at);
  return found;
}

function drawWindow() {
  const { channels, fs, length } = start, { first, last } = view;
  const lane = Math.max(30, ($("lanes").clientHeight - 22) / channels.length), bottom = lane * channels.length;
  const [pen, width] = prepare("signals", bottom + 20);
  const at = (sample) => LEFT + (width - LEFT) * (sample - first) / (last - first);
  const [left, right] = [0, length].map((sample) => Math.max(LEFT, Math.min(width, at(sample))));
  pen.fillStyle = ink("focus");
  pen.fillRect(left, 0, right - left, bottom);
  channels.forEach((about, number) => {
    const middle = (number + 0.5) * lane, unit = about.unit.replace(/^u(?=[VAg])/, "µ");
    pen.fillStyle = ink("ink");
    pen.fillText(about.name, 2, middle - 1, LEFT - 10);
    pen.fillStyle = ink("muted");
    pen.fillText(`±${+(about.scale / gain).toPrecision(3)} ${unit}`, 2, middle + 12, LEFT - 10);
    pen.strokeStyle = ink("line");
    line(pen, [LEFT, middle], [width, middle]);
    const height = (value) => middle - (value - about.centre) / about.scale * gain * lane * 0.48;
    // The window itself, and its context before and after it, dimmed.
    for (const [from, to, name] of [[LEFT, left, "edge"], [right, width, "edge"], [left, right, "accent"]]) {
      pen.save();
      pen.beginPath();
      pen.rect(from, (number - 0.5) * lane, to - from, 2 * lane);
      pen.clip();
      pen.strokeStyle = ink(name);
      trace(pen, number, at, height);
      pen.restore();
    }
  });
  pen.fillStyle = ink("muted");
  for (const second of ticks(question.start + first / fs, question.start + last / fs, Math.max(2, width / 130))) {
    const x = at((second - question.start) * fs), text = clock(second, question.start + length / fs);
    if (x > LEFT && x < width - 8) pen.fillText(text, Math.min(x, width - pen.measureText(text).width), bottom + 16);
  }
  drawSpectrum();
}

function trace(pen, number, at, height) {
  const base = 2 * number * view.columns;
  pen.beginPath();
  for (let column = 0, down = false; column < view.columns; column++) {
    const [low, high] = view.numbers.subarray(base + 2 * column, base + 2 * column + 2), x = at(view.first + column * view.width);
    if (down && !Number.isNaN(low)) pen.lineTo(x, height(high)); else pen.moveTo(x, height(high));
    if (high !== low) pen.lineTo(x, height(low));
    down = !Number.isNaN(low);
  }
  pen.stroke();
}

function drawSpectrum() {
  const [pen, width, height] = prepare("spectrum"), own = numbers(view.spectrum, Float32Array), both = [...own, ...start.typical];
  const [low, high] = [Math.min(...both), Math.max(...both, Math.min(...both) + 10)], bottom = height - 18;
  const x = (place) => LEFT + (width - LEFT) * place / (own.length - 1);
  const y = (value) => 4 + (bottom - 4) * (high - value) / (high - low);
  pen.fillStyle = ink("muted");
  pen.strokeStyle = ink("line");
  for (const level of ticks(low, high, 3)) {
    pen.fillText(`${level} dB`, LEFT - 8 - pen.measureText(`${level} dB`).width, Math.min(bottom, Math.max(11, y(level) + 4)));
    line(pen, [LEFT, y(level)], [width, y(level)]);
  }
  for (const hertz of ticks(0, start.fs / 2, Math.max(3, width / 90))) {
    const place = x(hertz / start.fs * 2 * (own.length - 1)), text = `${+hertz.toPrecision(3)} Hz`;
    pen.fillText(text, Math.min(place, width - pen.measureText(text).width), height - 4);
  }
  for (const [values, name, size] of [[start.typical, "edge", 1], [own, "accent", 2]]) {
    [pen.strokeStyle, pen.lineWidth] = [ink(name), size];
    line(pen, ...Array.from(values, (value, place) => [x(place), y(value)]));
  }
}

function element(kind, name, text = "") {
  return Object.assign(document.createElement(kind), { className: name, textContent: text });
}

function drawState() {
  const named = (name) => {
    const swatch = element("span", "swatch");
    swatch.style.background = colour(name);
    return [swatch, element("span", "name", name)];
  };
  $("classes").replaceChildren(...state.classes.map(([name], place) => {
    const button = element("button", "");
    button.append(element("kbd", "", place < 9 ? place + 1 : "·"), ...named(name));
    if (name === question.suggestion || name === question.label) {
      button.className = "marked";
      button.append(name === question.label ? "now" : "suggested");
    }
    button.addEventListener("click", () => label(name));
    return button;
  }));
  if (!state.classes.length) $("classes").textContent = "Press n and name what you see.";
  $("counts").replaceChildren(...state.classes.map(([name, count]) => {
    const item = element("li", "");
    item.append(...named(name), element("span", "number", count));
    return item;
  }));
  const most = state.subjects.slice(0, 4).map(([name, count]) => `${name || "unknown"} ${count}`).join(", ");
  $("subjects").textContent = `${state.labelled} of ${start.windows.toLocaleString("en")} windows; `
    + `${state.subjects.length} of ${state.all_subjects} subjects${most && `: ${most}`}${state.subjects.length > 4 ? ", …" : ""}`;
  const { recording, subject, start: begun } = question;
  $("where").textContent = `${recording}${subject && subject !== recording ? ` · ${subject}` : ""} · ${clock(begun, begun + 120)}`;
  $("why").textContent = WHY[question.asked];
  $("edit").disabled = !state.classes.length;
  $("busy").textContent = state.follows === state.version ? "" : "updating…";
  const { accuracy, interval, count, too_early: early } = state.estimate, percent = (value) => Math.round(100 * value);
  $("accuracy").textContent = accuracy === undefined ? "Too early to say" : `${percent(accuracy)} %`;
  $("accuracy-why").textContent = accuracy === undefined ? early || ""
    : `${percent(interval[0])} to ${percent(interval[1])} % (95 % interval), from ${count} windows drawn at random`;
  $("consistency").textContent = state.repeated ? `You: ${state.same} of ${state.repeated} repeated windows got the same label` : "";
  drawTimeline();
  drawMap();
}

function drawTimeline() {
  const { rows, codes, starts } = state.along, [pen, width, height] = prepare("timeline");
  const marks = new Map(state.marks), end = starts.at(-1) + start.length / start.fs, wide = (width - LEFT) / rows.length;
  rows.forEach((row, place) => {
    const x = LEFT + place * wide;
    pen.fillStyle = codes[place] < 0 ? ink("line") : colour(state.names[codes[place]]);
    pen.fillRect(x, 12, Math.max(wide - (wide > 4 ? 1 : 0), 0.6), height - 26);
    if (marks.has(row)) {
      pen.fillStyle = colour(marks.get(row));
      pen.fillRect(x, 3, Math.max(wide - 1, 3), 6);
    }
    if (row === question.row) {
      pen.fillStyle = ink("ink");
      pen.fillText("▲", x + wide / 2 - 6, height - 2);
    }
  });
  pen.fillStyle = ink("muted");
  pen.fillText("labelled", 2, 10);
  pen.fillText("predicted", 2, 27);
  $("timeline-name").textContent = `Recording ${question.recording}, ${clock(starts[0], end)} to ${clock(end, end)}`
    + `${state.timeline.along ? ", predicted along the recording" : ""}; click a window to label it`;
}

const spot = (points, place, width, height) => [14 + points[2 * place] * (width - 28), height - 14 - points[2 * place + 1] * (height - 28)];

function drawMap() {
  const [pen, width, height] = prepare("map"), names = classNames();
  pen.globalAlpha = 0.7;
  state.codes.forEach((code, place) => {
    const [x, y] = spot(start.points, place, width, height);
    pen.fillStyle = code < 0 ? ink("muted") : colour(state.names[code]);
    pen.fillRect(x - 1.5, y - 1.5, 3, 3);
  });
  pen.globalAlpha = 1;
  pen.textAlign = "center";
  pen.font = "bold 10px system-ui, sans-serif";
  state.marks.forEach(([, name], place) => {
    const [x, y] = spot(state.marked, place, width, height);
    pen.fillStyle = colour(name);
    pen.strokeStyle = ink("panel");
    pen.beginPath();
    pen.arc(x, y, 7, 0, 7);
    pen.fill();
    pen.stroke();
    pen.fillStyle = ink("panel");
    pen.fillText(String(names.indexOf(name) + 1), x, y + 3.5);
  });
  const [x, y] = spot(question.point, 0, width, height);
  for (const [name, size] of [["panel", 6], ["ink", 2.5]]) {
    [pen.strokeStyle, pen.lineWidth] = [ink(name), size];
    line(pen, [x - 10, y], [x + 10, y]);
    line(pen, [x, y - 10], [x, y + 10]);
  }
}

function clickMap(event) {
  const { left, top, width, height } = $("map").getBoundingClientRect();
  let [best, nearest] = [null, 20];
  const points = [[Array.from(start.rows), start.points], [state.marks.map(([row]) => row), state.marked]];
  for (const [rows, places] of points) {
    rows.forEach((row, place) => {
      const [x, y] = spot(places, place, width, height), distance = Math.hypot(x - event.clientX + left, y - event.clientY + top);
      if (distance <= nearest) [best, nearest] = [row, distance];
    });
  }
  if (best !== null) pick(best);
}

function clickTimeline(event) {
  const { left, width } = $("timeline").getBoundingClientRect(), rows = state.along.rows;
  const row = rows[Math.floor((event.clientX - left - LEFT) / (width - LEFT) * rows.length)];
  if (row !== undefined) pick(row);
}

// ----------------------------------------------------------------------------------------------------- events

const KEYS = {
  n: () => openDialog("new-dialog"),
  r: () => { if (classNames().length) openDialog("edit-dialog"); },
  s: () => label(""),
  u: undo,
  p: () => $("suggest").click(),
  "?": () => openDialog("help"),
  ",": () => neighbour(-1),
  ".": () => neighbour(1),
  "+": () => scale(1.5),
  "=": () => scale(1.5),
  "-": () => scale(1 / 1.5),
  ArrowLeft: () => look(-0.5, 0),
  ArrowRight: () => look(0.5, 0),
  ArrowUp: () => look(0, 1),
  ArrowDown: () => look(0, -1),
};

function press(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]") || !start) return;
  const name = /^[1-9]$/.test(event.key) ? classNames()[event.key - 1] : undefined;
  const action = name === undefined ? KEYS[event.key] : () => label(name);
  if (!action || (event.repeat && !event.key.startsWith("Arrow"))) return;
  event.preventDefault();
  action();
}

function redraw() {
  if (view && state) { drawWindow(); drawState(); }
}

async function begin() {
  document.addEventListener("keydown", press);
  dark.addEventListener("change", () => { inks.clear(); redraw(); });
  addEventListener("resize", redraw);
  $("map").addEventListener("click", clickMap);
  $("timeline").addEventListener("click", clickTimeline);
  $("suggest").addEventListener("change", () => alone(showQuestion));
  for (const [id, key] of [["new", "n"], ["skip", "s"], ["undo", "u"], ["edit", "r"], ["open-help", "?"]]) $(id).addEventListener("click", KEYS[key]);
  for (const button of document.querySelectorAll("[data-close]")) button.addEventListener("click", () => button.closest("dialog").close());
  $("new-dialog").addEventListener("submit", () => label($("new-name").value.trim()));
  $("edit-dialog").addEventListener("submit", rename);
  $("edit-old").addEventListener("change", () => { $("edit-new").value = $("edit-old").value; noteEdit(); });
  $("edit-new").addEventListener("input", noteEdit);
  busy = false;
  await alone(async () => {
    start = await ask("start");
    start.rows = numbers(start.rows, Int32Array);
    start.points = numbers(start.map, Float32Array);
    start.typical = numbers(start.typical, Float32Array);
    $("file").textContent = start.file;
    await showQuestion();
    say(`${start.windows.toLocaleString("en")} windows of ${start.subjects} subjects. Answers go to ${start.file}.`);
  });
}

begin();
