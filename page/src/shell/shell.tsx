/** The frame of the page: menu, connection, language, colours; and the view that the address names. */

import { effect } from "@preact/signals";
import type { ComponentType } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { hasKey, keepKey, keyWanted } from "../api/http";
import { link } from "../api/live";
import { loadSession, session } from "../api/session";
import icon from "../icon.svg";
import { LANGUAGES, chooseLanguage, language, t } from "../i18n";
import type { Language } from "../i18n";
import { href, route } from "../route";
import { Loading, Problem } from "../ui/basics";
import { chooseTheme, theme } from "../ui/theme";
import type { Theme } from "../ui/theme";
import { VIEWS } from "../views";
import type { View } from "../views";
import { Guard } from "./guard";
import { KeyForm } from "./key_form";

export function Shell() {
  const [error, setError] = useState<unknown>(null);
  const wanted = keyWanted.value;
  useEffect(() => {
    if (wanted === "no" && session.value === null) loadSession().then(() => setError(null), setError);
  }, [wanted]);
  const away = useRef(false);
  useEffect(() => {
    if (link.value === "lost") away.current = true;
    if (link.value !== "live" || !away.current) return;
    away.current = false; // found again, and perhaps another run of the server
    loadSession().then(() => setError(null), setError);
  }, [link.value]);
  const view = VIEWS.find((view) => view.name === route.value[0]) ?? VIEWS[0]!;
  useEffect(() => {
    document.title = `${t(view.title)} · Foredraft`;
  }, [view, language.value]);
  return (
    <>
      <a class="skip" href="#content" onClick={skip}>
        {t("shell.skip")}
      </a>
      <div class="shell">
        <Side shown={view} />
        <main id="content" class={`view-${view.name}`} tabIndex={-1}>
          {wanted !== "no" ? (
            <KeyForm />
          ) : session.value ? (
            <Guard place={route.value.join("/")}>
              <Shown view={view} />
            </Guard>
          ) : error ? (
            <Problem error={error} retry={() => void loadSession().then(() => setError(null), setError)} />
          ) : (
            <Loading />
          )}
        </main>
      </div>
    </>
  );
}

function skip(event: Event): void {
  event.preventDefault(); // the address names the view
  document.getElementById("content")?.focus();
}

function Side(props: { shown: View }) {
  const menu = useRef<HTMLUListElement>(null);
  const [failed, setFailed] = useState<unknown>(null);
  const views = VIEWS.filter((view) => !view.admin || session.value?.admin);
  useEffect(() => {
    // On a phone the menu is one line that scrolls.
    menu.current?.querySelector("[aria-current]")?.scrollIntoView({ block: "nearest", inline: "center" });
  }, [props.shown, views.length]);
  return (
    <header class="side">
      <div class="brand">
        <img src={icon} alt="" />
        Foredraft
      </div>
      <nav aria-label={t("shell.menu")}>
        <ul class="views" ref={menu}>
          {views.map((view) => (
            <li key={view.name}>
              <a
                href={view === props.shown ? href(view.name) : wayBack(view)}
                aria-current={view === props.shown ? "page" : undefined}
              >
                {t(view.title)}
              </a>
            </li>
          ))}
        </ul>
      </nav>
      <div class="foot">
        <span class={`link ${link.value}`} role="status">
          {link.value !== "idle" && t(`shell.${link.value}`)}
        </span>
        {session.value?.recording && <span class="warn">{t("shell.recording")}</span>}
        {session.value && !session.value.admin && <span class="dim">{t("shell.read_only")}</span>}
        <Choice
          label={t("shell.language")}
          value={language.value}
          options={Object.entries(LANGUAGES)}
          choose={(chosen) => {
            setFailed(null);
            chooseLanguage(chosen as Language, true).catch(setFailed);
          }}
        />
        {failed !== null && <Problem error={failed} />}
        <Choice
          label={t("shell.theme")}
          value={theme.value}
          options={[
            ["auto", t("shell.theme_auto")],
            ["light", t("shell.theme_light")],
            ["dark", t("shell.theme_dark")],
          ]}
          choose={(chosen) => chooseTheme(chosen as Theme)}
        />
        <a href="docs">{t("shell.docs")}</a>
        {hasKey() && (
          <button type="button" class="quiet" onClick={() => (keepKey(null), location.reload())}>
            {t("shell.key_forget")}
          </button>
        )}
        <span class="dim">{session.value?.version}</span>
      </div>
    </header>
  );
}

/** The parts of the address that a view had when it was on screen last. */
const left = new Map<string, string[]>();
effect(() => {
  const [name = ""] = route.value;
  left.set(name || VIEWS[0]!.name, route.value);
});

function wayBack(view: View): string {
  return href(...((view.returns && left.get(view.name)) || [view.name]));
}

function Choice(props: {
  label: string;
  value: string;
  options: [string, string][];
  choose: (chosen: string) => void;
}) {
  return (
    <select
      aria-label={props.label}
      value={props.value}
      onChange={(event) => props.choose(event.currentTarget.value)}
    >
      {props.options.map(([value, text]) => (
        <option key={value} value={value}>
          {text}
        </option>
      ))}
    </select>
  );
}

/** A view, loaded when it is first shown. */
function Shown(props: { view: View }) {
  const [loaded, setLoaded] = useState<{ view: View; component: ComponentType } | null>(null);
  const [error, setError] = useState<unknown>(null);
  useEffect(() => {
    let wanted = true; // the reader may go on before it comes
    setError(null);
    props.view.load().then(
      (module) => wanted && setLoaded({ view: props.view, component: module.default }),
      (failed: unknown) => wanted && setError(failed),
    );
    return () => {
      wanted = false;
    };
  }, [props.view]);
  if (error) return <Problem error={error} retry={() => location.reload()} />;
  if (loaded?.view !== props.view) return <Loading />;
  const Component = loaded.component;
  return <Component />;
}
