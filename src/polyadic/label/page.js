"use strict";
// The page of `polyadic label`. Names come from files and people: they are set as text, never as HTML.

const LIGHT = ["#2f6db3", "#c73e52", "#1b7f3b", "#8f6400", "#8e3a86", "#0a7f92", "#5f656e", "#b04e14", "#4b4bc4"];
const DARK = ["#7fb2ee", "#ff8a96", "#6fd08c", "#e8c15a", "#e08be0", "#5fd3e6", "#b3b8c1", "#ff9f68", "#a9a6ff"];
const WHY = {
  cover: "Unlike the windows so far", unsure: "The predictions are unsure here", random: "Drawn at random, for the accuracy",
  picked: "Picked by you; not part of the accuracy",
};
const CONTEXTS = [0, 0.5, 1, 2, 4, 8];
const $ = (id) => document.getElementById(id);
const dark = matchMedia("(prefers-color-scheme: dark)");
const tab = sessionStorage.tab ||= crypto.getRandomValues(new Uint32Array(2)).join("-");

let start, question, view, state, busy = true, waiting = null;
let context = 2, offset = 0, gain = 1, channel = -1;

const history_ = () => JSON.parse(sessionStorage.answers || "[]");
const remember = (list) => { sessionStorage.answers = JSON.stringify(list.slice(-500)); };
const colours = () => (dark.matches ? DARK : LIGHT);
const colour = (name) => colours()[Math.max(0, classNames().indexOf(name)) % LIGHT.length];
const classNames = () => (state ? state.classes.map(([name]) => name) : []);
const ink = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

function numbers(text, Kind) {
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  return new Kind(bytes.buffer);
}

// ------------------------------------------------------------------------------------------------- requests

async function ask(path, body) {
  const words = body ? { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) } : {};
  let answer;
  try {
    answer = await fetch(`api/${path}`, words);
  } catch {
    throw new Error("The server does not answer: nothing was saved. Start polyadic label again and open the address that it prints.");
  }
  const content = await answer.json();
  if (!answer.ok) throw Object.assign(new Error(content.error), { status: answer.status });
  return content;
}

const query = (words) => new URLSearchParams(words).toString();

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
  question = await ask(`question?${query({ tab, suggest: $("suggest").checked ? 1 : 0 })}`);
  offset = 0;
  await Promise.all([loadWindow(), refresh()]);
}

async function loadWindow() {
  const { length } = start, around = Math.round(CONTEXTS[context] * length);
  const first = Math.max(-40 * length, offset - around), last = Math.min(41 * length, offset + length + around);
  view = await ask(`window?${query({ row: question.row, first, last, channel })}`);
  view.numbers = numbers(view.values, Float32Array);
  drawWindow();
}

async function refresh() {
  clearTimeout(waiting);
  try {
    state = await ask(`state?${query({ row: question.row })}`);
    state.codes = numbers(state.predicted, Int16Array);
    state.along = { rows: numbers(state.timeline.rows, Int32Array), starts: numbers(state.timeline.starts, Float32Array),
      codes: numbers(state.timeline.codes, Int16Array) };
    state.marked = numbers(state.points, Float32Array);
    drawState();
  } finally {
    const behind = state && state.follows !== state.version;
    waiting = setTimeout(() => refresh().catch(() => {}), behind ? 600 : 4000);
  }
}

// -------------------------------------------------------------------------------------------------- actions

const label = (name) => alone(async () => {
  const { row, stamp } = question;
  const saved = await ask("label", { tab, row, label: name, stamp });
  if (name || question.asked !== "picked") remember([...history_(), { row, stamp: saved.stamp, label: name }]);
  say(name ? `Saved: ${name}` : question.asked === "picked" ? "Back to the question" : "Skipped");
  await showQuestion();
});

const undo = () => alone(async () => {
  const answers = history_(), last = answers.pop();
  if (!last) throw new Error("Nothing to undo in this tab. Click a window on the map or the timeline to change its label.");
  try {
    await ask("undo", { tab, row: last.row, stamp: last.stamp });
  } finally {
    remember(answers);
  }
  say(`Taken back: ${last.label || "skip"}`);
  await showQuestion();
});

const pick = (row) => alone(async () => { await ask("pick", { tab, row }); await showQuestion(); });
const move = (change) => alone(async () => { change(); await loadWindow(); });

function neighbour(step) {
  const rows = state.along.rows, place = rows.indexOf(question.row) + step;
  if (place >= 0 && place < rows.length) pick(rows[place]);
}

function say(text) {
  $("status").textContent = text;
}

function openDialog(id, prepare) {
  if (busy) return;
  prepare?.();
  $(id).returnValue = "";
  $(id).showModal();
}

function prepareEdit() {
  const names = classNames();
  $("edit-old").replaceChildren(...names.map((name) => new Option(name, name)));
  $("edit-names").replaceChildren(...names.map((name) => new Option(name, name)));
  $("edit-new").value = names[0] || "";
  noteEdit();
}

function noteEdit() {
  const [old, name] = [$("edit-old").value, $("edit-new").value.trim()];
  const count = (state.classes.find(([known]) => known === old) || ["", 0])[1];
  const merges = name !== old && classNames().includes(name);
  $("edit-note").textContent = merges ? `${count} labels of ${old} become ${name}. This cannot be undone.` : "";
}

// --------------------------------------------------------------------------------------------------- drawing

function prepare(canvas, height) {
  const ratio = devicePixelRatio || 1, width = canvas.clientWidth;
  if (height) canvas.style.height = `${height}px`;
  const tall = height || canvas.clientHeight;
  [canvas.width, canvas.height] = [Math.round(width * ratio), Math.round(tall * ratio)];
  const pen = canvas.getContext("2d");
  pen.scale(ratio, ratio);
  pen.font = "12px system-ui, sans-serif";
  return [pen, width, tall];
}

function clock(seconds, total) {
  const part = (value) => String(value).padStart(2, "0");
  if (total < 120) return `${+seconds.toFixed(2)} s`;
  const whole = Math.max(0, Math.round(seconds));
  return `${Math.floor(whole / 3600)}:${part(Math.floor(whole / 60) % 60)}:${part(whole % 60)}`;
}

function ticks(low, high, most) {
  const steps = [1, 2, 5], span = (high - low) / most, power = 10 ** Math.floor(Math.log10(span));
  const step = (steps.find((one) => one * power >= span) || 10) * power, found = [];
  for (let at = Math.ceil(low / step) * step; at <= high + 1e-9; at += step) found.push(at);
  return found;
}

const LEFT = 104;

function drawWindow() {
  const { channels, fs, length } = start, room = $("lanes").clientHeight - 22;
  const lane = Math.max(22, room / channels.length), height = lane * channels.length + 20;
  const [pen, width] = prepare($("signals"), height);
  const [first, last] = [view.first, view.last], at = (sample) => LEFT + (width - LEFT) * (sample - first) / (last - first);
  const [left, right] = [Math.max(LEFT, at(0)), Math.min(width, at(length))];
  pen.fillStyle = ink("focus");
  if (right > left) pen.fillRect(left, 0, right - left, height - 20);
  channels.forEach((about, number) => {
    const middle = (number + 0.5) * lane;
    pen.globalAlpha = 1;
    pen.fillStyle = ink("ink");
    const unit = about.unit.replace(/^u(?=[VAg])/, "µ"), scale = `±${+(about.scale / gain).toPrecision(3)} ${unit}`;
    const narrow = lane < 34, name = pen.measureText(about.name).width;
    pen.fillText(about.name, 2, middle + (narrow ? 4 : -1), narrow ? 44 : LEFT - 10);
    pen.fillStyle = ink("muted");
    pen.fillText(scale, narrow ? Math.min(name, 44) + 8 : 2, middle + (narrow ? 4 : 13), LEFT - 10 - (narrow ? Math.min(name, 44) + 6 : 0));
    pen.strokeStyle = ink("line");
    pen.beginPath(); pen.moveTo(LEFT, middle + 0.5); pen.lineTo(width, middle + 0.5); pen.stroke();
    pen.save();
    pen.beginPath(); pen.rect(LEFT, number * lane - lane / 2, width - LEFT, 2 * lane); pen.clip();
    trace(pen, number, about, middle, lane, at, left, right, false, width);
    trace(pen, number, about, middle, lane, at, left, right, true, width);
    pen.restore();
  });
  pen.strokeStyle = ink("edge");
  for (const edge of [at(0), at(length)]) {
    if (edge < LEFT || edge > width) continue;
    pen.beginPath(); pen.moveTo(edge, 0); pen.lineTo(edge, height - 20); pen.stroke();
  }
  pen.fillStyle = ink("muted");
  const begun = question.start, total = begun + length / fs;
  for (const second of ticks(begun + first / fs, begun + last / fs, Math.max(2, width / 130))) {
    const x = at((second - begun) * fs), text = clock(second, total);
    if (x > LEFT && x < width - 8) pen.fillText(text, Math.min(x, width - pen.measureText(text).width), height - 4);
  }
  drawSpectrum(at(0), at(length));
}

/** Draw one channel: the window itself, or its dimmed context. */
function trace(pen, number, about, middle, lane, at, left, right, inside, width) {
  const { columns, numbers: values } = view, base = number * columns * 2;
  pen.save();
  pen.beginPath();
  if (inside) pen.rect(left, -1e4, Math.max(0, right - left), 1e6);
  else { pen.rect(LEFT, -1e4, Math.max(0, left - LEFT), 1e6); pen.rect(right, -1e4, Math.max(0, width - right), 1e6); }
  pen.clip();
  pen.globalAlpha = inside ? 1 : 0.5;
  pen.strokeStyle = inside ? ink("accent") : ink("muted");
  pen.lineWidth = 1.1;
  pen.beginPath();
  let down = false;
  for (let column = 0; column < columns; column++) {
    const low = values[base + 2 * column], high = values[base + 2 * column + 1];
    if (Number.isNaN(low)) { down = false; continue; }
    const x = at(view.first + column * view.width);
    const [top, bottom] = [high, low].map((value) => middle - (value - about.centre) / about.scale * gain * lane * 0.48);
    if (down) pen.lineTo(x, top); else pen.moveTo(x, top);
    if (high !== low) pen.lineTo(x, bottom);
    down = true;
  }
  pen.stroke();
  pen.restore();
}

/** Draw the spectrogram of what is shown; the window is between two places, and its context dimmed. */
function drawSpectrum(from, to) {
  const { levels, rows, columns, highest, edge, range } = view.spectrogram, found = numbers(levels, Uint8Array);
  const [pen, width, height] = prepare($("spectrum"));
  const picture = new ImageData(columns, rows), ground = dark.matches ? [24, 28, 35] : [255, 255, 255];
  const far = dark.matches ? [255, 214, 130] : [122, 14, 66], half = dark.matches ? [196, 78, 110] : [236, 140, 80];
  for (let row = 0; row < rows; row++) {
    for (let column = 0; column < columns; column++) {
      const level = Math.max(0, found[row * columns + column] - 1) / 254, place = 4 * ((rows - 1 - row) * columns + column);
      const [near, next, share] = level < 0.5 ? [ground, half, 2 * level] : [half, far, 2 * level - 1];
      for (let part = 0; part < 3; part++) picture.data[place + part] = near[part] + share * (next[part] - near[part]);
      picture.data[place + 3] = 255;
    }
  }
  const sheet = new OffscreenCanvas(columns, rows);
  sheet.getContext("2d").putImageData(picture, 0, 0);
  const inset = (width - LEFT) * edge / (view.last - view.first), tall = height - 8;
  pen.imageSmoothingQuality = "high";
  pen.drawImage(sheet, LEFT + inset, 4, width - LEFT - 2 * inset, tall);
  pen.globalAlpha = 0.55;
  pen.fillStyle = ink("panel");
  const [left, right] = [Math.max(LEFT, from), Math.min(width, to)];
  pen.fillRect(LEFT, 4, Math.max(0, left - LEFT), tall);
  pen.fillRect(right, 4, Math.max(0, width - right), tall);
  pen.globalAlpha = 1;
  pen.strokeStyle = ink("edge");
  for (const at of [from, to]) {
    if (at < LEFT || at > width) continue;
    pen.beginPath(); pen.moveTo(at, 0); pen.lineTo(at, height); pen.stroke();
  }
  pen.fillStyle = ink("muted");
  for (const hertz of ticks(0, highest, 3)) {
    const y = height - 4 - (height - 8) * hertz / highest;
    pen.fillText(`${+hertz.toPrecision(3)} Hz`, LEFT - 8 - pen.measureText(`${+hertz.toPrecision(3)} Hz`).width, Math.min(height - 2, Math.max(11, y + 4)));
  }
  const name = channel < 0 ? "mean of all channels" : start.channels[channel].name;
  $("spectrum-name").textContent = `Spectrogram, colours over ${Math.round(range)} dB: ${name}`;
}

function drawState() {
  const list = state.classes.map(([name, count], place) => {
    const button = document.createElement("button"), key = document.createElement("kbd");
    const swatch = document.createElement("span"), text = document.createElement("span");
    button.type = "button";
    key.textContent = place < 9 ? place + 1 : "·";
    [swatch.className, text.className, text.textContent] = ["swatch", "name", name];
    swatch.style.background = colours()[place % LIGHT.length];
    button.append(key, swatch, text);
    if (name === question.suggestion) { button.className = "suggested"; button.append(" suggested"); }
    if (name === question.label) { button.className = "current"; button.append(" now"); }
    button.addEventListener("click", () => label(name));
    const line = document.createElement("li"), number = document.createElement("span"), own = text.cloneNode(true);
    [number.className, number.textContent] = ["number", count];
    line.append(swatch.cloneNode(true), own, number);
    return [button, line];
  });
  $("classes").replaceChildren(...list.map(([button]) => button));
  $("counts").replaceChildren(...list.map(([, line]) => line));
  if (!list.length) $("classes").textContent = "Press n and name what you see.";
  const most = state.subjects.slice(0, 4).map(([name, count]) => `${name || "unknown"} ${count}`).join(", ");
  $("subjects").textContent = `${state.labelled} of ${start.windows.toLocaleString("en")} windows; `
    + `${state.subjects.length} of ${state.all_subjects} subjects${most ? `: ${most}${state.subjects.length > 4 ? ", …" : ""}` : ""}`;
  const { recording, subject, start: begun } = question;
  $("where").textContent = `${recording}${subject && subject !== recording ? ` · ${subject}` : ""} · ${clock(begun, begun + 120)}`;
  $("why").textContent = WHY[question.asked];
  $("edit").disabled = !list.length;
  $("busy").textContent = state.follows === state.version ? "" : "updating…";
  drawAccuracy();
  drawTimeline();
  drawMap();
}

function drawAccuracy() {
  const { accuracy, interval, count, too_early: early } = state.estimate;
  const percent = (value) => `${Math.round(100 * value)}`;
  $("accuracy").textContent = accuracy === undefined ? "Too early to say" : `${percent(accuracy)} %`;
  $("accuracy-why").textContent = accuracy === undefined ? early || ""
    : `${percent(interval[0])} to ${percent(interval[1])} % (95 % interval), from ${count} windows drawn at random`;
  $("range").hidden = accuracy === undefined;
  if (accuracy !== undefined) {
    $("interval").style.left = `${100 * interval[0]}%`;
    $("interval").style.right = `${100 - 100 * interval[1]}%`;
    $("middle").style.left = `${100 * accuracy}%`;
  }
  $("consistency").textContent = state.repeated ? `You: ${state.same} of ${state.repeated} repeated windows got the same label` : "";
}

function drawTimeline() {
  const { rows, codes, starts } = state.along, [pen, width, height] = prepare($("timeline"));
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
      pen.beginPath(); pen.moveTo(x + wide / 2, height - 13); pen.lineTo(x + wide / 2 - 5, height - 5); pen.lineTo(x + wide / 2 + 5, height - 5); pen.fill();
    }
  });
  pen.fillStyle = ink("muted");
  pen.fillText("labelled", 2, 10); pen.fillText("predicted", 2, 27);
  $("timeline-name").textContent = `Recording ${question.recording}, ${clock(starts[0], end)} to ${clock(end, end)}`
    + (state.timeline.along ? ", predicted along the recording" : "");
}

const spot = (point, width, height) => [14 + point[0] * (width - 28), height - 14 - point[1] * (height - 28)];

function drawMap() {
  const [pen, width, height] = prepare($("map")), names = classNames();
  for (let place = 0; place < start.rows.length; place++) {
    const [x, y] = spot(start.points.subarray(2 * place, 2 * place + 2), width, height), code = state.codes[place];
    pen.globalAlpha = code < 0 ? 0.55 : 0.7;
    pen.fillStyle = code < 0 ? ink("muted") : colour(state.names[code]);
    pen.fillRect(x - 1.5, y - 1.5, 3, 3);
  }
  pen.globalAlpha = 1;
  pen.textAlign = "center";
  pen.font = "bold 10px system-ui, sans-serif";
  state.marks.forEach(([, name], place) => {
    const [x, y] = spot(state.marked.subarray(2 * place, 2 * place + 2), width, height);
    pen.fillStyle = colour(name);
    pen.strokeStyle = ink("panel");
    pen.beginPath(); pen.arc(x, y, 7, 0, 7); pen.fill(); pen.stroke();
    pen.fillStyle = ink("panel");
    pen.fillText(String(names.indexOf(name) + 1), x, y + 3.5);
  });
  const [x, y] = spot(question.point, width, height);
  for (const [style, size] of [["panel", 6], ["ink", 2.5]]) {
    pen.strokeStyle = ink(style);
    pen.lineWidth = size;
    pen.beginPath(); pen.moveTo(x - 10, y); pen.lineTo(x + 10, y); pen.moveTo(x, y - 10); pen.lineTo(x, y + 10); pen.stroke();
  }
}

function clickMap(event) {
  const box = $("map").getBoundingClientRect(), points = [];
  start.rows.forEach((row, place) => points.push([row, start.points.subarray(2 * place, 2 * place + 2)]));
  state.marks.forEach(([row], place) => points.push([row, state.marked.subarray(2 * place, 2 * place + 2)]));
  let [best, nearest] = [null, 20 ** 2];
  for (const [row, point] of points) {
    const [x, y] = spot(point, box.width, box.height);
    const distance = (x - event.clientX + box.left) ** 2 + (y - event.clientY + box.top) ** 2;
    if (distance <= nearest) [best, nearest] = [row, distance];
  }
  if (best !== null) pick(best);
}

function clickTimeline(event) {
  const box = $("timeline").getBoundingClientRect(), rows = state.along.rows;
  const place = Math.floor((event.clientX - box.left - LEFT) / (box.width - LEFT) * rows.length);
  if (place >= 0 && place < rows.length) pick(rows[place]);
}

// ----------------------------------------------------------------------------------------------------- events

const toggleSuggestions = () => alone(showQuestion);
const KEYS = {
  n: () => openDialog("new-dialog", () => { $("new-name").value = ""; }),
  r: () => { if (classNames().length) openDialog("edit-dialog", prepareEdit); },
  s: () => label(""),
  u: () => undo(),
  p: () => { $("suggest").checked = !$("suggest").checked; toggleSuggestions(); },
  c: () => move(() => { channel = channel + 1 < start.channels.length ? channel + 1 : -1; }),
  "?": () => openDialog("help"),
  ",": () => neighbour(-1),
  ".": () => neighbour(1),
  "+": () => { gain *= 1.5; drawWindow(); },
  "-": () => { gain /= 1.5; drawWindow(); },
  Escape: () => { if (question.asked === "picked") label(""); },
  Home: () => move(() => { offset = 0; }),
  ArrowLeft: () => move(() => { offset = Math.max(offset - Math.round(start.length / 2), -30 * start.length); }),
  ArrowRight: () => move(() => { offset = Math.min(offset + Math.round(start.length / 2), 30 * start.length); }),
  ArrowUp: () => move(() => { context = Math.min(context + 1, CONTEXTS.length - 1); }),
  ArrowDown: () => move(() => { context = Math.max(context - 1, 0); }),
};

function press(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]") || !start) return;
  if (event.target.closest("select, input:not([type=checkbox])")) return;
  const name = /^[1-9]$/.test(event.key) ? classNames()[event.key - 1] : undefined;
  const action = name !== undefined ? () => label(name) : KEYS[event.key === "=" ? "+" : event.key];
  if (!action || event.repeat && !event.key.startsWith("Arrow")) return;
  event.preventDefault();
  action();
}

function redraw() {
  if (view && state) { drawWindow(); drawState(); }
}

async function begin() {
  document.addEventListener("keydown", press);
  dark.addEventListener("change", redraw);
  addEventListener("resize", redraw);
  $("map").addEventListener("click", clickMap);
  $("timeline").addEventListener("click", clickTimeline);
  $("suggest").addEventListener("change", toggleSuggestions);
  $("open-help").addEventListener("click", KEYS["?"]);
  for (const [id, key] of [["new", "n"], ["skip", "s"], ["undo", "u"], ["edit", "r"], ["channel", "c"]]) $(id).addEventListener("click", KEYS[key]);
  for (const button of document.querySelectorAll("[data-close]")) button.addEventListener("click", () => button.closest("dialog").close());
  $("new-dialog").querySelector("form").addEventListener("submit", () => label($("new-name").value.trim()));
  $("edit-dialog").querySelector("form").addEventListener("submit", () => alone(async () => {
    await ask("rename", { old: $("edit-old").value, new: $("edit-new").value });
    await showQuestion();
  }));
  $("edit-old").addEventListener("change", () => { $("edit-new").value = $("edit-old").value; noteEdit(); });
  $("edit-new").addEventListener("input", noteEdit);
  busy = false;
  await alone(async () => {
    start = await ask("start");
    start.rows = numbers(start.rows, Int32Array);
    start.points = numbers(start.map, Float32Array);
    $("file").textContent = start.file;
    await showQuestion();
    say(`${start.windows.toLocaleString("en")} windows of ${start.subjects} subjects. Answers go to ${start.file}.`);
  });
}

begin();
