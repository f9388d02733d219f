
// --- one model's section. It stays in the page from look to look, so that what is open stays open.

const RECENT_KEPT = 12;

class ModelView {
  constructor(name) {
    this.name = name;
    this.section = html("section", { "aria-label": name });
    this.rounds = [];
    this.looks = [];
    this.rates = [];
    this.recent = [];
    this.picked = { rows: null, round: null };
    this.details = html("details", {}, html("summary", {}, "The last decisions as a table"));
    this.details.addEventListener("toggle", () => this.draw());
    this.made = null;
  }

  /** What /v1/models says of it, and /v1/speculation if it is loaded; `at` in ms, on the page's clock. */
  look(entry, state, at) {
    this.entry = entry;
    this.state = state;
    if (!state) {
      this.rounds = this.looks = this.rates = this.recent = [];
    } else {
      const last = this.rounds.length ? this.rounds[this.rounds.length - 1].number : 0;
      this.rounds = withRounds(this.rounds, state.decisions);
      this.looks = [...this.looks, { at, tokens: state.tokens_generated }].filter((look) => at - look.at <= 4 * RATE_MS);
      this.rates = [...this.rates, { at, rate: rateOf(this.looks) }].filter((rate) => at - rate.at <= SPARK_MS);
      const newest = this.rounds.length ? this.rounds[this.rounds.length - 1].number : 0;
      if (newest < last) this.recent = [];
      if (newest !== last && state.recent) this.recent = [...this.recent, state.recent].slice(-RECENT_KEPT);
    }
    this.draw();
  }

  draw() {
    if (!this.entry) return;
    if (!this.state) {
      this.made = null;
      this.section.replaceChildren(this.head(null), html("p", { class: "dim" }, this.absence()));
      return;
    }
    this.made ??= this.frame();
    const { head, tiles, cost, rounds, drafters, outcomes } = this.made;
    head.replaceChildren(this.head(this.state), ...this.about());
    tiles.replaceChildren(...this.tiles());
    drafters.replaceChildren(...this.drafters());
    outcomes.replaceChildren(...this.outcomes());
    cost.replaceChildren(...this.cost(inside(cost)));
    rounds.replaceChildren(...this.timeline(inside(rounds)));
    this.details.hidden = !this.rounds.length;
    this.details.replaceChildren(this.details.firstChild, ...(this.details.open ? [this.table()] : []));
  }

  /** The section's places, which `draw` fills. */
  frame() {
    const made = {
      head: html("div"), tiles: html("div", { class: "tiles" }), rounds: html("div"),
      cost: html("figure"), drafters: html("figure"), outcomes: html("figure"),
    };
    const wide = html("figure", { class: "wide" }, made.rounds, this.details);
    const side = html("div", { class: "side" }, made.drafters, made.outcomes);
    this.section.replaceChildren(made.head, made.tiles, html("div", { class: "plots" }, wide, made.cost, side));
    return made;
  }

  head(state) {
    const quiet = !this.rates.length || this.rates[this.rates.length - 1].rate === 0;
    const idle = state && quiet && !state.requests.running && !state.requests.waiting;
    const drafting = state && !idle && state.reason === null;
    const badge = !state ? "not loaded" : idle ? "idle" : drafting ? "drafting" : "not drafting";
    return html("div", { class: "head" }, html("h2", {}, this.name), html("span", { class: `badge ${drafting ? "on" : "off"}` }, badge));
  }

  absence() {
    return this.entry.loaded ? "It has just been loaded." : "It is loaded when somebody first asks for it.";
  }

  about() {
    const { meta, max_model_len: context } = this.entry;
    const facts = meta ? [
      meta.architecture, meta.quantization, meta.parameters ? `${number(meta.parameters / 1e6)} M parameters` : null,
      bytes(meta.size_bytes), `${number(context, 0)} tokens of context`,
    ].filter(Boolean).join(" · ") : "";
    const { configured, reason, exact, exact_reason: why, notes } = this.state;
    const doing = reason === null ? `Speculation: ${configured}.` : `Speculation: ${configured}. Nothing is drafted just now: ${reason}.`;
    const bytesSame = exact ? "Speculation changes no byte of the answers" : "Answers may differ from plain decoding in their bytes, not in their distribution";
    return [
      html("p", { class: "dim" }, facts),
      html("p", {}, doing),
      html("p", { class: "dim" }, why ? `${bytesSame}: ${why}.` : `${bytesSame}.`),
      notes.length ? html("ul", { class: "notes" }, ...notes.map((note) => html("li", {}, note))) : null,
    ].filter(Boolean);
  }

  tiles() {
    const { requests, kv_cache_tokens: cells, drafters } = this.state;
    const rate = this.rates[this.rates.length - 1].rate;
    const all = Object.values(drafters);
    const [drafted, accepted] = ["drafted", "accepted"].map((name) => all.reduce((sum, each) => sum + each[name], 0));
    const waiting = `${number(requests.waiting, 0)} waiting · ${number(cells, 0)} tokens in the KV cache`;
    const share = drafted ? `${number(accepted, 0)} of ${number(drafted, 0)} draft tokens` : "no draft has been verified yet";
    return [
      tile(number(requests.running, 0), "running", waiting),
      tile(number(rate, rate < 100 ? 1 : 0), "tokens/s", "now, and in the last 2 minutes", sparkline(this.rates)),
      this.speedup(),
      tile(drafted ? percent(accepted, drafted) : "–", "accepted", share),
    ];
  }

  /** The estimated speedup of the last looks, each by the time its rounds took. */
  speedup() {
    const known = this.recent.filter((each) => each.estimated_speedup !== null);
    const spent = known.reduce((sum, each) => sum + each.ms, 0);
    const gained = known.reduce((sum, each) => sum + each.ms * each.estimated_speedup, 0);
    if (spent) {
      const noise = gained === spent ? ": the difference is within noise" : "";
      return tile(`${number(gained / spent, 2)} ×`, "", `estimated speedup over plain decoding, lately${noise}`);
    }
    const why = this.recent.length ? "no plain rounds to compare with yet" : (this.state.reason ?? "no round has decoded yet");
    return tile("–", "", `estimated speedup: ${why}`);
  }

  drafters() {
    const rows = Object.entries(this.state.drafters).sort((a, b) => b[1].accepted - a[1].accepted);
    if (!rows.length) return [html("h3", {}, "Drafters"), html("p", { class: "dim" }, `None was asked: ${this.state.reason ?? "no round has decoded yet"}.`)];
    const extra = { class: "extra" };
    const heads = [[extra, "drafts"], [{}, "drafted"], [{}, "accepted"], [{}, ""], [extra, "time"]]
      .map(([attributes, text]) => html("th", attributes, text));
    const body = rows.map(([name, { drafts, drafted, accepted, ms }]) => html("tr", {},
      html("td", { class: "text" }, name),
      html("td", extra, number(drafts, 0)),
      html("td", {}, number(drafted, 0)),
      html("td", {}, number(accepted, 0)),
      html("td", {}, drafted ? shareBar(accepted / drafted) : ""),
      html("td", extra, ms < 1000 ? `${number(ms, 0)} ms` : `${number(ms / 1000)} s`)));
    const table = html("table", {}, html("thead", {}, html("tr", {}, html("th", { class: "text" }, "name"), ...heads)), html("tbody", {}, ...body));
    return [html("h3", {}, "Drafters since it was loaded"), html("div", { class: "scroll" }, table)];
  }

  outcomes() {
    const found = outcomesOf(this.rounds);
    if (!found.length) return [html("h3", {}, "What was decided"), html("p", { class: "dim" }, this.noRounds())];
    const most = found[0][1];
    const body = found.map(([what, count]) => html("tr", {},
      html("td", { class: "text why" }, what), html("td", {}, number(count, 0)), html("td", {}, shareBar(count / most))));
    return [
      html("h3", {}, `What was decided in ${counted(this.rounds.length, "round")}`),
      html("table", {}, html("tbody", {}, ...body)),
    ];
  }

  noRounds() {
    return this.state.reason === null ? "No round has decoded yet." : `Nothing to decide: ${this.state.reason}.`;
  }

  cost(width) {
    const title = html("h3", {}, "What a forward of n tokens costs");
    const curves = curvesOf(this.state.cost_curve_ms);
    if (!curves.length) {
      const why = this.state.cost_curve_ms ? "Nothing has been measured yet: the curve comes with the first answer."
        : "No curve: only with speculate = auto are costs measured and drafts weighed against them.";
      return [title, html("p", { class: "dim" }, why)];
    }
    const depth = this.recent.length ? this.recent[this.recent.length - 1].depth : null;
    const main = nearestCurve(curves, depth);
    const brought = broughtBy(this.rounds);
    const pick = (rows) => {
      if (rows === this.picked.rows) return;
      this.picked.rows = rows;
      this.draw();
    };
    return [
      title,
      costPlot(width, curves, main, brought, this.picked.rows, pick),
      html("p", { class: "read" }, costWords(main, brought, this.picked.rows)),
      costLegend(main, curves.filter((curve) => curve !== main), brought.size > 0),
    ];
  }

  timeline(width) {
    const title = html("h3", {}, "The last rounds: tokens drafted and accepted");
    if (!this.rounds.length) return [title, html("p", { class: "dim" }, this.noRounds())];
    const pick = (round) => {
      if (round === this.picked.round) return;
      this.picked.round = round;
      this.draw();
    };
    const round = this.rounds.find((each) => each.number === this.picked.round) ?? this.rounds[this.rounds.length - 1];
    return [
      title,
      roundsPlot(width, this.rounds, this.picked.round, pick),
      html("p", { class: "read" }, roundWords(round)),
      roundsLegend(),
    ];
  }

  /** The rounds of the last look, newest first. */
  table() {
    const heads = ["round", "drafted", "accepted", "tokens", "ms"].map((text) => html("th", {}, text));
    const body = this.rounds.slice(-32).reverse().map((round) => html("tr", {},
      ...[round.number, round.drafted, round.accepted, round.committed].map((value) => html("td", {}, number(value, 0))),
      html("td", {}, number(round.ms)),
      html("td", { class: "text why" }, [...round.drafters, ...round.reasons].join("; "))));
    const head = html("tr", {}, ...heads, html("th", { class: "text" }, "drafter, or why none"));
    return html("div", { class: "scroll" }, html("table", {}, html("thead", {}, head), html("tbody", {}, ...body)));
  }
}

function tile(value, unit, text, drawn = null) {
  return html("div", { class: "tile" }, html("b", {}, value, html("small", {}, ` ${unit}`)), html("span", {}, text), drawn);
}

/** The pixels that a picture in this element has from left to right. */
function inside(element) {
  const style = getComputedStyle(element);
  return Math.max(160, element.clientWidth - parseFloat(style.paddingLeft) - parseFloat(style.paddingRight));
}
