/** Search on the Hub, and what to pull of it. */

import { useEffect, useState } from "preact/hooks";
import { call } from "../../api/http";
import { isAdmin } from "../../api/session";
import type { HubModel, HubModels } from "../../api/schema";
import { bytes, t } from "../../i18n";
import { Badge, Card, Field, Problem } from "../../ui/basics";
import { compact } from "./format";
import { pulls, startPull } from "./state";

const WAIT_MS = 350;
const LIMIT = 20;
/** Families with small models that run well on a processor. */
const WORDS = ["SmolLM2", "Qwen3", "Gemma 3"];

export function HubSearch(props: { suggest: boolean }) {
  const [query, setQuery] = useState("");
  const [safetensors, setSafetensors] = useState(false);
  const { found, error, busy, again } = useSearch(query.trim(), safetensors);
  return (
    <Card title={t("models.hub")}>
      <form class="search" role="search" onSubmit={(event) => (event.preventDefault(), again())}>
        <Field label={t("models.hub_query")} note={t("models.hub_query_help")}>
          {(attributes) => (
            <input
              {...attributes}
              type="search"
              value={query}
              spellcheck={false}
              autocomplete="off"
              onInput={(event) => setQuery(event.currentTarget.value)}
            />
          )}
        </Field>
        <label class="tick">
          <input
            type="checkbox"
            checked={safetensors}
            onChange={(event) => setSafetensors(event.currentTarget.checked)}
          />
          {t("models.hub_safetensors")}
        </label>
      </form>
      {props.suggest && !query && (
        <p class="actions">
          <span class="dim">{t("models.suggestions")}</span>
          {WORDS.map((word) => (
            <button key={word} type="button" onClick={() => setQuery(word)}>
              {word}
            </button>
          ))}
        </p>
      )}
      <p class="dim" role="status">
        {busy ? t("models.searching") : found && t("models.found", { count: found.length })}
      </p>
      {error !== null && <Problem error={error} retry={again} />}
      {found && found.length > 0 && (
        <ul class="rows">
          {found.map((model) => (
            <Row key={model.repository} model={model} />
          ))}
        </ul>
      )}
    </Card>
  );
}

function Row({ model }: { model: HubModel }) {
  const [chosen, setChosen] = useState(model.variants[0]?.name ?? "");
  const [error, setError] = useState<unknown>(null);
  const [busy, setBusy] = useState(false);
  const variant = model.variants.find(({ name }) => name === chosen);
  const wanted = variant?.name ? `${model.repository}:${variant.name}` : model.repository;
  const running =
    pulls.value?.pulls.some((pull) => pull.state === "running" && pull.model === wanted) ?? false;
  async function go(): Promise<void> {
    if (busy || running) return;
    setBusy(true);
    setError(null);
    await startPull(wanted).catch(setError);
    setBusy(false);
  }
  return (
    <li class="model-row" data-repository={model.repository}>
      <div class="what">
        <p class="title">
          <span class="name">{model.repository}</span>
          {model.gated && <Badge tone="warn">{t("models.gated")}</Badge>}
        </p>
        <p class="dim">
          {t("models.downloads", { count: model.downloads, downloads: compact(model.downloads) })}
        </p>
        {model.gated && <p class="dim">{t("models.gated_help")}</p>}
        {error !== null && <Problem error={error} />}
      </div>
      <div class="actions">
        {model.variants.length > 1 ? (
          <select
            aria-label={t("models.quantisation_of", { name: model.repository })}
            value={chosen}
            onChange={(event) => setChosen(event.currentTarget.value)}
          >
            {model.variants.map(({ name, size_bytes }) => (
              <option key={name} value={name}>
                {name} · {bytes(size_bytes)}
              </option>
            ))}
          </select>
        ) : (
          variant && (
            <span class="dim">{[variant.name, bytes(variant.size_bytes)].filter(Boolean).join(" · ")}</span>
          )
        )}
        {isAdmin() && (
          <button type="button" class="primary" aria-disabled={busy || running} onClick={() => void go()}>
            {t("models.pull")}
          </button>
        )}
      </div>
    </li>
  );
}

/** The Hub's answer to what was typed, once typing has paused. An answer to an older question is dropped. */
function useSearch(query: string, safetensors: boolean) {
  const [found, setFound] = useState<HubModel[] | null>(null);
  const [error, setError] = useState<unknown>(null);
  const [busy, setBusy] = useState(false);
  const [round, setRound] = useState(0);
  useEffect(() => {
    setError(null);
    if (!query) {
      setFound(null);
      setBusy(false);
      return undefined;
    }
    setBusy(true);
    const stop = new AbortController();
    const asked = new URLSearchParams({ query, limit: String(LIMIT), safetensors: String(safetensors) });
    const wait = setTimeout(() => {
      call<HubModels>(`console/hub?${asked.toString()}`, { signal: stop.signal })
        .then(
          ({ models }) => setFound(models),
          (refused: unknown) => {
            if (!stop.signal.aborted) setError(refused);
          },
        )
        .finally(() => {
          if (!stop.signal.aborted) setBusy(false);
        });
    }, WAIT_MS);
    return () => {
      clearTimeout(wait);
      stop.abort();
    };
  }, [query, safetensors, round]);
  return { found, error, busy, again: () => setRound((round) => round + 1) };
}
