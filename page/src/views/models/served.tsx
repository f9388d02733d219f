/** The models that clients can use. */

import { useState } from "preact/hooks";
import type { ConfiguredModel } from "../../api/schema";
import { isAdmin } from "../../api/session";
import { bytes, number, t } from "../../i18n";
import { href } from "../../route";
import { Badge, Card, Dialog, Problem } from "../../ui/basics";
import { useNow } from "../../ui/now";
import { useActions } from "./acting";
import { isUnsaved, setPinned } from "./editing";
import { compact, span } from "./format";
import { makeDefault, stopServing, switchModel } from "./state";

const TONES = { loaded: "good", loading: "warn", failed: "bad", unloaded: undefined } as const;

export function Served(props: { models: ConfiguredModel[] }) {
  return (
    <Card title={t("models.served")}>
      <ul class="rows">
        {props.models.map((model) => (
          <Row key={model.name} model={model} />
        ))}
      </ul>
    </Card>
  );
}

function Row({ model }: { model: ConfiguredModel }) {
  const { error, busy, act } = useActions("data-model", model.name);
  return (
    <li class="model-row" data-model={model.name}>
      <About model={model} error={error} />
      <Actions model={model} busy={busy} act={(action) => void act(action)} />
    </li>
  );
}

function About(props: { model: ConfiguredModel; error: unknown }) {
  const { model, error } = props;
  const now = useNow(5);
  return (
    <div class="what">
      <Title model={model} />
      <p class="dim">{facts(model)}</p>
      <p class="dim">{activity(model, now)}</p>
      {model.adapters.length > 0 && (
        <ul class="adapters" aria-label={t("models.adapters_of", { name: model.name })}>
          {model.adapters.map((name) => (
            <li key={name}>
              <span class="name">{name}</span>{" "}
              <Badge title={t("models.adapter_note")}>{t("models.adapter")}</Badge>
            </li>
          ))}
        </ul>
      )}
      {model.state === "loading" && (
        <div
          class="busy-bar"
          role="progressbar"
          aria-label={t("models.loading_name", { name: model.name })}
        />
      )}
      {model.state === "failed" && model.error && (
        <p class="bad reason" lang="en">
          {model.error}
        </p>
      )}
      {error !== null && <Problem error={error} />}
    </div>
  );
}

function Title({ model }: { model: ConfiguredModel }) {
  return (
    <p class="title">
      <a href={href("models", model.name)} class="name">
        {model.name}
      </a>
      <Badge tone={TONES[model.state]}>{t(`models.state_${model.state}`)}</Badge>
      {model.kind === "embedding" && (
        <Badge title={t("models.kind_note")}>{t("models.kind_embedding")}</Badge>
      )}
      {model.kind === "reranker" && <Badge title={t("models.kind_note")}>{t("models.kind_reranker")}</Badge>}
      {model.default && <Badge title={t("models.default_note")}>{t("models.default")}</Badge>}
      {model.pinned && <Badge title={t("models.field_pinned_help")}>{t("models.pinned_mark")}</Badge>}
      {model.outdated && <Badge tone="warn">{t("models.outdated")}</Badge>}
      {isUnsaved(model.name) && <Badge tone="warn">{t("models.unsaved_mark")}</Badge>}
    </p>
  );
}

type Act = (action: () => Promise<void>) => void;

/** What can be done with a model; without the admin's key only its settings are shown. */
function Actions(props: { model: ConfiguredModel; busy: boolean; act: Act }) {
  const { model, busy, act } = props;
  const [asking, setAsking] = useState(false);
  return (
    <>
      <div class="actions">
        {isAdmin() && <LoadButton model={model} busy={busy} act={act} />}
        {isAdmin() && (
          <button
            type="button"
            aria-disabled={busy}
            title={t("models.field_pinned_help")}
            onClick={() => act(() => setPinned(model.name, !model.pinned))}
          >
            {t(model.pinned ? "models.unpin" : "models.pin")}
          </button>
        )}
        {isAdmin() && !model.default && (
          <button
            type="button"
            aria-disabled={busy}
            title={t("models.default_note")}
            onClick={() => act(() => makeDefault(model.name))}
          >
            {t("models.make_default")}
          </button>
        )}
        <a class="button" href={href("models", model.name)}>
          {t("models.settings")}
        </a>
        {isAdmin() && model.in_file && (
          <button type="button" class="quiet" aria-disabled={busy} onClick={() => busy || setAsking(true)}>
            {t("models.stop_serving")}
          </button>
        )}
      </div>
      {asking && (
        <StopServing
          model={model}
          close={() => setAsking(false)}
          go={() => (setAsking(false), act(() => stopServing(model.name)))}
        />
      )}
    </>
  );
}

function LoadButton(props: { model: ConfiguredModel; busy: boolean; act: Act }) {
  const { model, busy, act } = props;
  const on = model.state === "loaded" || model.state === "loading";
  const off = busy || model.state === "loading";
  return (
    <button
      type="button"
      aria-disabled={off}
      onClick={() => off || act(() => switchModel(model.name, on ? "unload" : "load"))}
    >
      {t(on ? "models.unload" : "models.load")}
    </button>
  );
}

function StopServing(props: { model: ConfiguredModel; close: () => void; go: () => void }) {
  return (
    <Dialog title={t("models.stop_serving_title", { name: props.model.name })} close={props.close}>
      <p>{t("models.stop_serving_text")}</p>
      <div class="actions">
        <button type="button" class="danger" onClick={props.go}>
          {t("models.stop_serving")}
        </button>
        <button type="button" onClick={props.close}>
          {t("shell.cancel")}
        </button>
      </div>
    </Dialog>
  );
}

/** What kind of model it is. */
function facts(model: ConfiguredModel): string {
  const context = model.context_length;
  const size = bytes(model.size_bytes);
  return [
    model.architecture,
    model.parameters !== null && t("models.parameters", { value: compact(model.parameters) }),
    model.quantization,
    model.state === "loaded" ? size : `≈ ${size}`,
    context !== null && t("models.context_of", { count: context }),
    model.device,
  ]
    .filter(Boolean)
    .join(" · ");
}

/** What it does, and how it drafts. */
function activity(model: ConfiguredModel, now: number): string {
  const drafts = model.draft_model ? ` + ${model.draft_model}` : "";
  return [
    model.running + model.waiting > 0 &&
      t("models.running_waiting", { running: model.running, waiting: model.waiting }),
    model.state === "loaded" &&
      model.running === 0 &&
      model.last_used !== null &&
      t("models.idle_for", { span: span(Math.max(0, now - model.last_used)) }),
    model.tokens_generated > 0 &&
      t("models.tokens_so_far", { count: model.tokens_generated, tokens: number(model.tokens_generated) }),
    (model.kind === null || model.kind === "generative") &&
      t("models.speculation_is", { text: model.speculate + drafts }),
    model.aliases.length > 0 && t("models.also", { names: model.aliases.join(", ") }),
  ]
    .filter(Boolean)
    .join(" · ");
}
