"use strict";
// Sortable tables: a press on a heading sorts by what the cells stand for, a second one turns it round.
for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => head.firstChild.addEventListener("click", () => {
    const down = head.getAttribute("aria-sort") === "ascending" ? -1 : 1;
    for (const other of heads) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", down > 0 ? "ascending" : "descending");
    const key = (row) => row.cells[column].dataset.value;
    const order = (a, b) => {
      const [x, y] = [key(a), key(b)];
      if (x === undefined || y === undefined) return (x === undefined) - (y === undefined); // unknown last
      const [p, q] = [Number(x), Number(y)];
      return down * (isNaN(p) || isNaN(q) ? x.localeCompare(y) : p - q);
    };
    const body = table.tBodies[0];
    body.append(...[...body.rows].sort(order));
  }));
}
// The legend hides and shows a method in every plot.
for (const button of document.querySelectorAll("[data-toggle]")) {
  button.addEventListener("click", () => {
    const shown = button.getAttribute("aria-pressed") !== "true";
    button.setAttribute("aria-pressed", shown);
    for (const part of document.querySelectorAll("svg.plot [data-method]"))
      if (part.dataset.method === button.dataset.toggle && part.querySelector("polyline, .m") && !part.querySelector("rect"))
        part.classList.toggle("hidden-method", !shown);
  });
}
// Beneath the pointer: the nearest point of a curve, read back through the plot's scales.
const tip = document.body.appendChild(Object.assign(document.createElement("div"), { id: "tip" }));
const scale = (text) => {
  const [low, high, begin, end, kind] = text.split(" ");
  const [warp, back] = kind === "log" ? [Math.log10, (v) => 10 ** v] : [Number, Number];
  return (at) => back(warp(+low) + (at - begin) / (end - begin) * (warp(+high) - warp(+low)));
};
const amount = (value, bytes) => {
  const units = bytes ? [[1e9, " GB"], [1e6, " MB"], [1e3, " kB"], [1, " B"]] : [[1, " s"], [1e-3, " ms"]];
  const [unit, name] = units.find(([u]) => value >= u) || units[units.length - 1];
  return Number((value / unit).toPrecision(3)).toLocaleString("en") + name;
};
for (const plot of document.querySelectorAll('svg[data-plot^="accuracy"]')) {
  const [x, y, bytes] = [scale(plot.dataset.x), scale(plot.dataset.y), plot.dataset.plot.endsWith("bytes")];
  const points = [...plot.querySelectorAll("polyline")].flatMap((line) =>
    [...line.points].map((point) => ({ px: point.x, py: point.y, of: line.parentNode })));
  plot.addEventListener("pointermove", (event) => {
    const box = plot.getBoundingClientRect(), zoom = plot.viewBox.baseVal.width / box.width;
    const [mx, my] = [(event.clientX - box.left) * zoom, (event.clientY - box.top) * zoom];
    let best = null, least = 30;
    for (const point of points) {
      if (point.of.classList.contains("hidden-method")) continue;
      const away = Math.hypot(point.px - mx, point.py - my);
      if (away < least) [best, least] = [point, away];
    }
    tip.style.display = best ? "block" : "none";
    if (!best) return;
    const { method, seed } = best.of.dataset;
    tip.textContent = `${method === "none" ? "no compression" : method}, seed ${seed}: ` +
      `${(100 * y(best.py)).toFixed(1)}% after ${amount(x(best.px), bytes)}`;
    tip.style.left = Math.max(4, Math.min(event.clientX + 14, innerWidth - 270)) + "px";
    tip.style.top = event.clientY + 16 + "px";
  });
  plot.addEventListener("pointerleave", () => { tip.style.display = "none"; });
}
// On paper nothing can be unfolded.
addEventListener("beforeprint", () => { for (const part of document.querySelectorAll("details")) part.open = true; });
