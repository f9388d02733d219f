/** The list of conversations: find, rename, remove, save and load. */

import { useEffect, useRef, useState } from "preact/hooks";
import { moment, t } from "../../i18n";
import { href } from "../../route";
import { focusNext } from "../../ui/focus";
import * as answers from "./answers";
import * as chats from "./chats";
import { IconButton } from "./icons";
import { MOST_CONVERSATIONS, withWords } from "./store";
import { exported, imported, offer } from "./transfer";
import type { Conversation } from "./types";

export function ConversationList(props: { close: () => void }) {
  const [words, setWords] = useState("");
  const found = useFound(words.trim());
  const shown = chats.conversations.value.filter((one) => found === null || found.has(one.id));
  return (
    <aside
      class="conversations"
      aria-label={t("chat.conversations")}
      onKeyDown={(event) => event.key === "Escape" && props.close()}
    >
      <div class="conversations-head">
        <button
          type="button"
          class="with-icon"
          onClick={() => {
            chats.begin();
            props.close();
          }}
        >
          {t("chat.new")}
        </button>
        <span class="only-narrow">
          <IconButton icon="close" label={t("shell.close")} onClick={props.close} />
        </span>
      </div>
      <input
        type="search"
        aria-label={t("chat.search")}
        placeholder={t("chat.search")}
        value={words}
        onInput={(event) => setWords(event.currentTarget.value)}
      />
      <ul>
        {shown.map((one) => (
          <Entry key={one.id} conversation={one} close={props.close} />
        ))}
      </ul>
      {chats.loaded.value && !shown.length && (
        <p class="dim">{t(found === null ? "chat.none" : "chat.none_found")}</p>
      )}
      <Transfer />
    </aside>
  );
}

/** The conversations whose title or messages have the words; null: no words. */
function useFound(words: string): Set<string> | null {
  const [inTexts, setInTexts] = useState<{ words: string; ids: Set<string> }>({ words: "", ids: new Set() });
  useEffect(() => {
    if (!words) return;
    const later = setTimeout(
      () => void chats.kept(withWords(words)).then((ids) => ids && setInTexts({ words, ids })),
      150,
    );
    return () => clearTimeout(later);
  }, [words]);
  if (!words) return null;
  const wanted = words.toLocaleLowerCase();
  const titled = chats.conversations.value.filter((one) => one.title.toLocaleLowerCase().includes(wanted));
  return new Set([...titled.map((one) => one.id), ...(inTexts.words === words ? inTexts.ids : [])]);
}

export function titleOf(conversation: Conversation): string {
  return conversation.title.trim() || t("chat.untitled");
}

function Entry(props: { conversation: Conversation; close: () => void }) {
  const { conversation } = props;
  const [renaming, setRenaming] = useState(false);
  const title = titleOf(conversation);
  const current = conversation.id === chats.current.value?.id;
  const row = useRef<HTMLLIElement>(null);
  const pen = `rename-${conversation.id}`;
  function renamed(): void {
    setRenaming(false);
    focusNext(() => document.getElementById(pen));
  }
  function remove(): void {
    const next = row.current?.nextElementSibling ?? row.current?.previousElementSibling;
    const begin = row.current?.closest("aside")?.querySelector("button");
    answers.stop(conversation.id);
    void chats.remove(conversation);
    focusNext(() => next?.querySelector("a") ?? begin);
  }
  if (renaming) return <Renaming conversation={conversation} close={renamed} />;
  return (
    <li class={current ? "current" : undefined} ref={row}>
      <a
        href={href("chat", conversation.id)}
        aria-current={current ? "page" : undefined}
        title={`${title}\n${moment(conversation.updated / 1000)}`}
        onClick={props.close}
      >
        {title}
      </a>
      <IconButton
        id={pen}
        icon="edit"
        label={t("chat.rename_it", { title })}
        onClick={() => setRenaming(true)}
      />
      <IconButton icon="remove" label={t("chat.remove_it", { title })} onClick={remove} />
    </li>
  );
}

function Renaming(props: { conversation: Conversation; close: () => void }) {
  const box = useRef<HTMLInputElement>(null);
  useEffect(() => box.current?.select(), []);
  function done(): void {
    if (box.current) chats.rename(props.conversation, box.current.value);
    props.close();
  }
  return (
    <li>
      <input
        ref={box}
        aria-label={t("chat.rename")}
        defaultValue={props.conversation.title}
        maxLength={200}
        onBlur={done}
        onKeyDown={(event) => {
          if (event.isComposing) return;
          if (event.key === "Enter") done();
          else if (event.key === "Escape") props.close();
          event.stopPropagation();
        }}
      />
    </li>
  );
}

function Transfer() {
  const input = useRef<HTMLInputElement>(null);
  const [said, setSaid] = useState("");
  async function load(file: File): Promise<void> {
    const room = Math.max(0, MOST_CONVERSATIONS - chats.conversations.value.length);
    const count = await chats.kept(imported(file, room));
    if (count === undefined) return; // the store's problem is said elsewhere
    if (count === null) setSaid(t("chat.import_wrong", { name: file.name }));
    else setSaid(count > room ? t("chat.import_many", { count, room }) : t("chat.imported", { count }));
    await chats.reload();
  }
  async function save(): Promise<void> {
    const blob = await chats.kept(exported(chats.conversations.value));
    if (blob) offer(blob, `foredraft-chats-${new Date().toISOString().slice(0, 10)}.json`);
  }
  return (
    <div class="transfer">
      <p class="dim">{t("chat.kept_note")}</p>
      <div class="actions">
        <button
          type="button"
          class="quiet"
          disabled={!chats.conversations.value.length}
          onClick={() => void save()}
        >
          {t("chat.export")}
        </button>
        <button type="button" class="quiet" onClick={() => input.current?.click()}>
          {t("chat.import")}
        </button>
      </div>
      <input
        ref={input}
        type="file"
        accept=".json,application/json"
        hidden
        onChange={(event) => {
          const file = event.currentTarget.files?.[0];
          if (file) void load(file);
          event.currentTarget.value = "";
        }}
      />
      <p role="status">{said}</p>
    </div>
  );
}
