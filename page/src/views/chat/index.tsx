/** Chat: conversations with the served models. */

import { signal } from "@preact/signals";
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { useTopic } from "../../api/live";
import type { Models } from "../../api/schema";
import { t } from "../../i18n";
import { forGood } from "../../kept";
import { href } from "../../route";
import { Problem } from "../../ui/basics";
import * as answers from "./answers";
import "./chat.css";
import * as chats from "./chats";
import { Composer, focusComposer } from "./composer";
import { IconButton } from "./icons";
import { ConversationList, titleOf } from "./list";
import { MessageView } from "./message";
import { loadModels, modelOf, models } from "./models";
import { isRacing, race, stopRace } from "./race";
import { RaceView } from "./race_view";
import { SettingsDialog } from "./settings";
import { withoutThoughts } from "./thinking";

const COLOURED_KEPT_AS = "foredraft-chat-coloured";
const UNDO_MS = 15_000;
const SAID_CHARACTERS = 2000;
/** Answers that other tabs write are looked at again: an interrupted one shows as that. */
const LOOK_MS = 2000;

const coloured = signal(forGood.get(COLOURED_KEPT_AS) === "yes");

export default function View() {
  const [listed, setListed] = useState(false);
  const [error, setError] = useState<unknown>(null);
  const place = chats.place.value;
  const busy = answers.isRunning(place);
  const load = () => void loadModels().then(() => setError(null), setError);
  useEffect(() => chats.start(answers.stopHere), []);
  useEffect(() => {
    if (!busy) load(); // an answer loads its model
  }, [busy]);
  useTopic<Models>("models", load); // one may be loaded, unloaded or added meanwhile
  useEscape(place);
  return (
    <div class={`chat ${listed ? "listed" : ""}`}>
      <ConversationList close={() => setListed(false)} />
      <div class="chat-main">
        <Head showList={() => setListed(true)} />
        <Notices error={error} retry={load} />
        <Thread />
        <Composer key={place} conversation={place} />
      </div>
      <Said />
    </div>
  );
}

/** Escape stops what is being written here; in another field than the composer's it is that field's. */
function useEscape(conversation: string): void {
  useEffect(() => {
    const pressed = (event: KeyboardEvent) => {
      if (event.key !== "Escape" || event.isComposing || document.querySelector("dialog[open]")) return;
      const at = event.target instanceof Element ? event.target.closest("input, select, textarea") : null;
      if (at && !at.closest(".composer")) return;
      answers.stop(conversation);
      stopRace(conversation);
    };
    addEventListener("keydown", pressed);
    return () => removeEventListener("keydown", pressed);
  }, [conversation]);
}

function Head(props: { showList: () => void }) {
  const [settings, setSettings] = useState(false);
  return (
    <div class="chat-head">
      <span class="only-narrow">
        <IconButton icon="list" label={t("chat.conversations")} onClick={props.showList} />
      </span>
      <h1>{chats.current.value ? titleOf(chats.current.value) : t("chat.new")}</h1>
      <ModelChoice />
      <button
        type="button"
        role="switch"
        class="switch"
        aria-checked={coloured.value}
        title={t("chat.colour_note")}
        onClick={() => {
          coloured.value = !coloured.value;
          forGood.set(COLOURED_KEPT_AS, coloured.value ? "yes" : "no");
        }}
      >
        {t("chat.colour")}
      </button>
      <IconButton icon="settings" label={t("chat.settings")} onClick={() => setSettings(true)} />
      {settings && <SettingsDialog close={() => setSettings(false)} />}
    </div>
  );
}

function ModelChoice() {
  const chosen = chats.settings.value.model;
  const all = models.value ?? [];
  const known = modelOf(chosen);
  return (
    <select
      class="model"
      aria-label={t("chat.model")}
      value={known?.id ?? chosen}
      onChange={(event) => chats.change({ model: event.currentTarget.value })}
    >
      {!known && chosen && <option value={chosen}>{t("chat.model_gone", { name: chosen })}</option>}
      {all.map(({ id, loaded }) => (
        <option key={id} value={id}>
          {loaded ? id : t("chat.model_unloaded", { name: id })}
        </option>
      ))}
    </select>
  );
}

function Notices(props: { error: unknown; retry: () => void }) {
  const back = chats.removed.value;
  const last = back.at(-1)?.conversation;
  useEffect(() => {
    const over = setTimeout(() => (chats.removed.value = []), UNDO_MS);
    return () => clearTimeout(over);
  }, [back]);
  return (
    <div class="notices">
      {props.error !== null && <Problem error={props.error} retry={props.retry} />}
      {models.value?.length === 0 && (
        <p class="problem">
          {t("chat.no_models")} <a href={href("models")}>{t("shell.models")}</a>
        </p>
      )}
      {chats.problem.value && (
        <p class="problem" role="alert">
          {t(chats.problem.value === "quota" ? "chat.store_full" : "chat.store_failed")}
        </p>
      )}
      {last && (
        <p class="notice" role="status">
          {back.length > 1
            ? t("chat.removed_many", { count: back.length })
            : t("chat.removed", { title: titleOf(last) })}{" "}
          <button type="button" onClick={() => (void chats.undoRemove(), focusComposer())}>
            {t("chat.undo")}
          </button>
        </p>
      )}
    </div>
  );
}

function Thread() {
  const id = chats.place.value;
  const shown = chats.current.value ? chats.messages.value : [];
  const busy = answers.isRunning(id) || isRacing();
  const { box, inner, away, down } = useEnd(id, shown.length);
  const waits = shown.some((message) => message.state === "running");
  useEffect(() => {
    if (!waits) return;
    const timer = setInterval(answers.lookAgain, LOOK_MS);
    return () => clearInterval(timer);
  }, [waits]);
  const raced = race.value?.conversation === id ? race.value : null;
  return (
    <div class="thread-frame">
      <div class="thread" ref={box} tabIndex={0} role="region" aria-label={t("chat.thread")}>
        <div class={raced ? "thread-inner wide" : "thread-inner"} ref={inner}>
          {!shown.length && !raced && chats.ready.value && <Welcome />}
          {shown.map((message, place) => (
            <MessageView
              key={message.id}
              message={message}
              last={place === shown.length - 1}
              coloured={coloured.value}
              busy={busy}
            />
          ))}
          {raced && <RaceView race={raced} />}
        </div>
      </div>
      {away && <IconButton icon="down" label={t("chat.to_end")} class="round to-end" onClick={down} />}
    </div>
  );
}

/** Keeps the end of the thread on screen, until the reader scrolls up. */
function useEnd(id: string, count: number) {
  const box = useRef<HTMLDivElement>(null);
  const inner = useRef<HTMLDivElement>(null);
  const follows = useRef(true);
  const [away, setAway] = useState(false);
  function down(): void {
    follows.current = true;
    setAway(false);
    if (box.current) box.current.scrollTop = box.current.scrollHeight;
  }
  useLayoutEffect(down, [id, count]);
  useEffect(() => {
    const [scrolled, content] = [box.current, inner.current];
    if (!scrolled || !content) return;
    let top = scrolled.scrollTop;
    const moved = () => {
      const left = scrolled.scrollHeight - scrolled.clientHeight - scrolled.scrollTop;
      if (left < 4) follows.current = true;
      else if (scrolled.scrollTop < top) follows.current = false;
      top = scrolled.scrollTop;
      setAway(!follows.current);
    };
    const grown = new ResizeObserver(() => {
      if (follows.current) scrolled.scrollTop = scrolled.scrollHeight;
    });
    grown.observe(content);
    grown.observe(scrolled);
    scrolled.addEventListener("scroll", moved, { passive: true });
    return () => {
      grown.disconnect();
      scrolled.removeEventListener("scroll", moved);
    };
  }, []);
  return { box, inner, away, down };
}

const EXAMPLES = ["chat.example_list", "chat.example_code", "chat.example_why"] as const;

function Welcome() {
  return (
    <div class="welcome">
      <h2>{t("chat.welcome")}</h2>
      <p class="dim">{t("chat.welcome_note")}</p>
      <div class="examples">
        {EXAMPLES.map((key) => (
          <button
            key={key}
            type="button"
            disabled={models.value?.length === 0}
            onClick={() => answers.ask(t(key), [])}
          >
            {t(key)}
          </button>
        ))}
      </div>
    </div>
  );
}

/** Finished answers, for screen readers. */
function Said() {
  const last = answers.finished.value;
  return (
    <p class="visually-hidden" aria-live="polite">
      {last && withoutThoughts(last.text).slice(0, SAID_CHARACTERS)}
    </p>
  );
}
