// Draws the charts of a table with uPlot: one time axis, one cursor; a drag zooms, a click opens the table then.
"use strict";
(() => {
  const root = document.documentElement;
  const HEIGHT = 150, DAY_S = 86400;
  let zoom = null, drawn = [], count = 0;

  const colour = (name) => getComputedStyle(root).getPropertyValue(`--${name}`).trim();
  const TONES = { good: "done", bad: "failed", calm: "staged" };
  const STEPS = [1, 2, 5].flatMap((n) => [...Array(13).keys()].map((power) => n * 10 ** power)).sort((a, b) => a - b);
  const STEPS_S = [0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, DAY_S, 7 * DAY_S];
  const SIZES = ["B", "kB", "MB", "GB", "TB"];
  const bytes = (value) => {
    const power = Math.min(Math.floor(Math.log10(Math.max(value, 1)) / 3), SIZES.length - 1);
    return `${Number((value / 1000 ** power).toPrecision(3))} ${SIZES[power]}`;
  };
  const number = (value, unit) => {
    if (value == null) return "-";
    if (value === 0) return "0";
    if (unit === "bytes") return bytes(value);
    if (unit !== "seconds") return value.toLocaleString(undefined, { maximumFractionDigits: 0 });
    if (value < 1) return `${Math.round(value * 1000)} ms`;
    if (value < 120) return `${Number(value.toPrecision(3))} s`;
    return value < 7200 ? `${Math.round(value / 60)} min` : `${Number((value / 3600).toPrecision(3))} h`;
  };
  const zone = window.sluiceZone;
  const format = (options) => new Intl.DateTimeFormat(undefined, { ...options, hourCycle: "h23", timeZone: zone });
  const hours = format({ hour: "2-digit", minute: "2-digit" });
  const days = format({ month: "short", day: "numeric" });
  const exact = format({ month: "short", day: "numeric", hour: "2-digit", minute: "2-digit", second: "2-digit" });
  const inZone = (seconds) => uPlot.tzDate(new Date(seconds * 1000), zone);

  const draw = (place, data, chart, sync) => {
    const track = data.tracks[chart.track];
    // Values hold until the next time: a line in steps. Else each is a bar: one batch, or several.
    const held = track.batches.length === 0;
    // What holds at a time is the value before it, not the nearest.
    const heldAt = (i, at) => (!held || i == null || track.times[i] <= at ? i : i > 0 ? i - 1 : null);
    const said = (at, i) => (track.bar_s && i != null ? `${exact.format(new Date((at - track.bar_s / 2) * 1000))}, ${track.batches[i].toLocaleString()} ${track.counted}` : exact.format(new Date(at * 1000)));
    const shown = chart.series.map((each) => each.values);
    // A stacked series is drawn from zero to the sum, beneath the one that it stands on.
    const sums = shown.map((values, n) => values.map((value, i) => (chart.series[n].stacked ? value && value + (shown[n - 1][i] ?? 0) : value) || null));
    const order = chart.series.map((_, n) => n).reverse();
    const paths = held ? uPlot.paths.stepped({ align: 1 }) : uPlot.paths.bars({ size: [0.7, 14], align: 0 });
    const line = { stroke: colour("faint"), grid: { stroke: colour("line"), width: 1 }, ticks: { stroke: colour("line"), width: 1 }, font: "12px system-ui, sans-serif" };
    const limit = chart.limit == null ? [] : [{ label: "target", stroke: colour("failed"), width: 1, dash: [4, 4], points: { show: false }, value: () => number(chart.limit, chart.unit) }];
    const options = {
      width: place.clientWidth, height: HEIGHT, tzDate: inZone,
      cursor: { dataIdx: (_, __, i, at) => heldAt(i, at), sync: { key: sync }, points: { show: false }, drag: { x: true, y: false, dist: 5 } },
      scales: { x: { time: true, min: zoom?.[0] ?? data.start, max: zoom?.[1] ?? data.end }, y: { range: (_, __, max) => [0, Math.max(max ?? 0, chart.limit ?? 0, chart.unit === "seconds" ? 0.001 : 1) * 1.08] } },
      axes: [
        { ...line, values: (_, splits, __, ___, step) => splits.map((at) => (step >= DAY_S ? days : hours).format(new Date(at * 1000))) },
        { ...line, size: 72, incrs: chart.unit === "seconds" ? STEPS_S : chart.unit === "bytes" ? undefined : STEPS, values: (_, splits) => splits.map((value) => number(value, chart.unit)) },
      ],
      series: [
        { value: (_, at, __, i) => (at == null ? "point at the chart" : said(at, i)), label: held ? "since" : track.bar_s ? "from" : "batch" },
        ...order.map((n) => ({ label: chart.series[n].label, ...(held ? { stroke: colour(TONES[chart.series[n].tone]), width: 2 } : { fill: colour(TONES[chart.series[n].tone]) }), paths, points: { show: false }, value: (_, __, ___, i) => (i == null ? "" : number(shown[n][i], chart.unit)) })),
        ...limit,
      ],
      hooks: { setScale: [(plot, key) => { if (key === "x" && plot.status) zoomTo(plot, data); }] },
    };
    const rows = [track.times, ...order.map((n) => sums[n]), ...limit.map(() => track.times.map(() => chart.limit))];
    const plot = new uPlot(options, rows, place);
    // uPlot keeps clicks for itself. What moves is a zoom.
    let pressed = null;
    plot.over.addEventListener("pointerdown", (event) => { pressed = event.clientX; });
    plot.over.addEventListener("pointerup", (event) => {
      const x = event.clientX - plot.over.getBoundingClientRect().left;
      const link = track.links[heldAt(plot.posToIdx(x), plot.posToVal(x, "x")) ?? 0];
      if (link && pressed != null && Math.abs(event.clientX - pressed) < 5) location.href = link;
    });
    return plot;
  };
  // All charts show the same time; a double click shows all of it again.
  const zoomTo = (plot, data) => {
    const { min, max } = plot.scales.x;
    const whole = min === data.start && max === data.end;
    if (zoom?.[0] === min && zoom?.[1] === max) return;
    zoom = whole ? null : [min, max];
    for (const other of drawn) if (other.plot !== plot) other.plot.setScale("x", { min, max });
  };
  const drawAll = () => {
    drawn.forEach((each) => each.plot.destroy());
    drawn = [];
    sized.disconnect();
    for (const box of document.querySelectorAll(".charts")) {
      const data = JSON.parse(box.dataset.charts);
      const sync = `sluice-${count++}`;
      if (!box.checkVisibility()) continue; // in another tab
      box.querySelectorAll(".plot").forEach((place, n) => {
        place.replaceChildren();
        drawn.push({ place, plot: draw(place, data, data.charts[n], sync) });
        sized.observe(place);
      });
    }
  };
  const sized = new ResizeObserver((found) => {
    for (const { target } of found) {
      const plot = drawn.find((each) => each.place === target)?.plot;
      if (plot && plot.width !== target.clientWidth) plot.setSize({ width: target.clientWidth, height: HEIGHT });
    }
  });
  new MutationObserver(drawAll).observe(root, { attributes: true, attributeFilter: ["class"] });
  document.addEventListener("sluice:page", drawAll);
  drawAll();
})();
