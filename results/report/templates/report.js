"use strict";
// Sort a table by a column: numbers by their value, text by the alphabet; a second click turns the order round.
for (const button of document.querySelectorAll("table.sortable th button")) {
  button.addEventListener("click", () => {
    const head = button.parentElement;
    const table = head.closest("table");
    const column = [...head.parentElement.children].indexOf(head);
    const isNumber = head.classList.contains("number");
    const first = isNumber ? "descending" : "ascending";
    const second = isNumber ? "ascending" : "descending";
    const order = head.getAttribute("aria-sort") === first ? second : first;
    for (const other of head.parentElement.children) other.setAttribute("aria-sort", "none");
    head.setAttribute("aria-sort", order);
    const sign = order === "ascending" ? 1 : -1;
    const value = (row) => {
      const cell = row.children[column];
      return cell.dataset.sort === undefined ? null : parseFloat(cell.dataset.sort.replace("inf", "Infinity"));
    };
    const isAbsent = (number) => number === null || !Number.isFinite(number);
    const rows = [...table.tBodies[0].rows];
    rows.sort((left, right) => {
      if (!isNumber) return sign * left.children[column].textContent.localeCompare(right.children[column].textContent, "en", { numeric: true });
      const [a, b] = [value(left), value(right)];
      if (isAbsent(a) || isAbsent(b)) return isAbsent(a) - isAbsent(b); // absent numbers stay below
      return sign * (a - b);
    });
    table.tBodies[0].append(...rows);
  });
}

// Plots take their colours from the style sheet, so that they follow the light, the dark and the printed page.
function themed(layout) {
  const style = getComputedStyle(document.documentElement);
  const ink = style.getPropertyValue("--ink").trim();
  const line = style.getPropertyValue("--line").trim();
  const isNarrow = document.body.clientWidth < 560;
  const axis = { gridcolor: line, zerolinecolor: line, linecolor: line };
  return {
    ...layout,
    showlegend: layout.showlegend && !(isNarrow && layout.hideLegendWhenNarrow),
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    font: { color: ink, size: isNarrow ? 9 : 12, family: "system-ui, sans-serif" },
    margin: { l: 10, r: 16, t: 34, b: 10 },
    xaxis: { ...layout.xaxis, ...axis }, yaxis: { ...layout.yaxis, ...axis },
    legend: { orientation: "h", y: 1.01, yanchor: "bottom", x: 0, traceorder: "normal", font: { size: isNarrow ? 9 : 11 } },
  };
}

function drawPlots() {
  for (const place of document.querySelectorAll(".plot")) {
    place.style.setProperty("--print-zoom", Math.min(1, 690 / place.clientWidth)); // a page of paper is about 690 px wide
    const figure = JSON.parse(document.getElementById(place.dataset.figure).textContent);
    Plotly.react(place, figure.data, themed(figure.layout), { displaylogo: false, responsive: true, displayModeBar: false });
  }
}

drawPlots();
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawPlots);
matchMedia("print").addEventListener("change", drawPlots);
