"use strict";
// Interaction in the report: sorting, filtering, the component dialog, the theme, and the figures.
(() => {
  const all = (selector, within = document) => [...within.querySelectorAll(selector)];
  const one = (selector) => document.querySelector(selector);
  const bytes = (text) => Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  let figures = {};

  // ------------------------------------------------------------------ figures

  const probe = document.body.appendChild(document.createElement("span"));
  probe.hidden = true;
  const colour = (name) => {
    probe.style.color = `var(--${name})`;
    return getComputedStyle(probe).color;
  };
  let printing = null; // what to restore after printing
  const PAGE = 680; // the width of figures on paper
  const narrow = () => !printing && window.innerWidth < 832;

  function style() {
    const axis = {
      gridcolor: colour("line"), zerolinecolor: colour("strong-line"), linecolor: colour("line"),
      automargin: true, ticks: "outside", ticklen: 5, tickcolor: "rgba(0,0,0,0)", tickfont: { size: 12 }, title: { standoff: 8, font: { size: 12, color: colour("quiet") } },
    };
    const [low, high] = [colour("low"), colour("high")];
    const sequential = [[0, low], [1, high]];
    return {
      layout: {
        font: { family: getComputedStyle(document.body).fontFamily, size: 13, color: colour("text") },
        paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
        xaxis: axis, yaxis: axis,
        hoverlabel: { bgcolor: colour("raised"), bordercolor: colour("strong-line"), font: { color: colour("text") } },
        colorscale: {
          sequential, sequentialminus: [[0, high], [1, low]],
          diverging: [[0, colour("negative")], [0.5, colour("middle")], [1, colour("positive")]],
        },
      },
      data: {
        scatter: [{ error_x: { color: colour("quiet") }, error_y: { color: colour("quiet") } }],
      },
    };
  }

  function draw(place, name) {
    const figure = figures[name];
    place.hidden = !figure;
    if (!figure || !window.Plotly) return;
    place.dataset.drawn = name;
    const layout = { ...figure.layout };
    if (matchMedia("(pointer: fine)").matches && name.startsWith("map ")) layout.dragmode = "zoom";
    if (name.endsWith("-windows") && narrow()) stack(layout);
    if (name.startsWith("timeline-") && narrow()) layout.coloraxis = { ...layout.coloraxis, showscale: false };
    if (name === "confusion" && narrow()) layout.xaxis = { ...layout.xaxis, tickangle: -40 };
    layout.shapes = layout.shapes?.map((shape) => shape.name === "ground" ? { ...shape, fillcolor: colour("ground") } : shape);
    const data = narrow()
      ? figure.data.map((trace) => trace.mode === "markers+text" ? { ...trace, mode: "markers" } : trace)
      : figure.data;
    place.style.setProperty("--height", `${layout.height}px`);
    const size = printing ? { width: PAGE } : { autosize: true };
    Plotly.react(place, data, { template: style(), dragmode: false, ...layout, ...size }, config);
  }
  const config = { responsive: true, displayModeBar: false, displaylogo: false };

  // On narrow screens, stack windows instead of showing them side by side.
  function stack(layout) {
    const axes = Object.keys(layout).filter((key) => /^xaxis\d*$/.test(key)).sort();
    const height = layout.height;
    axes.forEach((key, number) => {
      const y = key.replace("x", "y");
      const top = 1 - number / axes.length;
      layout[key] = { ...layout[key], domain: [0, 1], title: number === axes.length - 1 ? layout[key].title : undefined };
      // The time axis is below the signals, and the title of the next window above it.
      const room = { below: 30 / (height * axes.length), above: number ? layout.margin.t / (height * axes.length) : 0 };
      layout[y] = { ...layout[y], domain: [top - 1 / axes.length + room.below, top - room.above], showticklabels: true };
    });
    layout.height = height * axes.length;
  }

  const seen = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      if (!entry.isIntersecting || entry.target.closest("dialog")) continue;
      seen.unobserve(entry.target);
      draw(entry.target, entry.target.dataset.figure);
    }
  }, { rootMargin: "400px" });

  function unpacked(id) {
    const packed = new Blob([bytes(one(id).textContent)]);
    return new Response(packed.stream().pipeThrough(new DecompressionStream("gzip"))).text();
  }

  async function unpack() {
    const script = document.createElement("script");
    script.textContent = await unpacked("#plotly");
    document.head.append(script);
    figures = JSON.parse(await unpacked("#figures"));
  }

  const ready = unpack().then(() => {
    all(".figure").forEach((place) => seen.observe(place));
    document.documentElement.dataset.ready = "";
  }).catch(() => {
    for (const place of all(".figure")) {
      place.classList.add("too-old");
      place.textContent = "This figure needs a browser from 2023 or later.";
    }
  });

  // -------------------------------------------------------------------- theme

  const button = one("#theme");
  const prefersDark = matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (document.documentElement.dataset.theme || (prefersDark.matches ? "dark" : "light")) === "dark";

  function themed() {
    button.textContent = isDark() ? "Light" : "Dark";
    button.setAttribute("aria-label", `Switch to the ${isDark() ? "light" : "dark"} theme`);
    redrawAll("[data-drawn]");
  }

  function redrawAll(selector) {
    for (const place of all(selector)) draw(place, place.dataset.drawn ?? place.dataset.figure);
  }
  button.addEventListener("click", () => {
    document.documentElement.dataset.theme = isDark() ? "light" : "dark";
    themed();
  });
  prefersDark.addEventListener("change", themed);
  themed();

  // ------------------------------------------------------------------- tables

  function sort(head) {
    const table = head.closest("table");
    const column = [...head.parentNode.children].indexOf(head);
    const text = head.dataset.kind === "text";
    const first = text || column === 0 ? "ascending" : "descending";
    const second = first === "ascending" ? "descending" : "ascending";
    const order = head.getAttribute("aria-sort") === first ? second : first;
    const sign = order === "ascending" ? 1 : -1;
    const value = (row) => row.children[column].dataset.value ?? row.children[column].textContent.trim();
    const compare = text
      ? (a, b) => value(a).localeCompare(value(b), undefined, { numeric: true })
      : (a, b) => Number(value(a)) - Number(value(b));
    all("th", table.tHead).forEach((other) => other.setAttribute("aria-sort", "none"));
    head.setAttribute("aria-sort", order);
    table.tBodies[0].append(...[...table.tBodies[0].rows].sort((a, b) => sign * compare(a, b)));
  }
  all("button.sort").forEach((head) => head.addEventListener("click", () => sort(head.parentNode)));

  if (one("#component-table")) components();
  function components() {
  const rows = () => all("#component-table tbody tr");
  const table = one("#component-table");
  const isShown = (row) => getComputedStyle(row).display !== "none";
  const visible = () => rows().filter(isShown);
  const unfold = one("#unfold");

  function count() {
    const folded = rows().filter((row) => row.className.includes("folded")).length;
    const hidden = rows().filter((row) => !isShown(row));
    const open = table.classList.contains("unfolded");
    unfold.hidden = !folded || (!open && !hidden.length);
    unfold.setAttribute("aria-expanded", String(open));
    unfold.textContent = open ? "Show fewer" : `Show ${hidden.length} more`;
  }
  unfold.addEventListener("click", () => { table.classList.toggle("unfolded"); count(); });
  addEventListener("resize", count);
  count();

  // ------------------------------------------------------------ one component

  const detail = one("#detail");
  let current = null;

  function open(row) {
    current = row;
    const number = Number(row.dataset.component);
    one("#detail-h").textContent = `Component ${number}`;
    one("#detail-words").textContent = row.dataset.sentence;
    if (!detail.open) detail.showModal();
    detail.scrollTop = 0;
    ready.then(() => {
      for (const place of all(".figure", detail)) {
        const name = place.dataset.figure.replace("detail-", `component-${number}-`);
        draw(place, name);
        if (name.endsWith("-windows")) one("#detail-windows").hidden = place.hidden;
      }
    });
  }

  function step(by) {
    const shown = visible();
    open(shown[(shown.indexOf(current) + by + shown.length) % shown.length]);
  }
  one("#component-table").addEventListener("click", (event) => {
    const row = event.target.closest("tbody tr");
    if (row) open(row);
  });
  one("#previous").addEventListener("click", () => step(-1));
  one("#next").addEventListener("click", () => step(1));
  detail.addEventListener("keydown", (event) => {
    if (event.key === "ArrowLeft") step(-1);
    if (event.key === "ArrowRight") step(1);
  });
  detail.addEventListener("click", (event) => { if (event.target === detail) detail.close(); });
  detail.addEventListener("close", () => current?.querySelector("button.open").focus());

  }

  // ----------------------------------------------------------------- sections

  // On narrow screens, only the first two sections are open initially; a link opens its section.
  if (narrow()) all("main > section > details.fold").slice(1).forEach((fold) => { fold.open = false; });
  const reach = () => {
    const fold = /^#[a-z]+$/.test(location.hash) && one(`${location.hash} > details.fold`);
    if (fold) fold.open = true;
  };
  addEventListener("hashchange", reach);
  all(".bar nav a").forEach((link) => link.addEventListener("click", () => {
    const fold = one(`${link.hash} > details.fold`);
    if (fold) fold.open = true;
  }));
  reach();

  // -------------------------------------------------------------------- print

  // Paper shows what a reader could open: all sections and figures, in the light theme and the width of a page.
  addEventListener("beforeprint", () => {
    if (printing) return;
    printing = { theme: document.documentElement.dataset.theme, closed: all("details:not([open])") };
    document.documentElement.dataset.theme = "light";
    printing.closed.forEach((fold) => { fold.open = true; });
    redrawAll("section .figure");
  });
  addEventListener("afterprint", () => {
    if (!printing) return;
    const { theme, closed } = printing;
    printing = null;
    if (theme) document.documentElement.dataset.theme = theme;
    else delete document.documentElement.dataset.theme;
    themed();
    all("section .figure .js-plotly-plot, section .figure.js-plotly-plot").forEach((place) => Plotly.Plots.resize(place));
    closed.forEach((fold) => { fold.open = false; });
  });

  // ----------------------------------------------------------------- choices

  function redraw(section, name) {
    const place = one(`${section} .figure`);
    place.dataset.figure = name;
    if (place.dataset.drawn) draw(place, name);
  }
  one("#map-colour")?.addEventListener("change", (event) => redraw("#samples", `map ${event.target.value}`));
  one("#timeline-choice")?.addEventListener("change", (event) => redraw("#timeline", `timeline-${event.target.value}`));
})();
