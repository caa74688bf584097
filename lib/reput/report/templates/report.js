"use strict";
// Sorting, filtering, and reading a chart off. The page says all it has to say without this.
(() => {
  const facts = JSON.parse(document.getElementById("reput-facts").textContent);
  const words = facts.words;
  const number = (count) => count.toLocaleString("en");
  const value = (row, column) => {
    const cell = row.cells[column];
    const given = cell.dataset.v;
    return given === undefined ? cell.textContent.trim().toLowerCase() : given === "" ? -Infinity : Number(given);
  };
  const sort = (table, head) => {
    const body = table.tBodies[0];
    const column = head.cellIndex;
    const numbers = head.classList.contains("n") || head.dataset.sort === "number";
    const before = head.getAttribute("aria-sort");
    const up = before ? before !== "ascending" : !numbers;
    for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", up ? "ascending" : "descending");
    const rows = Array.from(body.rows, (row, place) => ({ row, place, value: value(row, column) }));
    rows.sort((a, b) => {
      const order = a.value < b.value ? -1 : a.value > b.value ? 1 : 0;
      return (up ? order : -order) || a.place - b.place;
    });
    body.append(...rows.map((one) => one.row));
  };
  for (const table of document.querySelectorAll("table.data")) {
    const rows = table.tBodies[0].rows;
    if (rows.length < 2) continue;
    for (const head of table.tHead.rows[0].cells) {
      const button = document.createElement("button");
      button.type = "button";
      button.append(...head.childNodes);
      button.addEventListener("click", () => sort(table, head));
      head.append(button);
    }
    if (rows.length < 6) continue;
    const tools = document.createElement("div");
    const input = document.createElement("input");
    const said = document.createElement("span");
    tools.className = "tools";
    said.className = "small soft num";
    said.setAttribute("role", "status");
    input.type = "search";
    input.placeholder = words.filter_rows;
    input.setAttribute("aria-label", words.filter + table.caption.textContent.trim());
    input.addEventListener("input", () => {
      const wanted = input.value.toLowerCase().split(/\s+/).filter(Boolean);
      let shown = 0;
      for (const row of rows) {
        const text = row.textContent.toLowerCase();
        row.hidden = !wanted.every((word) => text.includes(word));
        shown += !row.hidden;
      }
      said.textContent = wanted.length ? words.shown.replace("%(shown)s", number(shown)).replace("%(all)s", number(rows.length)) : "";
    });
    tools.append(input, said);
    table.closest(".scroll").before(tools);
  }

  const traffic = facts.traffic;
  for (const slices of document.querySelectorAll("g.slices")) {
    const what = slices.dataset.what;
    const readout = document.getElementById("readout-" + what);
    const rows = Array.from(slices.children);
    const show = (place) => {
      const at = rows[place].textContent.split(": ")[0];
      const parts = traffic.series
        .map((one) => [one.topic === null ? words.others : one.topic, one[what][place]])
        .filter((one) => one[1])
        .sort((a, b) => b[1] - a[1])
        .map((one) => `${one[0]} ${number(one[1])}`);
      const total = traffic.series.reduce((sum, one) => sum + one[what][place], 0);
      readout.textContent = `${at} ${facts.zone}: ${number(total)} ${words[what]}${parts.length ? " \u2014 " + parts.join(" \u00b7 ") : ""}`;
    };
    slices.addEventListener("pointermove", (event) => {
      const place = rows.indexOf(event.target);
      if (place >= 0) show(place);
    });
    slices.addEventListener("pointerdown", (event) => {
      const place = rows.indexOf(event.target);
      if (place >= 0) show(place);
    });
    slices.addEventListener("pointerleave", () => { readout.textContent = words.hint; });
    readout.textContent = words.hint;
  }
})();
