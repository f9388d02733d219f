
// --- rounds: the last decisions as bars, why nothing was drafted, and the rate of tokens

const ROUNDS_KEPT = 400;
const ROUNDS_HEIGHT = 120;
const BAR = 8;

/** A decision of /v1/speculation with its requests taken together. */
function roundOf(decision) {
  const sum = (name) => decision.requests.reduce((total, request) => total + request[name], 0);
  return {
    number: decision.round,
    rows: decision.rows,
    requests: decision.requests.length,
    drafted: sum("drafted"),
    accepted: sum("accepted"),
    committed: sum("committed"),
    ms: Object.values(decision.ms).reduce((total, part) => total + part, 0),
    drafters: [...new Set(decision.requests.map((request) => request.drafter).filter(Boolean))],
    gains: decision.requests.map((request) => request.expected_gain).filter((gain) => gain !== null),
    reasons: [...new Set(decision.requests.map((request) => request.reason).filter(Boolean))],
  };
}

/** The rounds known so far and those of a new look, without those of an engine that is gone. */
function withRounds(known, decisions) {
  const found = decisions.map(roundOf);
  if (!found.length) return [];
  const [first, last] = [found[0].number, found[found.length - 1].number];
  const anew = known.length && known[known.length - 1].number > last;
  const before = anew ? [] : known.filter((round) => round.number < first);
  return [...before, ...found].slice(-ROUNDS_KEPT);
}

/** Bars, newest on the right; where looks were too far apart, a dotted line. `picked`: a round's number. */
function roundsPlot(width, rounds, picked, pick) {
  const [left, bottom] = [22, ROUNDS_HEIGHT - 16];
  const columns = [];
  for (let i = rounds.length - 1; i >= 0 && columns.length < Math.floor((width - left) / BAR); i--) {
    columns.unshift(rounds[i]);
    if (i && rounds[i].number > rounds[i - 1].number + 1) columns.unshift(null);
  }
  const shown = columns.filter(Boolean);
  const most = Math.max(4, ...shown.map((round) => Math.max(round.drafted, round.accepted)));
  const tall = (tokens) => ((bottom - 8) * tokens) / most;
  const start = width - columns.length * BAR;
  const rect = (kind, x, tokens) =>
    svg("rect", { class: kind, x: x + 1, y: bottom - tall(tokens), width: BAR - 2, height: tall(tokens) });
  const bars = columns.map((round, i) => {
    const x = start + i * BAR;
    if (!round) return svg("line", { class: "gap", x1: x + BAR / 2, x2: x + BAR / 2, y1: 8, y2: bottom });
    const marked = round.number === picked
      ? svg("line", { class: "picked", x1: x + BAR / 2, x2: x + BAR / 2, y1: 0, y2: bottom }) : null;
    if (!round.drafted) {
      return svg("g", {}, marked, svg("rect", { class: "none", x: x + 2, y: bottom - 3, width: BAR - 4, height: 3 }));
    }
    return svg("g", {}, marked, rect("drafted", x, round.drafted), rect("accepted", x, round.accepted));
  });
  const axis = [0, Math.round(most / 2), most].map((tokens) => svg("g", {},
    svg("line", { class: "grid", x1: left, x2: width, y1: bottom - tall(tokens), y2: bottom - tall(tokens) }),
    svg("text", { x: left - 5, y: bottom - tall(tokens) + 4, "text-anchor": "end" }, String(tokens))));
  const ends = shown.length ? [
    svg("text", { x: Math.max(left, start), y: ROUNDS_HEIGHT - 2 }, shown.length > 12 ? `round ${number(shown[0].number, 0)}` : ""),
    svg("text", { x: width, y: ROUNDS_HEIGHT - 2, "text-anchor": "end" }, `round ${number(shown[shown.length - 1].number, 0)}`),
  ] : [];
  const total = (name) => shown.reduce((all, round) => all + round[name], 0);
  const words = `${counted(shown.length, "round")}: ${number(total("drafted"), 0)} tokens drafted, ${number(total("accepted"), 0)} accepted`;
  const drawn = picture(width, ROUNDS_HEIGHT, words, ...axis, ...bars, ...ends);
  pointing(drawn, width, (at) => {
    const round = at === null ? null : columns[Math.floor((at - start) / BAR)];
    pick(round ? round.number : null);
  });
  return drawn;
}

function roundsLegend() {
  const box = (kind) => svg("rect", { class: kind, x: 2, width: 12, height: 10 });
  return html("ul", { class: "legend" },
    entry(box("accepted"), "accepted"),
    entry(box("drafted"), "drafted, not accepted"),
    entry(svg("rect", { class: "none", x: 2, y: 7, width: 12, height: 3 }), "nothing drafted"),
  );
}

function roundWords(round) {
  const shared = round.requests > 1 ? ` for ${round.requests} requests` : "";
  const gain = round.gains.length ? ` Expected gain: ${round.gains.map((gain) => `${number(gain, 2)} ×`).join(", ")}.` : "";
  const drafts = round.drafted
    ? `${round.drafters.join(", ")} drafted ${round.drafted}, ${round.accepted} accepted.${gain}`
    : `nothing drafted: ${round.reasons.join("; ") || "no reason was given"}.`;
  return `Round ${number(round.number, 0)}${shared}: ${drafts} ${counted(round.committed, "token")} in ${number(round.ms)} ms.`;
}

/** In how many rounds whose drafts were verified, and why in how many none: [[what, count], …], most first. Each
 * round is counted once: a round of several requests may have several drafters, or reasons, together.
 */
function outcomesOf(rounds) {
  const counts = new Map();
  for (const round of rounds) {
    const whats = [...(round.drafted ? round.drafters : round.reasons)].sort();
    const what = round.drafted ? `drafted by ${whats.join(" and ")}` : whats.join("; ") || "no reason was given";
    counts.set(what, (counts.get(what) ?? 0) + 1);
  }
  return [...counts].sort((a, b) => b[1] - a[1]);
}

/** A bar of `share` (0 to 1) for a table's cell. */
function shareBar(share) {
  return svg("svg", { viewBox: "0 0 100 10", preserveAspectRatio: "none", "aria-hidden": "true" },
    svg("rect", { class: "drafted", width: 100, height: 10, rx: 1 }),
    svg("rect", { class: "accepted", width: 100 * Math.min(1, share), height: 10, rx: 1 }));
}

// --- tokens a second

const RATE_MS = 2500;
const SPARK_MS = 120000;

/** Looks are [{at, tokens}], at in ms: the rate since the last look that is at least RATE_MS old. */
function rateOf(looks) {
  const now = looks[looks.length - 1];
  const before = looks.findLast((look) => look.at <= now.at - RATE_MS) ?? looks[0];
  return now.at > before.at ? (1000 * Math.max(0, now.tokens - before.tokens)) / (now.at - before.at) : 0;
}

/** The last two minutes of [{at, rate}]. */
function sparkline(rates) {
  const [width, height] = [200, 30];
  const now = rates[rates.length - 1].at;
  const most = Math.max(1, ...rates.map((each) => each.rate));
  const points = rates.map(({ at, rate }) => [width * (1 - (now - at) / SPARK_MS), (height - 2) * (1 - rate / most) + 1]);
  const ground = [[points[points.length - 1][0], height], [points[0][0], height]];
  return picture(width, height, `tokens a second in the last two minutes, at most ${number(most)}`,
    svg("path", { class: "area", d: `${path([...points, ...ground])}Z` }),
    svg("path", { class: "spark", d: path(points), "vector-effect": "non-scaling-stroke" }));
}
