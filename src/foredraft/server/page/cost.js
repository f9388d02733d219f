
// --- the cost curve: V(n) in plain forwards, and what rounds of n rows brought

const TICKS = [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256];
const COST_HEIGHT = 260;
const MARGIN = { left: 34, right: 14, top: 10, bottom: 34 };

/** {depth: {rows: ms}} as [{depth, single, points: [[rows, ratio], …]}], shallowest first. */
function curvesOf(milliseconds) {
  return Object.entries(milliseconds ?? {})
    .map(([depth, sizes]) => {
      const points = Object.entries(sizes).map(([rows, ms]) => [Number(rows), ms / sizes["1"]]);
      return { depth: Number(depth), single: sizes["1"], points: points.sort((a, b) => a[0] - b[0]) };
    })
    .filter((curve) => curve.single > 0)
    .sort((a, b) => a.depth - b.depth);
}

/** The curve of the depth that is nearest to the one at hand. */
function nearestCurve(curves, depth) {
  const away = (curve) => Math.abs(Math.log2(curve.depth / Math.max(1, depth ?? 1)));
  return curves.reduce((best, curve) => (away(curve) < away(best) ? curve : best));
}

/** What rounds of one request brought: rows → {rounds, tokens}. Those of several share their forward. */
function broughtBy(rounds) {
  const found = new Map();
  for (const round of rounds) {
    if (round.requests !== 1 || round.rows !== 1 + round.drafted || !round.drafted) continue;
    const sum = found.get(round.rows) ?? { rounds: 0, tokens: 0 };
    found.set(round.rows, { rounds: sum.rounds + 1, tokens: sum.tokens + round.committed });
  }
  return found;
}

/** Both axes are logarithmic: V(n) = n is a straight line, and 1 to 64 rows fit beside each other. */
function costScale(width, curves, brought) {
  const rows = [...curves.flatMap((curve) => curve.points.map((point) => point[0])), ...brought.keys()];
  const heights = [
    ...curves.flatMap((curve) => curve.points.map((point) => point[1])),
    ...[...brought.values()].map((sum) => sum.tokens / sum.rounds),
  ];
  const most = Math.max(8, ...rows);
  const [right, top] = [1.1 * most, 1.15 * Math.max(8, ...heights)];
  const [across, up] = [width - MARGIN.left - MARGIN.right, COST_HEIGHT - MARGIN.top - MARGIN.bottom];
  const share = (value, low, high) => Math.log(value / low) / Math.log(high / low);
  return {
    width, most, right, top,
    x: (n) => MARGIN.left + across * share(n, 0.9, right),
    y: (ratio) => MARGIN.top + up * (1 - share(Math.max(ratio, 0.7), 0.7, top)),
    rowsAt: (x) => 0.9 * (right / 0.9) ** ((x - MARGIN.left) / across),
  };
}

function costAxes(scale) {
  const [bottom, right] = [COST_HEIGHT - MARGIN.bottom, scale.width - MARGIN.right];
  const sparse = scale.width < 420 ? (tick) => Number.isInteger(Math.log2(tick)) : () => true;
  const vertical = TICKS.filter((tick) => tick <= scale.most && sparse(tick)).map((tick) =>
    svg("g", {},
      svg("line", { class: "grid", x1: scale.x(tick), x2: scale.x(tick), y1: MARGIN.top, y2: bottom }),
      svg("text", { x: scale.x(tick), y: bottom + 14, "text-anchor": "middle" }, String(tick))),
  );
  const horizontal = TICKS.filter((tick) => tick <= scale.top && Number.isInteger(Math.log2(tick))).map((tick) =>
    svg("g", {},
      svg("line", { class: "grid", x1: MARGIN.left, x2: right, y1: scale.y(tick), y2: scale.y(tick) }),
      svg("text", { x: MARGIN.left - 6, y: scale.y(tick) + 4, "text-anchor": "end" }, `${tick}×`)),
  );
  const label = svg("text", { x: right, y: COST_HEIGHT - 4, "text-anchor": "end" }, "n: tokens in one forward");
  return [...vertical, ...horizontal, label];
}

/** The line V(n) = n, above which a draft does not pay even if all of it is accepted. */
function evenLine(scale) {
  const end = Math.min(scale.right, scale.top);
  const [from, to] = [[scale.x(0.9), scale.y(0.9)], [scale.x(end), scale.y(end)]];
  const corner = [[to[0], MARGIN.top], [from[0], MARGIN.top]];
  return [
    svg("path", { class: "shade", d: `${path([from, to, ...corner])}Z` }),
    svg("path", { class: "even", d: path([from, to]) }),
  ];
}

/** The picture. `picked`: the rows that are pointed at, or null; `pick` hears of others. */
function costPlot(width, curves, main, brought, picked, pick) {
  const scale = costScale(width, curves, brought);
  const line = (curve) => path(curve.points.map(([rows, ratio]) => [scale.x(rows), scale.y(ratio)]));
  const others = curves.filter((curve) => curve !== main).map((curve) => svg("path", { class: "other", d: line(curve) }));
  const points = main.points.map(([rows, ratio]) =>
    svg("circle", { class: "point", cx: scale.x(rows), cy: scale.y(ratio), r: rows === picked ? 5 : 3 }));
  const dots = [...brought].map(([rows, { rounds, tokens }]) =>
    svg("circle", {
      class: "brought", cx: scale.x(rows), cy: scale.y(tokens / rounds), r: Math.min(9, 3 + Math.sqrt(rounds)),
    }));
  const x = picked === null ? null : scale.x(picked);
  const cursor = x === null ? null
    : svg("line", { class: "picked", x1: x, x2: x, y1: MARGIN.top, y2: COST_HEIGHT - MARGIN.bottom });
  const words = `V(n) in plain forwards: ${main.points.map(([rows, ratio]) => `V(${rows}) = ${number(ratio)}`).join(", ")}`;
  const drawn = picture(width, COST_HEIGHT, words, ...evenLine(scale), ...costAxes(scale), cursor, ...others,
    svg("path", { class: "curve", d: line(main) }), ...points, ...dots);
  const known = [...new Set([...main.points.map((point) => point[0]), ...brought.keys()])];
  pointing(drawn, width, (at) => {
    const wanted = at === null ? null : scale.rowsAt(at);
    const away = (rows) => Math.abs(Math.log(rows / wanted));
    pick(wanted === null ? null : known.reduce((best, rows) => (away(rows) < away(best) ? rows : best)));
  });
  return drawn;
}

function costLegend(main, others, anyBrought) {
  const depth = `${number(main.depth, 0)} tokens of context (V(1) = ${number(main.single)} ms)`;
  return html("ul", { class: "legend" },
    entry(svg("path", { class: "curve", d: "M0 5H16" }), `V(n)/V(1) at about ${depth}: break-even`),
    others.length
      ? entry(svg("path", { class: "other", d: "M0 5H16" }), `at ${others.map((curve) => number(curve.depth, 0)).join(", ")}`)
      : null,
    entry(svg("path", { class: "even", d: "M0 5H16" }), "all accepted"),
    entry(svg("rect", { class: "shade", width: 16, height: 10 }), "never pays"),
    anyBrought
      ? entry(svg("circle", { class: "brought", cx: 8, cy: 5, r: 5 }), "tokens that lately came of n: above the curve it paid")
      : null,
  );
}

/** What the picture says of `rows`, in words; of the whole curve if none is picked. */
function costWords(main, brought, rows) {
  if (rows === null) return "Point at the curve to read it.";
  const found = main.points.find((point) => point[0] === rows);
  const sum = brought.get(rows);
  const came = sum ? ` Lately it brought ${number(sum.tokens / sum.rounds)} tokens on average (${counted(sum.rounds, "round")}).` : "";
  if (!found) return `A forward of ${rows} tokens has not been measured at this depth.${came}`;
  const cost = `A forward of ${counted(rows, "token")} takes ${number(found[1] * main.single)} ms, ${number(found[1])} × V(1).`;
  if (rows === 1) return `${cost} That is plain decoding.`;
  const needed = Math.max(0, found[1] - 1);
  const pays = needed < rows - 1
    ? `A draft of ${rows - 1} pays from ${number(needed)} accepted tokens on (${percent(needed, rows - 1)}).`
    : `A draft of ${rows - 1} does not pay even if all of it is accepted.`;
  return `${cost} ${pays}${came}`;
}
