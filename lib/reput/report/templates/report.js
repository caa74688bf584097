"use strict";
// Sorting, filtering, and reading a chart off. The page says all it has to say without this.
(() => {
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
    input.placeholder = "Filter these rows";
    input.setAttribute("aria-label", "Filter: " + table.caption.textContent.trim());
    input.addEventListener("input", () => {
      const wanted = input.value.toLowerCase().split(/\s+/).filter(Boolean);
      let shown = 0;
      for (const row of rows) {
        const text = row.textContent.toLowerCase();
        row.hidden = !wanted.every((word) => text.includes(word));
        shown += !row.hidden;
      }
      said.textContent = wanted.length ? `${shown.toLocaleString("en")} of ${rows.length.toLocaleString("en")} rows` : "";
    });
    tools.append(input, said);
    table.closest(".scroll").before(tools);
  }

  const facts = JSON.parse(document.getElementById("reput-facts").textContent);
  const traffic = facts.traffic;
  for (const slices of document.querySelectorAll("g.slices")) {
    const what = slices.dataset.what;
    const readout = document.getElementById("readout-" + what);
    const rows = Array.from(slices.children);
    const hint = "Point at a bar to read it off.";
    const show = (number) => {
      const at = rows[number].textContent.split(": ")[0];
      const parts = traffic.series
        .map((one) => [one.topic === null ? "others" : one.topic, one[what][number]])
        .filter((one) => one[1])
        .sort((a, b) => b[1] - a[1])
        .map((one) => `${one[0]} ${one[1].toLocaleString("en")}`);
      const total = traffic.series.reduce((sum, one) => sum + one[what][number], 0);
      readout.textContent = `${at} ${facts.zone}: ${total.toLocaleString("en")} ${what}${parts.length ? " \u2014 " + parts.join(" \u00b7 ") : ""}`;
    };
    slices.addEventListener("pointermove", (event) => {
      const number = rows.indexOf(event.target);
      if (number >= 0) show(number);
    });
    slices.addEventListener("pointerdown", (event) => {
      const number = rows.indexOf(event.target);
      if (number >= 0) show(number);
    });
    slices.addEventListener("pointerleave", () => { readout.textContent = hint; });
    readout.textContent = hint;
  }
})();
