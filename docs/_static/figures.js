/* Draws the figures of a page, in the colours of its theme, and again when the theme or the width changes. */
(() => {
  const dark = () => {
    const chosen = document.body.dataset.theme;
    return chosen === "dark" || (chosen !== "light" && matchMedia("(prefers-color-scheme: dark)").matches);
  };

  // Names of channels have no room on a phone: only every second or third of them is shown there.
  const thinned = (axis, width) => {
    if (!axis.ticktext) return axis;
    const [low, high] = axis.domain ?? [0, 1];
    const every = Math.ceil((14 * axis.ticktext.length) / ((high - low) * width));
    const kept = (list) => [...list].filter((_, number) => number % every === 0);
    return every > 1 ? { ...axis, ticktext: kept(axis.ticktext), tickvals: kept(axis.tickvals) } : axis;
  };

  const themed = (layout, width) => {
    const style = getComputedStyle(document.body);
    const ground = style.getPropertyValue("--color-background-primary").trim() || "white";
    const ink = style.getPropertyValue("--color-foreground-primary").trim() || "black";
    const grid = dark() ? "#33373d" : "#e6e8ec";
    const result = structuredClone(layout);
    Object.assign(result, { paper_bgcolor: ground, plot_bgcolor: ground, autosize: true });
    result.font = { size: width < 500 ? 11 : 13, ...result.font, color: ink };
    result.margin ??= { l: 50, r: 10, t: 30, b: 45 };
    result.legend ??= { orientation: "h", y: 1.02, yanchor: "bottom", x: 0 };
    for (const name of Object.keys(result).filter((key) => /^[xy]axis/.test(key))) {
      result[name] = { ...result[name], gridcolor: grid, zerolinecolor: dark() ? "#555b64" : "#c3c8d0" };
    }
    for (const name of Object.keys(result).filter((key) => /^xaxis/.test(key))) {
      result[name] = thinned(result[name], width);
    }
    for (const name of ["xaxis", "yaxis"]) {
      result[name] = { ...result[name], gridcolor: grid };
    }
    result.shapes = result.shapes?.map((shape) => (shape.name === "ground" ? { ...shape, fillcolor: ground } : shape));
    return result;
  };

  // What is black by default, and names on a map of the head, whose ground stays light.
  const readable = (trace) => {
    const ink = getComputedStyle(document.body).getPropertyValue("--color-foreground-secondary").trim() || "black";
    const result = { ...trace };
    if (trace.error_x) result.error_x = { ...trace.error_x, color: ink };
    if (trace.mode === "markers+text") result.textfont = { ...trace.textfont, color: "#444" };
    return result;
  };

  const figures = [...document.querySelectorAll("script[data-figure]")].map((script) => ({
    place: document.getElementById(script.dataset.figure),
    ...JSON.parse(script.textContent),
  }));
  const options = { responsive: true, displaylogo: false, displayModeBar: false, scrollZoom: false };
  const draw = () => figures.forEach(({ place, data, layout }) => {
    Plotly.react(place, data.map(readable), themed(layout, place.clientWidth), options);
  });

  draw();
  new MutationObserver(draw).observe(document.body, { attributeFilter: ["data-theme"] });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
})();
