"use strict";
// Interaction in the report: the figures, the component dialog, folded sections, and printing.
(() => {
  const all = (selector, within = document) => [...within.querySelectorAll(selector)];
  const one = (selector) => document.querySelector(selector);
  const prefersDark = matchMedia("(prefers-color-scheme: dark)");
  let figures = {};
  let printing = null; // the details to close after printing
  const PAGE = 680; // the width of figures on paper

  // ------------------------------------------------------------------ figures

  const sample = document.body.appendChild(document.createElement("span"));
  sample.hidden = true;
  function colour(name) {
    sample.style.color = `var(--${name})`;
    return getComputedStyle(sample).color;
  }

  function style() {
    const axis = {
      gridcolor: colour("line"), zerolinecolor: colour("strong-line"), linecolor: colour("line"), automargin: true,
      ticks: "outside", ticklen: 5, tickcolor: "rgba(0,0,0,0)", title: { standoff: 8, font: { size: 12, color: colour("quiet") } },
    };
    const [low, high] = [colour("low"), colour("high")];
    const diverging = [[0, colour("negative")], [0.5, colour("middle")], [1, colour("positive")]];
    return {
      layout: {
        font: { family: getComputedStyle(document.body).fontFamily, size: 12, color: colour("text") },
        paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", xaxis: axis, yaxis: axis,
        hoverlabel: { bgcolor: colour("raised"), bordercolor: colour("strong-line"), font: { color: colour("text") } },
        colorscale: { sequential: [[0, low], [1, high]], sequentialminus: [[0, high], [1, low]], diverging },
      },
      data: { scatter: [{ error_x: { color: colour("quiet") }, error_y: { color: colour("quiet") } }] },
    };
  }

  function draw(place, name) {
    const figure = figures[name];
    place.hidden = !figure;
    if (!figure) return;
    place.dataset.drawn = name;
    const layout = { template: style(), dragmode: false, autosize: true, ...figure.layout };
    layout.shapes = layout.shapes?.map((shape) => shape.name === "ground" ? { ...shape, fillcolor: colour("ground") } : shape);
    if (printing) layout.width = PAGE;
    else if (innerWidth < 832 && name.startsWith("timeline-")) layout.coloraxis = { ...layout.coloraxis, showscale: false };
    place.style.setProperty("--height", `${layout.height}px`);
    Plotly.react(place, figure.data, layout, { responsive: true, displayModeBar: false });
  }
  const redraw = (selector) => all(selector).forEach((place) => draw(place, place.dataset.drawn ?? place.dataset.figure));
  prefersDark.addEventListener("change", () => redraw("[data-drawn]"));

  const seen = new IntersectionObserver((entries) => {
    for (const { isIntersecting, target } of entries) {
      if (!isIntersecting || target.closest("dialog")) continue;
      seen.unobserve(target);
      draw(target, target.dataset.figure);
    }
  }, { rootMargin: "400px" });

  function unpacked(id) {
    const bytes = Uint8Array.from(atob(one(id).textContent), (letter) => letter.charCodeAt(0));
    return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
  }

  const ready = (async () => {
    const script = document.createElement("script");
    script.textContent = await unpacked("#plotly");
    document.head.append(script);
    figures = JSON.parse(await unpacked("#figures"));
    all(".figure").forEach((place) => seen.observe(place));
    document.documentElement.dataset.ready = "";
  })();

  all("select[data-chooses]").forEach((choice) => choice.addEventListener("change", () => {
    const place = one(`#${choice.dataset.chooses} .figure`);
    place.dataset.figure = choice.value;
    draw(place, choice.value);
  }));

  // --------------------------------------------------------------- components

  const detail = one("#detail");
  const rows = () => all("#component-table tbody tr").filter((row) => getComputedStyle(row).display !== "none");
  let current = null;

  async function open(row) {
    current = row;
    one("#detail-h").textContent = `Component ${row.dataset.component}`;
    one("#detail-words").textContent = row.dataset.sentence;
    if (!detail.open) detail.showModal();
    detail.scrollTop = 0;
    await ready;
    for (const place of all(".figure", detail)) {
      draw(place, place.dataset.figure.replace("detail", `component-${row.dataset.component}`));
      if (place.dataset.figure === "detail-windows") one("#detail-windows").hidden = place.hidden;
    }
  }

  const step = (by) => open(rows().at((rows().indexOf(current) + by) % rows().length));
  one("#component-table")?.addEventListener("click", (event) => {
    const row = event.target.closest("tbody tr");
    if (row) open(row);
  });
  one("#unfold")?.addEventListener("click", (event) => {
    one("#component-table").classList.add("unfolded");
    event.target.remove();
  });
  one("#previous").addEventListener("click", () => step(-1));
  one("#next").addEventListener("click", () => step(1));
  detail.addEventListener("click", (event) => { if (event.target === detail) detail.close(); });
  detail.addEventListener("close", () => current.querySelector("button.open").focus());

  // ----------------------------------------------------- sections and printing

  // On narrow screens, only the first two sections are open initially; a link opens its section.
  if (innerWidth < 832) all(".fold").slice(1).forEach((fold) => { fold.open = false; });
  all(".bar nav a").forEach((link) => link.addEventListener("click", () => {
    const fold = one(`${link.hash} > .fold`);
    if (fold) fold.open = true;
  }));

  // Paper shows what a reader could open: all sections and figures, in the light theme and the width of a page.
  addEventListener("beforeprint", () => {
    if (printing) return;
    printing = all("details:not([open])");
    printing.forEach((fold) => { fold.open = true; });
    document.documentElement.dataset.print = "";
    redraw("section .figure");
  });
  addEventListener("afterprint", () => {
    if (!printing) return;
    const closed = printing;
    printing = null;
    delete document.documentElement.dataset.print;
    redraw("[data-drawn]");
    closed.forEach((fold) => { fold.open = false; });
  });
})();
