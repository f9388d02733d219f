
// --- asking the server, again and again, with the reader's key

const LOOK_MS = 1000;
const IDLE_MS = 2000;
const SLOWEST_MS = 30000;
const MODELS_EVERY = 5;
const PATIENCE_MS = 30000;
const KEPT_AS = "foredraft-key";

const place = Object.fromEntries(
  ["link", "forget", "ask", "key", "refused", "models"].map((id) => [id, document.getElementById(id)]),
);
const views = new Map();
let key = kept();
let turn = 0;
let timer = null;
let looks = 0;
let failures = 0;
let entries = [];

/** The key of this tab, or null; a browser may keep nothing at all. */
function kept() {
  try {
    return sessionStorage.getItem(KEPT_AS);
  } catch {
    return null;
  }
}

function keep(given) {
  key = given;
  try {
    if (given === null) sessionStorage.removeItem(KEPT_AS);
    else sessionStorage.setItem(KEPT_AS, given);
  } catch {
    // It is then kept until the page is left.
  }
}

class Refusal extends Error {
  constructor(message, status, wait) {
    super(message);
    this.status = status;
    this.wait = wait;
  }
}

/** The JSON at a path of this server. Throws Refusal, and what fetch throws. */
async function get(path) {
  const headers = key === null ? {} : { Authorization: `Bearer ${key}` };
  const reply = await fetch(path, { headers, cache: "no-store", signal: AbortSignal.timeout(PATIENCE_MS) });
  if (reply.ok) return reply.json();
  const body = await reply.json().catch(() => null);
  const wait = 1000 * Number(reply.headers.get("Retry-After") ?? 0);
  throw new Refusal(body?.error?.message ?? `The server answered ${reply.status}.`, reply.status, wait);
}

/** Begin anew: what was shown goes, for it was shown to another key. */
function begin() {
  turn += 1;
  clearTimeout(timer);
  views.clear();
  place.models.replaceChildren();
  looks = failures = 0;
  say("Asking the server …", "");
  look();
}

async function look() {
  const mine = turn;
  let wait = IDLE_MS;
  try {
    const list = looks % MODELS_EVERY ? null : await get("v1/models");
    const states = new Map(Object.entries(await get("v1/speculation")));
    if (mine !== turn) return;
    looks += 1;
    failures = 0;
    wait = show(list, states);
  } catch (error) {
    if (mine !== turn) return;
    failures += 1;
    wait = failed(error);
  }
  if (wait !== null && document.visibilityState === "visible") timer = setTimeout(look, wait);
}

/** Draw what was found; returns the ms until the next look. */
function show(list, states) {
  entries = list ? list.data : entries;
  if (entries.some((entry) => entry.loaded !== states.has(entry.id))) looks = 0; // one came or went: ask for its facts
  place.ask.hidden = true;
  place.forget.hidden = key === null;
  place.models.classList.remove("old");
  say("live", "live");
  const order = [...entries].sort((a, b) => Number(states.has(b.id)) - Number(states.has(a.id)));
  for (const name of views.keys()) {
    if (!entries.some((entry) => entry.id === name)) views.delete(name);
  }
  for (const entry of order) {
    if (!views.has(entry.id)) views.set(entry.id, new ModelView(entry.id));
  }
  const sections = order.map((entry) => views.get(entry.id).section);
  if (sections.length !== place.models.children.length || sections.some((each, i) => place.models.children[i] !== each)) {
    place.models.replaceChildren(...sections);
  }
  const at = performance.now();
  for (const entry of order) views.get(entry.id).look(entry, states.get(entry.id) ?? null, at);
  if (!order.length) place.models.replaceChildren(html("p", { class: "card" }, "This server has no models."));
  const running = [...states.values()].reduce((sum, state) => sum + state.requests.running, 0);
  document.title = running ? `(${running}) Foredraft` : "Foredraft";
  return running ? LOOK_MS : IDLE_MS;
}

/** Say what is wrong; returns the ms until the next look, null where only the reader can help. */
function failed(error) {
  if (error instanceof Refusal && error.status === 401) {
    askForKey(key === null ? "" : "The server does not know this key.");
    return null;
  }
  const wait = Math.min(SLOWEST_MS, Math.max(error.wait ?? 0, LOOK_MS * 2 ** Math.min(failures, 5)));
  const what = error instanceof Refusal ? error.message : "The server does not answer.";
  place.models.classList.add("old");
  say(`${what} Asking again in ${number(wait / 1000, 0)} s.`, "trouble");
  return wait;
}

function askForKey(message) {
  keep(null);
  views.clear();
  place.models.replaceChildren();
  document.title = "Foredraft";
  place.forget.hidden = true;
  place.refused.textContent = message;
  place.ask.hidden = false;
  place.key.value = "";
  place.key.focus();
  say("waiting for a key", "");
}

function say(text, kind) {
  if (place.link.textContent !== text) place.link.textContent = text;
  place.link.className = kind;
}

place.ask.addEventListener("submit", (event) => {
  event.preventDefault();
  const given = place.key.value.trim();
  if (!/^[\x21-\x7e]+$/.test(given)) {
    place.refused.textContent = "A key is letters, digits and signs, without spaces.";
    return;
  }
  keep(given);
  place.refused.textContent = "";
  begin();
});

place.forget.addEventListener("click", () => {
  turn += 1;
  clearTimeout(timer);
  askForKey("");
});

document.addEventListener("visibilitychange", () => {
  if (document.visibilityState !== "visible" || !place.ask.hidden) return;
  turn += 1;
  clearTimeout(timer);
  look();
});

window.addEventListener("resize", () => views.forEach((view) => view.draw()));

begin();
