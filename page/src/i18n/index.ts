/** Texts and numbers in the reader's language. */

import { computed, signal } from "@preact/signals";
import { forGood } from "../kept";
import en from "../locales/en";

export const LANGUAGES = { en: "English", ko: "한국어", ja: "日本語", zh: "中文", de: "Deutsch" } as const;
export type Language = keyof typeof LANGUAGES;

type Catalogue = typeof en;
type Form = "zero" | "one" | "two" | "few" | "many";
type Name<K> = K extends `${string}.${Form}` ? never : K & string;
/** "view.name" of every text there is; forms for some counts have no key of their own. */
export type Key = { [V in keyof Catalogue]: `${V & string}.${Name<keyof Catalogue[V]>}` }[keyof Catalogue];
export type Values = Record<string, string | number>;
type Texts = Record<string, Record<string, string>>;

const KEPT_AS = "foredraft-language";
const LOADERS: Record<Exclude<Language, "en">, () => Promise<{ default: Texts }>> = {
  ko: () => import("../locales/ko"),
  ja: () => import("../locales/ja"),
  zh: () => import("../locales/zh"),
  de: () => import("../locales/de"),
};

const texts = signal<Texts>(en);
export const language = signal<Language>("en");

/** How numbers and times are written: as in the reader's country, if the browser names one with this language. */
const locale = computed(
  () => navigator.languages.find((tag) => tag.split("-")[0] === language.value) ?? language.value,
);

/** The text of a key, with `{name}` replaced by values. Numbers are written as the language writes them.
 *
 * A text with `count` among its values may have forms for some counts beside its usual one, such as `name.one`: those
 * of `Intl.PluralRules`.
 */
export function t(key: Key, values: Values = {}): string {
  const [view = "", name = ""] = split(key);
  const count = values.count;
  const form = typeof count === "number" ? `${name}.${plurals.value.select(count)}` : name;
  const found = texts.value[view]?.[form] ?? texts.value[view]?.[name] ?? (en as Texts)[view]?.[name] ?? key;
  return found.replace(/\{(\w+)\}/g, (whole, name: string) => {
    const value = values[name];
    return value === undefined ? whole : typeof value === "number" ? number(value) : value;
  });
}

function split(key: string): [string, string] {
  const at = key.indexOf(".");
  return [key.slice(0, at), key.slice(at + 1)];
}

const plurals = computed(() => new Intl.PluralRules(locale.value));
const formats = new Map<string, Intl.NumberFormat>();

/** A number, with at most `digits` decimals. */
export function number(value: number, digits = 2): string {
  return format({ maximumFractionDigits: digits }).format(value);
}

/** A share of 1 as per cent; with a decimal more near 0 and 1, where it would be all or nothing. */
export function percent(value: number, digits = 0): string {
  const extreme = (value > 0 && value < 0.01) || (value > 0.99 && value < 1);
  return format({ style: "percent", maximumFractionDigits: digits + (extreme ? 1 : 0) }).format(value);
}

/** "1.9×" */
export function times(value: number): string {
  return `${number(value)}×`;
}

/** Milliseconds, or seconds from one second on. */
export function duration(ms: number): string {
  const [value, unit] = ms < 1000 ? [ms, "millisecond"] : [ms / 1000, "second"];
  return format({ style: "unit", unit, maximumSignificantDigits: 3 }).format(value);
}

const UNITS = ["byte", "kilobyte", "megabyte", "gigabyte", "terabyte"];

/** Bytes in powers of 1000, as file managers and the command line count them. */
export function bytes(value: number): string {
  let unit = 0;
  for (; value >= 1000 && unit < UNITS.length - 1; unit++) value /= 1000;
  // "5 bytes", where the short form is "5 byte".
  const unitDisplay = unit === 0 ? "long" : "short";
  return format({ style: "unit", unit: UNITS[unit], unitDisplay, maximumSignificantDigits: 3 }).format(value);
}

const timeFormats = new Map<string, Intl.DateTimeFormat>();

/** Date and time of a Unix time in seconds; only the time if it is today. "–" for what is no time. */
export function moment(seconds: number): string {
  const at = new Date(seconds * 1000);
  if (Number.isNaN(at.getTime())) return "–";
  const today = at.toDateString() === new Date().toDateString();
  return timeFormat({ ...(today ? {} : { dateStyle: "medium" }), timeStyle: "medium" }).format(at);
}

/** How times are written; made once for each language and form, which takes long. */
export function timeFormat(options: Intl.DateTimeFormatOptions): Intl.DateTimeFormat {
  const key = locale.value + JSON.stringify(options);
  const found = timeFormats.get(key) ?? new Intl.DateTimeFormat(locale.value, options);
  timeFormats.set(key, found);
  return found;
}

function format(options: Intl.NumberFormatOptions): Intl.NumberFormat {
  const key = locale.value + JSON.stringify(options);
  const found = formats.get(key) ?? new Intl.NumberFormat(locale.value, options);
  formats.set(key, found);
  return found;
}

let turn = 0;

/** Use a language, and remember it if the reader chose it. The last choice wins, whichever is loaded first. Throws
 * TypeError if its texts do not come. */
export async function chooseLanguage(chosen: Language, keep: boolean): Promise<void> {
  const mine = ++turn;
  const found = chosen === "en" ? en : (await LOADERS[chosen]()).default;
  if (mine !== turn) return;
  texts.value = found;
  language.value = chosen;
  document.documentElement.lang = chosen;
  document.documentElement.dir = "ltr"; // as all of LANGUAGES are written
  if (keep) forGood.set(KEPT_AS, chosen);
}

/** The language chosen before, else the first of the browser's that there is. */
export function preferred(): Language {
  const kept = forGood.get(KEPT_AS);
  const wanted = [...(kept ? [kept] : []), ...navigator.languages];
  const known = wanted.map((tag) => tag.split("-")[0] ?? "").find((tag) => Object.hasOwn(LANGUAGES, tag));
  return (known ?? "en") as Language;
}
