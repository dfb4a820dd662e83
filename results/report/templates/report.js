"use strict";
// Sort a table by a column: numbers by their value, text by the alphabet; a second click turns the order round.
for (const button of document.querySelectorAll("table.sortable th button")) {
  button.addEventListener("click", () => sortBy(button.parentElement));
}

function sortBy(head) {
  const column = head.cellIndex;
  const isNumber = head.classList.contains("number");
  const [first, second] = isNumber ? ["descending", "ascending"] : ["ascending", "descending"];
  const order = head.getAttribute("aria-sort") === first ? second : first;
  for (const other of head.parentElement.children) other.setAttribute("aria-sort", "none");
  head.setAttribute("aria-sort", order);
  const sign = order === "ascending" ? 1 : -1;
  const body = head.closest("table").tBodies[0];
  const rows = [...body.rows];
  rows.sort((left, right) => (isNumber ? compareNumbers : compareTexts)(left.cells[column], right.cells[column], sign));
  body.append(...rows);
}

function compareTexts(left, right, sign) {
  return sign * left.textContent.localeCompare(right.textContent, "en", { numeric: true });
}

function compareNumbers(left, right, sign) {
  const [a, b] = [left, right].map((cell) => Number(cell.dataset.sort));
  const isAbsent = (number) => !Number.isFinite(number);
  if (isAbsent(a) || isAbsent(b)) return isAbsent(a) - isAbsent(b); // absent numbers stay below
  return sign * (a - b);
}

// Show the rows that hold the text in any column, and the chosen value in the columns that offer a choice.
for (const tools of document.querySelectorAll(".tools")) {
  const table = document.getElementById(tools.dataset.table);
  const search = tools.querySelector("input");
  const choices = [...tools.querySelectorAll("select")];
  const filter = () => {
    const wanted = search.value.toLowerCase();
    const chosen = (row) => choices.every((choice) => !choice.value || row.cells[choice.dataset.column].textContent === choice.value);
    const rows = [...table.tBodies[0].rows];
    for (const row of rows) row.hidden = !(chosen(row) && row.textContent.toLowerCase().includes(wanted));
    const shown = rows.filter((row) => !row.hidden).length;
    tools.querySelector("output").textContent = shown === rows.length ? `${shown} rows` : `${shown} of ${rows.length} rows`;
  };
  search.addEventListener("input", filter);
  for (const choice of choices) choice.addEventListener("change", filter);
}

const themeButton = document.getElementById("theme");
const themes = ["system", "light", "dark"];
const themeNow = () => document.documentElement.dataset.theme ?? "system";
const showTheme = () => { themeButton.textContent = `Theme: ${themeNow()}`; };
themeButton.addEventListener("click", () => {
  const next = themes[(themes.indexOf(themeNow()) + 1) % themes.length];
  applyTheme(next);
  remembered.set(next);
  showTheme();
});
showTheme();

// The legend is open where there is room for it; on paper everything is open.
const legendOfLayouts = document.getElementById("legend");
if (legendOfLayouts && document.documentElement.clientWidth >= 900) legendOfLayouts.open = true;
addEventListener("beforeprint", () => { for (const closed of document.querySelectorAll("details:not([open])")) closed.open = true; });
