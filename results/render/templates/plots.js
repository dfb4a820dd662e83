// Plots are SVG in the colours of the style sheet, so that a change of theme and the printed page need no new drawing.
const colour = (name) => `var(--${name})`;
const plotTheme = {
  aria: false,
  background: "transparent",
  font: "system-ui, sans-serif",
  view: { stroke: null },
  range: { category: [1, 2, 3, 4, 5, 6, 7, 8].map((number) => colour(`c${number}`)) },
  axis: {
    labelColor: colour("ink"), titleColor: colour("soft"), gridColor: colour("line"), domainColor: colour("line"),
    tickColor: colour("line"), labelFontSize: 12, titleFontSize: 12, titleFontWeight: "normal", labelLimit: 1000,
    labelFlush: false, // a first label that is pushed inwards touches the second
  },
  axisX: { labelSeparation: 6 },
  axisXQuantitative: { tickCount: 8 },
  legend: { labelColor: colour("ink"), titleColor: colour("soft"), orient: "top", labelFontSize: 12, labelLimit: 400, columns: 4 },
  header: { labelColor: colour("ink"), titleColor: colour("soft") },
  title: { color: colour("ink"), anchor: "start", fontSize: 13 },
  text: { color: colour("ink") }, rule: { color: colour("ink") },
  bar: { color: colour("c1") }, line: { color: colour("c1") }, point: { color: colour("c1") }, area: { color: colour("c1") },
};
// On a phone, names of layouts stand in smaller letters, so that something is left for the bars.
const phoneTheme = {
  ...plotTheme,
  axis: { ...plotTheme.axis, labelFontSize: 9, titleFontSize: 10 },
  axisX: { ...plotTheme.axisX, titleAnchor: "end" }, // a long title goes on below the names instead of being cut
  legend: { ...plotTheme.legend, columns: 1, labelFontSize: 10 },
};

// Vega-Lite warns of a height in steps beside a width that follows the page, so that the steps are counted here.
function withHeight(spec) {
  const field = spec.encoding?.y?.field;
  if (!spec.height?.step || !field || !spec.data?.values) return spec;
  return { ...spec, height: spec.height.step * new Set(spec.data.values.map((value) => value[field])).size };
}

// Vega cuts a row of names where the page ends, so that long ones stand in fewer columns.
function themeFor(place, spec) {
  if (document.documentElement.clientWidth < 560) return phoneTheme;
  const color = spec.encoding?.color;
  if (color?.type !== "nominal" || !spec.data?.values) return plotTheme;
  const longest = Math.max(...spec.data.values.map((value) => String(value[color.field]).length));
  const columns = Math.floor(place.clientWidth / (7.5 * longest + 36));
  return { ...plotTheme, legend: { ...plotTheme.legend, columns: Math.max(1, Math.min(4, columns)) } };
}

function drawPlot(place, spec) {
  const sized = "width" in spec || "hconcat" in spec || "vconcat" in spec || "facet" in spec ? spec : { width: "container", ...spec };
  return vegaEmbed(place, withHeight(sized), { renderer: "svg", actions: false, config: themeFor(place, spec), mode: "vega-lite" });
}

// To a screen reader a plot is its caption: its numbers are in a table nearby, and a timeline has thousands of marks.
function hideMarks({ view }) {
  view.container().querySelector("svg").setAttribute("aria-hidden", "true");
}

async function drawPlots() {
  for (const script of document.querySelectorAll("script.spec")) {
    const place = document.getElementById(script.dataset.plot);
    await drawPlot(place, JSON.parse(script.textContent)).then(hideMarks).catch((error) => {
      place.textContent = "This plot could not be drawn; its numbers are in the tables.";
      console.error(error);
    });
  }
  document.documentElement.dataset.plots = "drawn";
}

drawPlots();
